"""One object on its way in: its symbols, and when its sender should hear of them."""

from dataclasses import dataclass, field

from ternmesh.link.coder import Decoder
from ternmesh.link.frames import Offer

GAPS = 4  # times the usual distance of symbols: so long a silence is the end of a burst
SYMBOL_COST = 128  # bytes of memory beside a symbol


@dataclass(slots=True)
class Receiving:
    """The state of one transfer from one peer. Times in seconds; `at` is when to speak."""

    offer: Offer
    decoder: Decoder
    memory_bytes: int  # at most
    at: float | None = None
    attempts: int = 0
    moved_at: float = 0.0
    gap_s: float = 0.0  # between symbols, smoothed

    def note_arrival(self, now: float) -> None:
        """A symbol arrived: learn how fast they come."""
        gap_s = now - self.moved_at
        self.gap_s = gap_s if self.gap_s == 0.0 else 0.75 * self.gap_s + 0.25 * gap_s
        self.moved_at, self.attempts = now, 0


@dataclass(slots=True)
class Early:
    """Symbols in a slot whose offer was lost, until it is sent again."""

    symbols: dict[int, bytes] = field(default_factory=dict)
    memory_bytes: int = 0  # about
    at: float | None = None
    attempts: int = 0
    moved_at: float = 0.0

    def keep(self, index: int, data: bytes, now: float) -> None:
        """Hold a symbol."""
        self.attempts, self.moved_at = 0, now
        if index not in self.symbols:
            self.symbols[index] = data
            self.memory_bytes += len(data) + SYMBOL_COST
