"""The processes of a demo or experiment: started, watched, started again when killed, ended."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ternmesh.errors import TernmeshError
from transports.control_socket import ControlError, ask

STOP_S = 10.0
RESTARTS_MAX = 20


class WorkerError(TernmeshError):
    """A process that cannot go on; the sentence names its log."""


@dataclass(slots=True)
class Worker:
    """One process in a folder of its own; `command` begins with a program.

    One that `may_end` is left alone when it has ended well. One that is asked to end has `stop_s`.
    """

    name: str
    folder: Path
    command: Sequence[str]
    may_end: bool = False
    stop_s: float = STOP_S
    restarts: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Where it writes what it does."""
        return self.folder / "log.txt"

    def start(self) -> None:
        """Start the process; what it says is added to its log."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # One thread each: all share this machine's cores.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out, env=environment)

    def stop(self) -> None:
        """End the process, by force if it does not obey."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(self.stop_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def keep_alive(self) -> None:
        """Start it again if it was killed; WorkerError if it gave up or dies too often."""
        code = self.process.poll() if self.process else None
        if code is None or (code == 0 and self.may_end):
            return
        if code >= 0 or self.restarts >= RESTARTS_MAX:
            raise self._ended(code)
        self.restarts += 1
        self.start()

    def wait(self) -> None:
        """Wait until it has ended well; WorkerError otherwise."""
        assert self.process is not None
        if code := self.process.wait():
            raise self._ended(code)

    def last_line(self) -> str:
        """The last thing that it said."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def status(self) -> Mapping[str, Any] | None:
        """What a host or node says of itself, or None while it does not answer."""
        try:
            return ask(self.folder / "control.sock", {"command": "status"}, timeout_s=2.0)
        except ControlError:
            return None

    def _ended(self, code: int) -> WorkerError:
        return WorkerError(f"{self.name} ended with code {code}: {self.last_line()} ({self.log})")


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours."""
    return [sys.executable, "-m", module, *arguments]


@contextmanager
def running(worker: Worker) -> Iterator[Worker]:
    """The worker while it runs; it is ended when the block ends."""
    try:
        worker.start()
        yield worker
    finally:
        worker.stop()
