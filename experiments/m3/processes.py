"""Processes of the experiment. Each runs alone in its folder and ends with the experiment.

    python -m experiments.m3.processes LOCK PARENT PROGRAM ARGUMENT ...

All programs are started through this module. Linux ends a program when the experiment is killed.
The lock file makes the next run of the experiment wait until the old program has ended.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from experiments.m3.storage import ExperimentError
from ternmesh_cli.workers import Worker, python, running
from tests.mosquitto import configuration, find_mosquitto, free_port, listens
from transports.mqtt.settings import parse_url

SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl
BROKER_START_S = 30.0
POLL_S = 0.1
PACKET_BYTES_MAX = 1 << 26  # some versions of mosquitto refuse M3a's messages by default


@dataclass(frozen=True, slots=True)
class Broker:
    """An MQTT broker that takes connections."""

    url: str
    title: str  # its name in the report


def guarded(name: str, folder: Path, command: Sequence[str]) -> Worker:
    """Return a worker that runs `command` alone in `folder` and ends with this process."""
    guard = python("experiments.m3.processes", str(folder / "lock"), str(os.getpid()))
    return Worker(name, folder, [*guard, *command], may_end=True)


def wait_until(is_done: Callable[[], bool], worker: Worker, timeout_s: float) -> None:
    """Wait for a condition that `worker` brings about; ExperimentError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not is_done():
        worker.keep_alive()
        if time.monotonic() > deadline:
            raise ExperimentError(
                f"{worker.name} is not ready after {timeout_s:.0f} s: see {worker.log}"
            )
        time.sleep(POLL_S)


@contextmanager
def open_broker(url: str | None, folder: Path) -> Iterator[Broker]:
    """Yield the broker at `url`, else an own mosquitto, else the embedded broker."""
    program = find_mosquitto()
    if url is not None:
        yield Broker(url, f"the broker {parse_url(url)}")
    elif program is not None:
        port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "mosquitto.conf"
        config.write_text(configuration(port, f"max_packet_size {PACKET_BYTES_MAX}"))
        with running(guarded("mosquitto", folder, [program, "-c", str(config)])) as worker:
            wait_until(lambda: listens(port), worker, BROKER_START_S)
            yield Broker(f"mqtt://127.0.0.1:{port}", "an own mosquitto")
    else:
        from transports.mqtt.embedded_broker import (
            EmbeddedBroker,  # needs amqtt, which mosquitto replaces
        )

        with EmbeddedBroker() as broker:
            yield Broker(broker.url, "an own broker (amqtt)")


def become(lock: str, parent: str, *command: str) -> None:
    """Replace this process by `command`. Returns only if the parent has ended already."""
    with contextlib.suppress(AttributeError, OSError):  # only Linux has prctl
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != int(parent):
        return
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(handle, True)  # `command` keeps the lock until it ends
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.execvp(command[0], command)


if __name__ == "__main__":
    become(*sys.argv[1:])
