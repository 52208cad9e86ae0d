"""What an arm has shown. Values and arithmetic only, but for two functions that keep it as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models.text_layers import OTHER, PARTS
from ternmesh_cli.experiment.files import read_json, write_json

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Round:
    """One round: payload bytes by node, and of the way down, sent once for all nodes."""

    version: int
    bytes_up: Mapping[str, int]
    bytes_down: int


@dataclass(frozen=True, slots=True)
class ArmResult:
    """A finished arm.

    `numbers` are those that are trained, by part of the model. `parts_up` and `parts_down` are mean
    bytes a round by part, FRAME included; `is_shared` says that every packet mixes all parts, so
    that they are shares by the count of numbers. `accuracy` is that of the reference that each node
    holds at the end, `own` that of each node's state before the last exchange, where it is known.
    """

    name: str
    title: str
    numbers: Mapping[str, int]
    rounds: Sequence[Round]
    steps: int
    parts_up: Mapping[str, float]
    parts_down: Mapping[str, float]
    is_shared: bool
    accuracy: Mapping[str, float]
    own: Mapping[str, float]
    curve: Sequence[tuple[int, float]]
    repeats: int
    seconds: float

    @property
    def dimension(self) -> int:
        """How many numbers are trained."""
        return sum(self.numbers.values())

    @property
    def bytes_up(self) -> float:
        """Mean bytes of one node in one round."""
        sizes = [size for item in self.rounds for size in item.bytes_up.values()]
        return sum(sizes) / max(1, len(sizes))

    @property
    def bytes_down(self) -> float:
        """Mean bytes of one reference."""
        return sum(item.bytes_down for item in self.rounds) / max(1, len(self.rounds))

    @property
    def bytes_run(self) -> tuple[int, int]:
        """Bytes of the whole run: up from all nodes, and down."""
        up = sum(size for item in self.rounds for size in item.bytes_up.values())
        return up, sum(item.bytes_down for item in self.rounds)

    def bits(self, numbers: int) -> float:
        """Bits up for each of `numbers` numbers, a node and round."""
        return 8 * self.bytes_up / numbers

    @property
    def mean_accuracy(self) -> float:
        """Of the nodes at the end."""
        return sum(self.accuracy.values()) / max(1, len(self.accuracy))


def shares(total: float, numbers: Mapping[str, int]) -> dict[str, float]:
    """`total` split by the count of numbers."""
    count = sum(numbers.values())
    return {name: total * size / count for name, size in numbers.items()}


def part_names(results: Sequence[ArmResult]) -> list[str]:
    """The parts that any of these arms trains, in their usual order."""
    known = {name for result in results for name in result.numbers}
    return [name for name in (*PARTS, OTHER) if name in known]


def save_result(path: Path, result: ArmResult) -> None:
    """Keep a finished arm."""
    write_json(path, asdict(result))


def load_result(path: Path) -> ArmResult | None:
    """The finished arm that was kept, or None."""
    content: dict[str, Any] | None = read_json(path)
    if content is None:
        return None
    content["rounds"] = tuple(Round(**item) for item in content["rounds"])
    content["curve"] = tuple((int(version), value) for version, value in content["curve"])
    return ArmResult(**content)
