"""The measurements of a demo run."""

from collections.abc import Mapping
from dataclasses import dataclass

from ternmesh_store.host_store import StoredRound

BOARD_HEADS = ("board", "before", "after", "bytes sent in all", "rounds missed")


@dataclass(frozen=True, slots=True)
class DemoRecord:
    """A whole run."""

    boards: tuple[str, ...]
    accuracy: Mapping[str, Mapping[int, float]]  # by board and version of the global adapter
    rounds: tuple[StoredRound, ...]
    dimension: int  # of the adapter vector
    seconds: float
    bearer: str  # the links in words
    airtime_s: Mapping[str, float] | None = None  # by radio, None without radios

    @property
    def raw_bytes(self) -> int:
        """The bytes of one update as plain float32."""
        return 4 * self.dimension

    @property
    def bytes_up(self) -> float:
        """Mean wire bytes of one board in one round."""
        return _mean([size for item in self.rounds for size in item.bytes_up.values()])

    @property
    def bytes_down(self) -> float:
        """Mean wire bytes of one global update, sent once to all boards."""
        return _mean([item.bytes_down for item in self.rounds])

    def board_rows(self) -> list[tuple[str, ...]]:
        """A row of texts for each board, with the columns of BOARD_HEADS."""
        last = self.rounds[-1].version
        return [
            (
                board,
                f"{self.accuracy[board][0]:.0%}",
                f"{self.accuracy[board][last]:.0%}",
                f"{sum(item.bytes_up.get(board, 0) for item in self.rounds):,}",
                str(sum(board in item.missing for item in self.rounds)),
            )
            for board in self.boards
        ]

    def mean_accuracy(self, version: int) -> float:
        """The boards' mean accuracy with one version of the global adapter."""
        return _mean([self.accuracy[board][version] for board in self.boards])


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
