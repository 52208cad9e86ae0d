"""One object on its way out, to one receiver or to many: which symbols are due, and who has it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ternmesh.link.code import Layout
from ternmesh.link.frames import Offer
from ternmesh.link.records import Queued

REPAIRS_BLOCK = 64  # repair symbols of each generation that are reserved at once
INDEX_END = 1 << 16


@dataclass(slots=True)
class Sending:
    """The state of one transfer. Times in seconds.

    A burst is what was asked for; when its last symbol has left, the receivers are heard. `needs`
    has what each has said since then.
    """

    queued: Queued
    offer: Offer
    layout: Layout
    repairs: int = 0  # ordinals below it were reserved: they may have been sent before a restart
    next_repair: list[int] = field(default_factory=list)
    queue: deque[int] = field(default_factory=deque)
    needs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    offer_due: bool = True
    begun: bool = False
    at: float | None = None  # when to act if not all have spoken
    attempts: int = 0
    heard_at: float = 0.0

    @property
    def waiting(self) -> list[str]:
        """The receivers that lack something."""
        return [name for name in self.queued.receivers if name not in self.done]

    @property
    def has_frames(self) -> bool:
        """Whether anything may leave now."""
        return self.offer_due or bool(self.queue)

    def send_source(self) -> None:
        """Queue the object itself, for receivers that know nothing of it."""
        self.queue.extend(range(self.layout.count))

    def ask_for(self, needs: Sequence[int]) -> None:
        """Queue as many symbols of each generation as are needed.

        A generation of which nothing was held is sent as it is, others as repair symbols.
        """
        for generation, need in enumerate(needs[: self.layout.generations]):
            source = self.layout.source(generation)
            if need >= len(source):
                self.queue.extend(source)
            else:
                self.queue.extend(self._repair(generation) for _ in range(need))

    def reserve(self) -> int | None:
        """The limit of repair symbols to put on disk before the next ones leave, if it moved."""
        highest = max(self.next_repair, default=0)
        if highest <= self.repairs:
            return None
        self.repairs = -(-highest // REPAIRS_BLOCK) * REPAIRS_BLOCK
        return self.repairs

    def _repair(self, generation: int) -> int:
        """A symbol of a generation that was not sent before; after thousands, an old one."""
        ordinal = self.next_repair[generation]
        self.next_repair[generation] += 1
        first, step = self.layout.count + generation, self.layout.generations
        return first + step * (ordinal % (-(-(INDEX_END - first) // step)))


def most_needed(needs: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """For each generation what the neediest receiver lacks."""
    longest = max(map(len, needs), default=0)
    return tuple(max(n[g] if g < len(n) else 0 for n in needs) for g in range(longest))
