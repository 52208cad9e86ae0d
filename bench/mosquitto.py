"""A mosquitto of a benchmark's or test's own: a free port, ended by force where asked."""

import signal
import subprocess
import time
from pathlib import Path

from ternmesh_cli.mosquitto import configuration, find_mosquitto, free_port, listens

START_S = 10.0


class Mosquitto:
    """The port stays the same over a restart. `config`: further lines for its mosquitto.conf."""

    def __init__(self, program: str, folder: Path, config: str = "") -> None:
        self.program = program
        self.folder = folder
        self.config = config
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Mosquitto":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

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
        """Start it and wait until it takes connections; RuntimeError where it does not."""
        config = self.folder / "mosquitto.conf"
        config.write_text(configuration(self.port, self.config))
        with (self.folder / "mosquitto.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.program, "-c", str(config)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_S
        while not listens(self.port):
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


def mosquitto_in(folder: Path) -> Mosquitto:
    """A mosquitto with its defaults, not started yet; SystemExit where none is installed."""
    program = find_mosquitto()
    if program is None:
        raise SystemExit("mosquitto is not installed: apt install mosquitto")
    return Mosquitto(program, folder)
