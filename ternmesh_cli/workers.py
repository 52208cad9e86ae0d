"""The processes of a demo or experiment: start, watch, restart when killed, end."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ternmesh.errors import TernmeshError
from ternmesh_service.control_socket import ControlError, ask

STOP_S = 10.0
RESTARTS_MAX = 20


class WorkerError(TernmeshError):
    """A process has failed; the sentence names its log."""


@dataclass(slots=True)
class Worker:
    """One process in a folder of its own."""

    name: str
    folder: Path
    command: Sequence[str]  # begins with a program
    may_end: bool = False  # with code 0: it is not started again then
    stop_s: float = STOP_S  # from SIGTERM to SIGKILL
    restarts: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The file that collects its output."""
        return self.folder / "log.txt"

    def start(self) -> None:
        """Start the process; its output is appended to its log."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # One thread each, because all share this machine's cores.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out, env=environment)

    def stop(self) -> None:
        """End the process, by force after `stop_s`."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(self.stop_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def keep_alive(self) -> None:
        """Restart the process if a signal killed it.

        WorkerError if it ended with an error, or was killed too often.
        """
        code = self.process.poll() if self.process else None
        if code is None or (code == 0 and self.may_end):
            return
        if code >= 0 or self.restarts >= RESTARTS_MAX:
            raise self._ended(code)
        self.restarts += 1
        self.start()

    def wait(self) -> None:
        """Wait until the process ends; WorkerError where its exit code is not 0."""
        assert self.process is not None
        if code := self.process.wait():
            raise self._ended(code)

    def last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"

    def status(self) -> Mapping[str, Any] | None:
        """The status of a host, node or gateway; None while it does not answer."""
        try:
            return ask(self.folder / "control.sock", {"command": "status"}, timeout_s=2.0)
        except ControlError:
            return None

    def _ended(self, code: int) -> WorkerError:
        return WorkerError(f"{self.name} ended with code {code}: {self.last_line()} ({self.log})")


def python(module: str, *arguments: str) -> list[str]:
    """The command line that runs a Python module."""
    return [sys.executable, "-m", module, *arguments]


@contextmanager
def running(worker: Worker) -> Iterator[Worker]:
    """Run the worker until the block ends."""
    try:
        worker.start()
        yield worker
    finally:
        worker.stop()
