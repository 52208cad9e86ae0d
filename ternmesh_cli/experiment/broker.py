"""The broker of an experiment: what the user names, else a mosquitto of its own, else ours."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ternmesh_cli.experiment.errors import ExperimentError
from ternmesh_cli.experiment.workers import guarded
from ternmesh_cli.mosquitto import configuration, find_mosquitto, free_port, listens
from ternmesh_cli.workers import Worker, running
from transports.mqtt_settings import parse_url

START_S = 30.0
POLL_S = 0.05
PACKET_MAX = 1 << 26  # M3a's messages are longer than what some versions allow by themselves


@dataclass(frozen=True, slots=True)
class Broker:
    """Where it is, and what the report calls it."""

    url: str
    title: str


def broker_url(text: str) -> str:
    """The URL in HOST:PORT or an mqtt:// or mqtts:// URL; ValueError."""
    url = text if "://" in text else f"mqtt://{text}"
    parse_url(url)
    return url


@contextmanager
def open_broker(url: str | None, folder: Path) -> Iterator[Broker]:
    """A broker that takes connections; one of our own ends with the block."""
    program = find_mosquitto()
    if url is not None:
        yield Broker(url, f"the broker {parse_url(url)}")
    elif program is not None:
        port = free_port()
        with running(_mosquitto(program, folder, port)) as worker:
            _wait(worker, port)
            yield Broker(f"mqtt://127.0.0.1:{port}", "a mosquitto of the experiment's own")
    else:
        from transports.broker import EmbeddedBroker  # only where the extra is needed

        with EmbeddedBroker() as broker:
            yield Broker(broker.url, "the experiment's own broker (amqtt)")


def _mosquitto(program: str, folder: Path, port: int) -> Worker:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "mosquitto.conf"
    config.write_text(configuration(port, f"max_packet_size {PACKET_MAX}"))
    return guarded("mosquitto", folder, [program, "-c", str(config)])


def _wait(worker: Worker, port: int) -> None:
    deadline = time.monotonic() + START_S
    while not listens(port):
        worker.keep_alive()
        if time.monotonic() > deadline:
            raise ExperimentError(f"mosquitto did not start: {worker.last_line()} ({worker.log})")
        time.sleep(POLL_S)
