"""Hosts, boards and gateways as processes with a folder each; tests kill them and start them again.

A program that is stopped (SIGSTOP) keeps a round open for as long as a test needs it.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from models.zoo import fsdd_path
from ternmesh_cli.process import write_toml
from ternmesh_service.control_socket import ControlError, ask

ROOT = Path(__file__).parents[1]
PATIENCE_S = 120.0
TOP = {"state_dir": ".", "model": "keyword"}


def host_settings(link: Mapping[str, object], **run: object) -> str:
    return write_toml({"": TOP, "link": link, "run": {"announce_s": 1, **run}})


def speaker(name: str, part: str = "train") -> dict[str, object]:
    """The `[data]` or `[evaluate]` of a board with one speaker's clips."""
    arrays = {"features": "x", "target": "y"}
    path = str(fsdd_path(part))
    return {"path": path, "divide_by": 255.0, "arrays": arrays, "where": {"speaker": name}}


def board_settings(name: str, link: Mapping[str, object], **tables: Mapping[str, object]) -> str:
    """Those of a board that learns the speaker of its name."""
    return write_toml({"": {"name": name, **TOP}, "link": link, "data": speaker(name), **tables})


class Process:
    """`ternmesh COMMAND` with these settings."""

    def __init__(self, command: str, folder: Path, settings: str, *options: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.config = folder / "config.toml"
        self.config.write_text(settings)
        self._command = [sys.executable, "-m", "ternmesh_cli.main", command]
        self._command += ["--config", str(self.config), *options]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log)

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, number: int) -> None:
        assert self.process.poll() is None, self.log
        self.process.send_signal(number)

    def kill9(self) -> None:
        self.send(signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def wait_for_end(self) -> None:
        """It ends by itself, and well."""
        assert self.process.wait(3 * PATIENCE_S) == 0, self.log

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.send(number)
        self.wait_for_end()

    def status(self) -> Any:
        """Its status, or None while it does not answer."""
        try:
            return ask(self.folder / "control.sock", {"command": "status"}, PATIENCE_S)
        except ControlError:
            assert self.process.poll() in (None, 0), self.log
            return None

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text()


@contextmanager
def running(*processes: Process) -> Iterator[None]:
    """All run; those that still do at the end are killed."""
    try:
        for process in processes:
            process.start()
        yield
    finally:
        for process in processes:
            if process.process is not None and process.process.poll() is None:
                process.process.kill()
                process.process.wait(PATIENCE_S)
