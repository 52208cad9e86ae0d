"""One object on its way out, to one receiver or to many: which symbols are due, and who has it."""

import operator
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from ternmesh.errors import WireError
from ternmesh.link.code import INDEX_END, Layout
from ternmesh.link.frames import Offer
from ternmesh.link.records import Queued

REPAIRS_BLOCK = 64  # repair symbols of each generation that are reserved at once


@dataclass(slots=True)
class Sending:
    """The state of one transfer. Times in seconds.

    A burst is what was asked for; when its last symbol has left, the receivers are heard. `needs`
    has what each has said since then.
    """

    queued: Queued
    offer: Offer
    layout: Layout
    turn: int  # how many began in its lane before it
    repairs: int = 0  # ordinals below it were reserved: they may have been sent before a restart
    next_repair: list[int] = field(default_factory=list)
    queue: deque[int] = field(default_factory=deque)
    needs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    offer_to: list[str] = field(default_factory=list)  # whom to send it, before symbols
    begun: bool = False  # whether something may have been sent
    at: float | None = None  # when to act if not all have spoken
    attempts: int = 0
    heard_at: float = inf  # when a receiver had come on; or when the first frame left
    answers: int = 0  # since then
    least: dict[str, tuple[int, int]] = field(default_factory=dict)  # of the needs of each receiver

    @property
    def waiting(self) -> list[str]:
        """The receivers that lack something."""
        return [name for name in self.queued.receivers if name not in self.done]

    @property
    def has_frames(self) -> bool:
        """Whether anything may leave now."""
        return bool(self.offer_to or self.queue)

    def whom_to_ask(self) -> str:
        """All that hear it; or one after the other where most would only say that they are done."""
        waiting = self.waiting
        if 2 * len(waiting) > len(self.queued.receivers):
            return self.queued.peer
        return waiting[self.attempts % len(waiting)]

    def check(self, needs: Sequence[int]) -> None:
        """WireError where no receiver of this object can have these needs."""
        sizes = [len(self.layout.source(g)) for g in range(self.layout.generations)]
        if len(needs) > len(sizes) or any(map(operator.gt, needs, sizes)):
            raise WireError("link", "a status asks for more than the object has")

    def has_progress(self, peer: str, needs: tuple[int, ...]) -> bool:
        """Whether a receiver has come on: its needs are half of what they were, or none.

        Also if another generation is the first that lacks anything: of those behind it a status may
        be silent. Who always lacks something cannot say so often.
        """
        first = next((g for g, need in enumerate(needs) if need), self.layout.generations)
        before, least = self.least.get(peer, (0, self.layout.count))
        has_progress = first > before or 2 * sum(needs) <= least
        if has_progress:
            self.least[peer] = max(first, before), min(sum(needs), least)
        return has_progress

    def send_source(self) -> None:
        """Queue the object itself, for receivers that know nothing of it."""
        self.queue.extend(range(self.layout.count))

    def ask_for(self, needs: Sequence[int]) -> None:
        """Queue as many symbols of each generation as are needed.

        A generation of which nothing was held is sent as it is, others as repair symbols.
        """
        for generation, need in enumerate(needs):
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
