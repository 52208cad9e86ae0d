"""A mosquitto of a benchmark's own: default settings, a free port, ended by force where asked."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

START_S = 10.0


class Mosquitto:
    """A context manager; the port stays the same over `kill` and `start`."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "mosquitto.log"
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"mqtt://127.0.0.1:{self.port}"

    def __enter__(self) -> "Mosquitto":
        self.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._end(signal.SIGTERM)

    def start(self) -> None:
        """Start it without a configuration, and wait until it takes connections."""
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
        program = shutil.which("mosquitto", path=path)
        if program is None:
            raise SystemExit("mosquitto is not installed: apt install mosquitto")
        with self.log.open("ab") as log:
            command = [program, "-p", str(self.port)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not _listens(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"mosquitto did not start: {self.log.read_text()}")
            time.sleep(0.01)

    def kill(self) -> None:
        """End it as a power cut does."""
        self._end(signal.SIGKILL)

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
