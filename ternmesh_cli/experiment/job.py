"""What a process of a published arm is told, as a JSON file, and what it keeps for the next one."""

import io
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.sources import DAMAGED, UNREADABLE
from host.config import RunConfig
from ternmesh.errors import TernmeshError
from ternmesh_cli.experiment.errors import ExperimentError
from ternmesh_cli.experiment.files import read_json, write_file, write_json
from ternmesh_cli.process import set_up_logging
from transports.base import TransportError

JOB, LEDGER, STATE, READY, OWN, CURRENT = (
    "job.json",
    "rounds.json",
    "state.npz",
    "ready",
    "own.onnx_adapter",
    "current.onnx_adapter",
)
POLL_S = 0.5
RESEND_S = 20.0  # a node that waited so long sends its state again

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Job:
    """One process: `name` is a node's or "host". Folders are absolute."""

    name: str
    arm: str
    codec: str
    url: str
    fleet: str
    nodes: tuple[str, ...]
    folder: str
    bundle: str
    data: str
    run: RunConfig
    seed: int

    @property
    def down(self) -> str:
        """The topic of what the host publishes for all nodes."""
        return f"ternmesh-experiment/{self.fleet}/{self.arm}/down"

    def up(self, node: str) -> str:
        """The topic of what a node publishes; + for all nodes."""
        return f"ternmesh-experiment/{self.fleet}/{self.arm}/up/{node}"

    @property
    def identity(self) -> str:
        """What the process calls itself at the broker."""
        return f"ternmesh-{self.fleet}-{self.arm}-{self.name}"

    def file(self, name: str) -> Path:
        """A file of this process."""
        return Path(self.folder) / name


def write_job(job: Job) -> Path:
    """Write the job's file and return where it is."""
    write_json(job.file(JOB), asdict(job))
    return job.file(JOB)


def read_job(path: Path) -> Job:
    """The job in the file at `path`."""
    content = read_json(path)
    if content is None:
        raise ExperimentError(f"{path} is missing: start the experiment again")
    content["run"] = RunConfig(**content["run"])
    content["nodes"] = tuple(content["nodes"])
    return Job(**content)


@dataclass(frozen=True, slots=True)
class State:
    """The newest reference that a process holds: its version and vector (float32, D)."""

    version: int
    vector: Vector


def save_state(path: Path, state: State) -> None:
    """Keep `state`; a kill leaves the old or the new."""
    content = io.BytesIO()
    np.savez(content, version=np.int64(state.version), vector=state.vector)
    write_file(path, content.getvalue())


def load_state(path: Path, initial: Vector) -> State:
    """What was kept, or version 0 with the `initial` vector; ExperimentError."""
    if not path.exists():
        return State(0, initial)
    try:
        with np.load(path, allow_pickle=False) as archive:
            state = State(int(archive["version"]), archive["vector"])
    except (*DAMAGED, *UNREADABLE) as error:
        raise ExperimentError(f"{path} cannot be read ({error}): remove it") from error
    if state.vector.shape != initial.shape or state.vector.dtype != np.float32:
        raise ExperimentError(f"{path} belongs to another model: remove it")
    return state


class Ledger:
    """What each round cost, by its number, in a JSON file; a round done again is written again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rounds: dict[str, Any] = read_json(path) or {}

    def note(self, round_number: int, entry: dict[str, Any]) -> None:
        """Keep the entry of a round."""
        self._rounds[str(round_number)] = entry
        write_json(self._path, self._rounds)


def do(run: Callable[[Job], None], path: str) -> int:
    """The program of a process: `run` with the job in the file at `path`; its exit code."""
    set_up_logging("INFO")
    try:
        run(read_job(Path(path)))
    except (TernmeshError, TransportError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
