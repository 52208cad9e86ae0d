"""What tests of several rooms share: a real broker that can be killed, and patience."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

START_S = 10.0

# A shell starts what runs behind it with SIGINT ignored, and programs hand that down: those that
# tests start and interrupt would not hear it. A handler is not handed down.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Mosquitto:
    """A mosquitto on a free port of this machine; the port stays the same over a restart."""

    def __init__(self, program: str, folder: Path, config: str = "") -> None:
        self.program = program
        self.folder = folder
        self.config = config  # further lines of mosquitto.conf
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"mqtt://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process, for signals."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        config = self.folder / "mosquitto.conf"
        # Started as root it would become another user, who may not read this folder.
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", "user root"]
        config.write_text("\n".join([*lines, self.config, ""]))
        with (self.folder / "mosquitto.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.program, "-c", str(config)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_S
        while not _listens(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = (self.folder / "mosquitto.log").read_text()
                raise RuntimeError(f"mosquitto did not start on port {self.port}: {text}")
            time.sleep(0.01)

    def kill9(self) -> None:
        """End it as a power cut does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in peace; may be called twice."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kill it and start it again on the same port."""
        self.kill9()
        self.start()

    def _end(self, signal_number: int) -> None:
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(START_S)
            self._process = None


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def new_mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Mosquitto]]:
    """A function that starts one more mosquitto, with further lines for its mosquitto.conf."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    program = shutil.which("mosquitto", path=path)
    if program is None:
        pytest.skip("mosquitto is not installed: apt install mosquitto")
    started: list[Mosquitto] = []

    def start(config: str = "") -> Mosquitto:
        broker = Mosquitto(program, tmp_path_factory.mktemp("mosquitto"), config)
        started.append(broker)
        broker.start()
        return broker

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture
def mosquitto(new_mosquitto: Callable[..., Mosquitto]) -> Mosquitto:
    """A running mosquitto with its defaults; see `Mosquitto` for what can be done to it."""
    return new_mosquitto()


class Eventually(Protocol):
    def __call__(self, condition: Callable[[], object], timeout_s: float = 20.0) -> None: ...


@pytest.fixture
def eventually() -> Eventually:
    """Wait until a condition holds; fails the test where it does not within `timeout_s`."""

    def wait(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not true within {timeout_s} s"
            time.sleep(0.005)

    return wait
