"""Starts all ranks of a pipeline on this machine with torchrun, and tells what they report.

torchrun starts all ranks again when one dies; they go on from their last common checkpoint.
"""

import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from host.pipeline.config import PipelineConfig
from host.pipeline.errors import PipelineError
from host.pipeline.lock import hold
from host.pipeline.report import PROGRESS, parse

POLL_S = 0.5
STOP_S = 15.0
SAID = "ternmesh: "  # how the sentences of ranks begin
RAISED = re.compile(r"^(?:\[rank\d+\]: *)?((?:\w+\.)*\w+Error: \S.*)")


def command(config: PipelineConfig, path: Path, machines: int = 1, endpoint: str = "") -> list[str]:
    """What starts the ranks of the configuration at `path`, or an even part of them.

    Each of several machines starts its part; they meet at `endpoint`, HOST:PORT of one of them.
    """
    meeting = [f"--nnodes={machines}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}"]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *(["--standalone"] if machines == 1 else meeting),
        f"--nproc-per-node={config.ranks // machines}",
        f"--max-restarts={config.restarts_max}",
        "-m",
        "host.pipeline",
        str(path),
    ]


class Ranks:
    """The ranks of one run, while they run."""

    def __init__(
        self, config: PipelineConfig, path: Path, machines: int = 1, endpoint: str = ""
    ) -> None:
        self._config = config
        self._command = command(config, path, machines, endpoint)
        self._process: subprocess.Popen[bytes] | None = None
        self._read = 0

    @property
    def log(self) -> Path:
        """Where ranks and torchrun write."""
        return self._config.folder / "ranks.log"

    @property
    def process_id(self) -> int:
        """torchrun's."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start them; PipelineError where torch is missing or others train in the folder."""
        if importlib.util.find_spec("torch") is None:
            raise PipelineError("torch is not installed: pip install 'ternmesh[pipeline]'")
        for rank in range(self._config.ranks):
            hold(self._config.folder, rank).close()  # the ranks will
        progress = self._config.folder / PROGRESS
        self._read = progress.stat().st_size if progress.exists() else 0
        # Ranks share this machine's cores; torchrun would say so at length.
        environment = {"OMP_NUM_THREADS": str(self._config.threads), **os.environ}
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                self._command, stdout=out, stderr=out, env=environment, start_new_session=True
            )

    def reports(self, stop: threading.Event) -> Iterator[dict[str, Any]]:
        """Reports as they come, until all ranks have ended or `stop` is set; PipelineError."""
        assert self._process is not None
        running = True
        while running and not stop.wait(POLL_S):
            running = self._process.poll() is None
            yield from self._new_reports()
        if self._process.returncode:
            raise PipelineError(self._reason())

    def stop(self) -> None:
        """End all ranks, by force if they do not obey."""
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
        if said := [line for line in lines if line.startswith(SAID)]:
            return said[-1].removeprefix(SAID)
        raised = [found[1] for line in lines if (found := RAISED.match(line))]
        reason = f" ({raised[-1]})" if raised else ""
        return f"the ranks ended badly{reason}: see {self.log}"
