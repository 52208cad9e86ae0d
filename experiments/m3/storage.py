"""Files and results of the experiment. After a kill, a file holds old or new content, whole."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.sources import DAMAGED, UNREADABLE
from ternmesh.errors import TernmeshError
from ternmesh_store.files import replace_file

Vector = NDArray[np.float32]
FLOAT_BYTES = 4


class ExperimentError(TernmeshError):
    """The experiment cannot start or continue; the message says what to do."""


@dataclass(frozen=True, slots=True)
class State:
    """An adapter vector (float32, D) and the version of the global adapter that it belongs to."""

    version: int
    vector: Vector


class RoundLog:
    """Bytes that a process published in each round, as a JSON file: version to bytes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rounds: dict[str, int] = read_json(path) or {}

    def record(self, version: int, size_bytes: int) -> None:
        """Record the round that led to a version. A repeated round replaces its first entry."""
        self._rounds[str(version)] = size_bytes
        write_json(self._path, self._rounds)


def write_file(path: Path, content: bytes) -> None:
    """Write the file at `path` and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)


def write_json(path: Path, content: object) -> None:
    """Write `content` as JSON to the file at `path`."""
    write_file(path, json.dumps(content, indent=1, sort_keys=True).encode())


def read_json(path: Path) -> Any:
    """Return the content of the JSON file at `path`, None if there is none; ExperimentError."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ExperimentError(f"{path} cannot be read ({error}): remove it") from error


def save_state(path: Path, state: State) -> None:
    """Write `state` to the .npz file at `path`."""
    content = io.BytesIO()
    np.savez(content, version=np.int64(state.version), vector=state.vector)
    write_file(path, content.getvalue())


def load_state(path: Path, initial: Vector) -> State:
    """Return the saved state, or version 0 with the `initial` vector; ExperimentError."""
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


@dataclass(frozen=True, slots=True)
class Round:
    """One round: payload bytes of each node, and of the downlink, which all nodes receive."""

    version: int
    bytes_up: Mapping[str, int]
    bytes_down: int


@dataclass(frozen=True, slots=True)
class ArmResult:
    """The result of a finished arm."""

    name: str
    title: str
    dimension: int  # trained numbers
    rounds: Sequence[Round]
    steps: int  # local steps of each node in the whole run
    accuracy: float  # of the last global adapter, on all test pairs

    @property
    def bytes_up(self) -> float:
        """Mean bytes of one node in one round."""
        sizes = [size for item in self.rounds for size in item.bytes_up.values()]
        return sum(sizes) / max(1, len(sizes))

    @property
    def bytes_down(self) -> float:
        """Mean bytes of the downlink in one round."""
        return self.run_bytes_down / max(1, len(self.rounds))

    @property
    def run_bytes_up(self) -> int:
        """Bytes of the whole run from all nodes."""
        return sum(size for item in self.rounds for size in item.bytes_up.values())

    @property
    def run_bytes_down(self) -> int:
        """Bytes of the whole run's downlink."""
        return sum(item.bytes_down for item in self.rounds)

    @property
    def bits_up(self) -> float:
        """Bits for each trained number, of one node in one round."""
        return 8 * self.bytes_up / self.dimension


def save_result(path: Path, result: ArmResult) -> None:
    """Write the result to the JSON file at `path`."""
    write_json(path, asdict(result))


def load_result(path: Path) -> ArmResult | None:
    """Return the result in the JSON file at `path`, None if there is none; ExperimentError."""
    content: dict[str, Any] | None = read_json(path)
    if content is None:
        return None
    content["rounds"] = tuple(Round(**item) for item in content["rounds"])
    return ArmResult(**content)
