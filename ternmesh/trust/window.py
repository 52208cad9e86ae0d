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

    def __init__(self, state: WindowState, mark: bytes = b"") -> None:
        self._highest, self._seen = state.highest, state.seen
        self._marks: bytearray | None = None
        if mark:  # of the frame under the highest counter
            self._set_mark(state.highest, mark)

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
        ahead = counter - self._highest
        if ahead > 0:
            self._advance(ahead)
        elif ahead <= -SIZE:
            return Verdict.REPLAY
        elif self._seen >> -ahead & 1:
            is_same = self._mark(counter) in (mark, bytes(MARK_SIZE))
            return Verdict.REPLAY if is_same else Verdict.CLONE
        self._seen |= 1 << max(0, -ahead)
        self._set_mark(counter, mark)
        return Verdict.NEW

    def _mark(self, counter: int) -> bytes:
        """The mark of a counter of the window, zeros where it is not known."""
        place = MARK_SIZE * (counter % SIZE)
        return bytes((self._marks or bytes(MARK_SIZE * SIZE))[place : place + MARK_SIZE])

    def _set_mark(self, counter: int, mark: bytes) -> None:
        if self._marks is None:
            self._marks = bytearray(MARK_SIZE * SIZE)
        place = MARK_SIZE * (counter % SIZE)
        self._marks[place : place + MARK_SIZE] = mark

    def _advance(self, ahead: int) -> None:
        self._seen = self._seen << ahead & _ALL if ahead < SIZE else 0
        self._highest += ahead


def whole_counter(near: int, low: int) -> int:
    """The counter nearest to `near` whose low 24 bits are `low`."""
    counter = near + (low - near + _SPAN // 2) % _SPAN - _SPAN // 2
    if counter < 0:
        return counter + _SPAN
    return counter if counter <= COUNTER_MAX else counter - _SPAN


def closed_window(counter: int, mark: bytes = b"") -> Window:
    """A window that has seen everything up to `counter`, whose frame may have a mark."""
    return Window(WindowState(counter, _ALL), mark)


def open_window(counter: int, mark: bytes = b"") -> Window:
    """A window that has seen `counter` alone, whose frame may have a mark."""
    return Window(WindowState(counter, 1), mark)
