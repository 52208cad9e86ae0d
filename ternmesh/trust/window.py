"""The replay window: which counters of a sender have been used. SPEC.md section 9.4.

It is asked after the tag has been checked, never before: who cannot seal cannot move it.
"""

from dataclasses import dataclass
from enum import Enum

from ternmesh.wire.seal import COUNTER_BITS

SIZE = 1024
COUNTER_MAX = (1 << 64) - 1
MARK_SIZE = 4
_ALL = (1 << SIZE) - 1
_SPAN = 1 << COUNTER_BITS


class Verdict(Enum):
    """What a window thinks of a frame whose tag is right."""

    NEW = "new"
    REPLAY = "replay"
    CLONE = "clone"  # another frame under a counter that was used: two senders have one key


@dataclass(frozen=True, slots=True)
class WindowState:
    """Bit i of `seen` stands for counter `highest - i`; what is below all bits counts as seen."""

    highest: int
    seen: int


class Window:
    """The last 1,024 counters of one sender.

    The first bytes of their tags are remembered too (not over restarts), so that a second sender
    with the same key is told from one who repeats the first one's frames.
    """

    def __init__(self, state: WindowState) -> None:
        self._highest, self._seen = state.highest, state.seen
        self._marks: bytearray | None = None

    @property
    def state(self) -> WindowState:
        """What must survive a restart."""
        return WindowState(self._highest, self._seen)

    @property
    def highest(self) -> int:
        """The highest counter so far."""
        return self._highest

    def whole(self, low: int) -> int:
        """The counter nearest to the highest so far whose low 24 bits are `low`."""
        return whole_counter(self._highest, low)

    def take(self, counter: int, mark: bytes) -> Verdict:
        """Enter a frame with a right tag; `mark` is the first 4 bytes of that tag."""
        if self._marks is None:
            self._marks = bytearray(MARK_SIZE * SIZE)
        place = MARK_SIZE * (counter % SIZE)
        ahead = counter - self._highest
        if ahead > 0:
            self._advance(ahead)
        elif ahead <= -SIZE:
            return Verdict.REPLAY
        elif self._seen >> -ahead & 1:
            known = self._marks[place : place + MARK_SIZE]
            return Verdict.REPLAY if known in (mark, bytes(MARK_SIZE)) else Verdict.CLONE
        self._seen |= 1 << max(0, -ahead)
        self._marks[place : place + MARK_SIZE] = mark
        return Verdict.NEW

    def _advance(self, ahead: int) -> None:
        self._seen = self._seen << ahead & _ALL if ahead < SIZE else 0
        self._highest += ahead


def whole_counter(near: int, low: int) -> int:
    """The counter nearest to `near` whose low 24 bits are `low`."""
    counter = near + (low - near + _SPAN // 2) % _SPAN - _SPAN // 2
    if counter < 0:
        return counter + _SPAN
    return counter if counter <= COUNTER_MAX else counter - _SPAN


def closed_window(counter: int) -> Window:
    """A window that has seen everything up to `counter`."""
    return Window(WindowState(counter, _ALL))


def open_window(counter: int) -> Window:
    """A window that has seen `counter` alone."""
    return Window(WindowState(counter, 1))
