"""Results of the experiment, and its JSON files. After a kill a file is old or new, and whole."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ternmesh.errors import TernmeshError
from ternmesh_store.files import replace_file

FLOAT_BYTES = 4


class ExperimentError(TernmeshError):
    """The experiment cannot start or continue; the message says what to do."""


def write_json(path: Path, content: object) -> None:
    """Write `content` to the file at `path`, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(content, indent=1, sort_keys=True).encode())


def read_json(path: Path) -> Any:
    """The content of the file at `path`, None if there is none; ExperimentError."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ExperimentError(f"{path} cannot be read ({error}): remove it") from error


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
        return self.run_bytes_up / sum(len(item.bytes_up) for item in self.rounds)

    @property
    def bytes_down(self) -> float:
        """Mean bytes of the downlink in one round."""
        return self.run_bytes_down / len(self.rounds)

    @property
    def run_bytes_up(self) -> int:
        """Bytes of the whole run from all nodes."""
        return sum(sum(item.bytes_up.values()) for item in self.rounds)

    @property
    def run_bytes_down(self) -> int:
        """Bytes of the whole run's downlink."""
        return sum(item.bytes_down for item in self.rounds)

    @property
    def bits_up(self) -> float:
        """Bits for each trained number, of one node in one round."""
        return 8 * self.bytes_up / self.dimension


def load_result(path: Path) -> ArmResult | None:
    """The result in the JSON file at `path`, None if there is none; ExperimentError."""
    content: dict[str, Any] | None = read_json(path)
    if content is None:
        return None
    content["rounds"] = tuple(Round(**item) for item in content["rounds"])
    return ArmResult(**content)
