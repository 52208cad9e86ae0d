"""The mosquitto program of this machine, and a private broker on a free port.

Benches and experiments use it too: no installed package needs it.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from ternmesh.errors import TernmeshError

ADDRESS = "127.0.0.1"
START_S = 10.0


class MosquittoError(TernmeshError):
    """No mosquitto is installed, or it did not start."""


def find_mosquitto() -> str | None:
    """The path of the program, also in Debian's /usr/sbin; None where there is none."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return shutil.which("mosquitto", path=path)


def free_port() -> int:
    """A TCP port of this machine that is unused now.

    It is below those that the system gives to clients: one that tries a port of these again and
    again while no broker listens may get that very port, and is then connected to itself.
    """
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with socket.socket() as sock:
            if sock.connect_ex((ADDRESS, port)) != 0:
                return port


def run_as(user: str, folder: Path) -> None:
    """Let the mosquitto of a folder of `ternmesh broker` run as another user than its own."""
    path = folder / "mosquitto.conf"
    path.write_text(path.read_text().replace("user mosquitto", f"user {user}"))


def listens(port: int) -> bool:
    """Whether a port of this machine accepts connections."""
    with socket.socket() as sock:
        return sock.connect_ex((ADDRESS, port)) == 0


def configuration(port: int, *further: str) -> str:
    """A mosquitto.conf that listens on `port` of this machine only, with `further` lines."""
    # As root it would otherwise switch to a user who may not read its folder.
    lines = [f"listener {port} {ADDRESS}", "allow_anonymous true", "user root", *further]
    return "\n".join([*lines, ""])


class Mosquitto:
    """A mosquitto for benchmarks and tests, with its files in `folder`; `with` starts it.

    It keeps its port over a restart. `config` is added to its mosquitto.conf.
    """

    def __init__(self, folder: Path, config: str = "") -> None:
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
        return f"mqtt://{ADDRESS}:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it accepts connections; MosquittoError where it does not."""
        program = find_mosquitto()
        if program is None:
            raise MosquittoError("mosquitto is not installed: apt install mosquitto")
        config = self.folder / "mosquitto.conf"
        config.write_text(configuration(self.port, self.config))
        with (self.folder / "mosquitto.log").open("ab") as log:
            self._process = subprocess.Popen([program, "-c", str(config)], stdout=log, stderr=log)
        give_up_at = time.monotonic() + START_S
        while not listens(self.port):
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                text = (self.folder / "mosquitto.log").read_text()
                raise MosquittoError(f"mosquitto did not start on port {self.port}: {text}")
            time.sleep(0.01)

    def kill9(self) -> None:
        """End it at once, as a power cut does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it with SIGTERM; may be called twice."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kill it and start it again on the same port."""
        self.kill9()
        self.start()

    def _end(self, signal_number: int) -> None:
        if self._process is not None:
            for _ in range(6):  # one that has just begun to listen forgets a SIGTERM
                self._process.send_signal(signal_number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(START_S)
                    break
            self._process.wait(0)
            self._process = None
