"""Starts the ranks of a pipeline on this machine with torchrun, and reads their reports.

torchrun restarts all ranks when one dies; they go on from their last common checkpoint. A rank
holds a lock in the state folder as long as it lives.
"""

import fcntl
import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from host.pipeline.config import PipelineConfig, PipelineError
from host.pipeline.report import PROGRESS, parse
from ternmesh.extras import how_to_install

POLL_S = 0.5
STOP_S = 15.0
REASON = "ternmesh: "  # how a line begins in which a rank gives its reason to end
RAISED = re.compile(r"^(?:\[rank\d+\]: *)?((?:\w+\.)*\w+Error: \S.*)")


def hold(folder: Path, rank: int) -> TextIO:
    """Lock a rank's place in a state folder until the returned file is closed or the process ends.

    PipelineError where other ranks train there, or the folder cannot be used.
    """
    path = folder / f"rank-{rank}.lock"
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        file = path.open("a+")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PipelineError(
            f"other ranks train in {folder}: end them first (kill {path.read_text().strip()}), or "
            "choose another state_dir"
        ) from error
    except OSError as error:
        raise PipelineError(f"state_dir cannot be used: {error}") from error
    file.truncate(0)
    file.write(f"{os.getppid()}\n")  # torchrun, which would restart this process
    file.flush()
    return file


def command(config: PipelineConfig, path: Path) -> list[str]:
    """The command that starts the ranks of the configuration at `path`."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={config.ranks}",
        f"--max-restarts={config.restarts_max}",
        "-m",
        "host.pipeline",
        str(path),
    ]


class Ranks:
    """The processes of one run."""

    def __init__(self, config: PipelineConfig, path: Path) -> None:
        self._config = config
        self._command = command(config, path)
        self._process: subprocess.Popen[bytes] | None = None
        self._read = 0  # bytes of the progress file that have been read

    @property
    def log(self) -> Path:
        """The output of ranks and torchrun."""
        return self._config.folder / "ranks.log"

    def start(self) -> None:
        """Start the ranks; PipelineError without torch, or where others train in the folder."""
        if importlib.util.find_spec("torch") is None:
            raise PipelineError(f"torch is not installed: {how_to_install('pipeline')}")
        for rank in range(self._config.ranks):
            hold(self._config.folder, rank).close()  # the ranks lock it again
        progress = self._config.folder / PROGRESS
        self._read = progress.stat().st_size if progress.exists() else 0
        # Ranks share the cores of this machine; without this, torchrun prints a long warning.
        environment = {"OMP_NUM_THREADS": str(self._config.threads), **os.environ}
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                self._command, stdout=out, stderr=out, env=environment, start_new_session=True
            )

    def reports(self, stop: threading.Event) -> Iterator[dict[str, Any]]:
        """New reports until all ranks have ended or `stop` is set; PipelineError if they failed."""
        assert self._process is not None
        running = True
        while running and not stop.wait(POLL_S):
            running = self._process.poll() is None
            yield from self._new_reports()
        if self._process.returncode:
            raise PipelineError(self._reason())

    def stop(self) -> None:
        """End all ranks; kill torchrun if it does not end in time."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _new_reports(self) -> Iterator[dict[str, Any]]:
        progress = self._config.folder / PROGRESS
        if not progress.exists():
            return
        with progress.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if line.endswith(b"\n"):
                    self._read += len(line)
                    if (report := parse(line)) is not None:
                        yield report

    def _reason(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        if reasons := [line for line in lines if line.startswith(REASON)]:
            return reasons[-1].removeprefix(REASON)
        raised = [found[1] for line in lines if (found := RAISED.match(line))]
        reason = f" ({raised[-1]})" if raised else ""
        return f"the ranks ended badly{reason}: see {self.log}"
