"""Frames out: a stream cut into values, each kept until the other end has it.

Selective repeat. Values do not overtake each other on a BLE link, so a value is lost as soon as one
that left later has arrived; only the last ones before a pause need a timer.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ternmesh.errors import WireError
from transports.ble.receiver import LENGTH
from transports.ble.values import DATA_OVERHEAD, WINDOW, Ask, Data, Status

ASK_EVERY = 8  # values between two that ask for a status
PATIENCE_FIRST_S, PATIENCE_MIN_S, PATIENCE_MAX_S = 0.5, 0.1, 2.0
ROUND_TRIPS = 4  # the patience, in round trips
GAIN = 0.125  # of each round trip that is measured in their average


@dataclass(slots=True)
class _Sent:
    payload: bytes
    end: int  # where it ends in the session's stream
    order: int = 0  # counts transmissions: that of the latest
    at: float | None = None  # when it was sent; None: more than once, so an answer says nothing
    here: bool = False  # the other end has it
    lost: bool = False  # it is to be sent again


class Sender:
    """Frames in order, until they are confirmed; they outlive a session."""

    def __init__(self) -> None:
        self.resent = 0  # values
        self.queued_bytes = 0  # of frames that are not confirmed
        self._frames: deque[bytes] = deque()
        self._patience_s = PATIENCE_FIRST_S
        self._taken = 0  # how many frames the other end had before the first of these, mod 2**32
        self.restart(None, WINDOW)

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def waiting(self) -> bool:
        """Whether anything is unconfirmed."""
        return bool(self._frames)

    @property
    def patience_s(self) -> float:
        """How long to wait for an answer; long without credits, which are announced."""
        return self._patience_s if self._window else PATIENCE_MAX_S

    def offer(self, frames: Sequence[bytes]) -> None:
        """Queue frames for sending."""
        for frame in frames:
            self._append(frame)
            self._frames.append(frame)
            self.queued_bytes += len(frame)

    def restart(self, frames_taken: int | None, window: int) -> None:
        """Begin a session with `window` credits, at the first frame that the other end has not.

        It has taken `frames_taken` of ours in all (u32), or None where it does not know us.
        WireError where that cannot be.
        """
        if frames_taken is not None:
            confirmed = (frames_taken - self._taken) % 2**32
            if confirmed > len(self._frames):
                raise WireError("state", f"it cannot have taken {frames_taken} frames of ours")
            self._drop(confirmed)
        self._taken = frames_taken or 0
        self._window = min(window, WINDOW)
        self._first = self._orders = self._end = self._cut = 0
        self._sent: deque[_Sent] = deque()
        self._unsent = bytearray()
        self._ends: deque[int] = deque()  # of `_frames` in the stream
        for frame in self._frames:
            self._append(frame)

    def take(self, status: Status, now: float) -> bool:
        """Learn what the other end has; True where that is more than before."""
        confirmed = (status.next - self._first) % 256
        if confirmed > len(self._sent):
            return False  # older than what we know, or nonsense
        self._window = min(status.window, WINDOW)
        self._first = status.next
        news = [sent for sent in self._pop(confirmed) if not sent.here]
        for index, sent in enumerate(self._sent):
            if index and status.later >> (index - 1) & 1 and not sent.here:
                sent.here = True
                news.append(sent)
        if not news:
            return False
        latest = max(news, key=lambda sent: sent.order)
        for sent in self._sent:
            sent.lost = not sent.here and (sent.lost or sent.order < latest.order)
        if latest.at is not None:
            wanted = min(max(ROUND_TRIPS * (now - latest.at), PATIENCE_MIN_S), PATIENCE_MAX_S)
            self._patience_s += GAIN * (wanted - self._patience_s)
        return True

    def values(self, value_max: int, now: float) -> list[Data]:
        """What may leave now, each at most `value_max` bytes long; the last asks for a status."""
        while self._unsent and len(self._sent) < self._window:
            payload = bytes(self._unsent[: value_max - DATA_OVERHEAD])
            del self._unsent[: len(payload)]
            self._cut += len(payload)
            self._sent.append(_Sent(payload, self._cut, lost=True))
        leaving = [(i, sent) for i, sent in enumerate(self._sent) if sent.lost]
        values = []
        for count, (index, sent) in enumerate(leaving, 1):
            self._orders += 1
            self.resent += sent.order > 0
            sent.at = now if sent.order == 0 else None
            sent.order, sent.lost = self._orders, False
            ask = count % ASK_EVERY == 0 or count == len(leaving)
            values.append(Data((self._first + index) % 256, ask, sent.payload))
        return values

    def overdue(self) -> Ask | None:
        """Nothing was heard for long: send the oldest value again, or the Ask that is returned."""
        if not self._sent:
            return Ask()
        self._sent[0].lost = True
        return None

    def _append(self, frame: bytes) -> None:
        self._unsent += LENGTH.pack(len(frame)) + frame
        self._end += LENGTH.size + len(frame)
        self._ends.append(self._end)

    def _pop(self, count: int) -> list[_Sent]:
        """The `count` oldest values, which are confirmed, as are the frames that end in them."""
        popped = [self._sent.popleft() for _ in range(count)]
        frames = 0
        while popped and self._ends and self._ends[0] <= popped[-1].end:
            self._ends.popleft()
            frames += 1
        self._drop(frames)
        self._taken = (self._taken + frames) % 2**32
        return popped

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self.queued_bytes -= len(self._frames.popleft())
