"""The protocol over a BLE connection, without I/O (SPEC.md section 7.4).

Frames form a stream that is cut into values, and each value is kept until the peer has it
(selective repeat). Values do not overtake each other on a BLE link, so a value is lost as soon as
one that left later has arrived; only the last ones before a pause need a timer.

`ValueReceiver` and `ValueSender` are the two directions, `BleProtocol` is one end of a session.
"""

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ternmesh.errors import WireError
from transports.ble import values
from transports.ble.values import (
    DATA_OVERHEAD,
    FRAME_MAX,
    WINDOW,
    Ask,
    BleHello,
    BleStatus,
    Data,
    Value,
)

LENGTH = struct.Struct("<H")  # before each frame in the stream
ASK_EVERY = 8  # values between two that request a status
PATIENCE_FIRST_S, PATIENCE_MIN_S, PATIENCE_MAX_S = 0.5, 0.1, 2.0
ROUND_TRIPS = 4  # the patience, in round trips
GAIN = 0.125  # weight of a measured round trip in their average
SILENCE_S = 10.0  # without a hello or progress; then the connection is given up
FULL_MAX_S = 60.0  # how long the peer may have no room


class ValueReceiver:
    """Puts values in order and cuts frames out of their stream.

    It holds at most `WINDOW` values out of order and one unfinished frame.
    """

    def __init__(self) -> None:
        self.frames_taken = 0  # since the start of this peer's program, modulo 2**32
        self.reading = True  # False: no credits are granted
        self.restart()

    def restart(self) -> None:
        """Begin a session; an unfinished frame is dropped, since the peer sends it again whole."""
        self._next = 0  # number of the first missing value, modulo 256
        self._ahead: dict[int, bytes] = {}
        self._stream = bytearray()

    @property
    def window(self) -> int:
        """How many values are accepted now from the first missing one on."""
        return WINDOW if self.reading else 0

    def take(self, data: Data) -> list[bytes]:
        """The frames that `data` completes; WireError where the stream holds no frames."""
        if (data.seq - self._next) % 256 < WINDOW:  # Else it was received before.
            self._ahead.setdefault(data.seq, data.payload)
        while (payload := self._ahead.pop(self._next, None)) is not None:
            self._stream += payload
            self._next = (self._next + 1) % 256
        return self._frames()

    def status(self) -> BleStatus:
        later = sum(1 << ((seq - self._next) % 256 - 1) for seq in self._ahead)
        return BleStatus(self._next, self.window, later)

    def _frames(self) -> list[bytes]:
        frames: list[bytes] = []
        while len(self._stream) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._stream)
            if not 1 <= length <= FRAME_MAX:
                if frames:
                    break  # Return the good frames; the next value leads to the error.
                raise WireError("frame", f"the stream has a frame of {length} bytes")
            end = LENGTH.size + length
            if len(self._stream) < end:
                break
            frames.append(bytes(self._stream[LENGTH.size : end]))
            del self._stream[:end]
            self.frames_taken = (self.frames_taken + 1) % 2**32
        return frames


@dataclass(slots=True)
class _Sent:
    payload: bytes
    end: int  # its end in the session's stream
    order: int = 0  # number of its latest transmission
    at: float | None = None  # when it was sent; None: repeated, so no round trip can be measured
    received: bool = False  # by the peer
    lost: bool = False  # it must be sent again


class ValueSender:
    """Cuts frames into values and keeps them until they are confirmed, over all sessions."""

    def __init__(self) -> None:
        self.resent = 0  # values that were sent again
        self.queued_bytes = 0  # of frames that are not confirmed
        self._frames: deque[bytes] = deque()
        self._patience_s = PATIENCE_FIRST_S
        self._taken = 0  # frames that the peer had before the first of these, modulo 2**32
        self.restart(None, WINDOW)

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def patience_s(self) -> float:
        """How long to wait for an answer; long without credits, since the peer announces them."""
        return self._patience_s if self._window else PATIENCE_MAX_S

    def offer(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self._append(frame)
            self._frames.append(frame)
            self.queued_bytes += len(frame)

    def restart(self, frames_taken: int | None, window: int) -> None:
        """Begin a session with `window` credits, at the first frame that the peer does not have.

        `frames_taken` (u32): how many frames it has in all; None where it does not know us.
        WireError for an impossible number.
        """
        if frames_taken is not None:
            confirmed = (frames_taken - self._taken) % 2**32
            if confirmed > len(self._frames):
                raise WireError("state", f"the peer cannot have {frames_taken} of our frames")
            self._drop(confirmed)
        self._taken = frames_taken or 0
        self._window = min(window, WINDOW)
        self._first = 0  # number of the oldest unconfirmed value, modulo 256
        self._orders = 0  # transmissions
        self._end = 0  # of the stream
        self._cut = 0  # how much of the stream was cut into values
        self._sent: deque[_Sent] = deque()
        self._unsent = bytearray()  # the rest of the stream
        self._ends: deque[int] = deque()  # of `_frames` in the stream
        for frame in self._frames:
            self._append(frame)

    def take(self, status: BleStatus, now: float) -> bool:
        """Take a status of the peer; True where it has more values than before."""
        confirmed = (status.next - self._first) % 256
        if confirmed > len(self._sent):
            return False  # an old status, or an impossible one
        self._window = min(status.window, WINDOW)
        self._first = status.next
        news = [sent for sent in self._pop(confirmed) if not sent.received]
        for index, sent in enumerate(self._sent):
            if index and status.later >> (index - 1) & 1 and not sent.received:
                sent.received = True
                news.append(sent)
        if not news:
            return False
        latest = max(news, key=lambda sent: sent.order)
        for sent in self._sent:
            sent.lost = not sent.received and (sent.lost or sent.order < latest.order)
        if latest.at is not None:
            wanted = min(max(ROUND_TRIPS * (now - latest.at), PATIENCE_MIN_S), PATIENCE_MAX_S)
            self._patience_s += GAIN * (wanted - self._patience_s)
        return True

    def values(self, value_max: int, now: float) -> list[Data]:
        """The values that may leave now, of at most `value_max` bytes; the last asks for status."""
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
            sent.order = self._orders
            sent.lost = False
            ask = count % ASK_EVERY == 0 or count == len(leaving)
            values.append(Data((self._first + index) % 256, ask, sent.payload))
        return values

    def overdue(self) -> Ask | None:
        """No status came in time: repeat the oldest value, or return the Ask to send."""
        if not self._sent:
            return Ask()
        self._sent[0].lost = True
        return None

    def _append(self, frame: bytes) -> None:
        self._unsent += LENGTH.pack(len(frame)) + frame
        self._end += LENGTH.size + len(frame)
        self._ends.append(self._end)

    def _pop(self, count: int) -> list[_Sent]:
        """Remove the `count` oldest values and the frames that end in them: they are confirmed."""
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


class BleProtocol:
    """One end of a link; each connection is a session, which the initiator opens with a hello.

    `identity` (1 to 2**32 - 1) and `session` (u16) are random numbers, new at each start of the
    program. `now` is in seconds of any steady clock. No input raises an error: refused values are
    counted, and `failed` holds the reason to end the connection.
    """

    def __init__(self, *, initiator: bool, identity: int, session: int) -> None:
        self.established = False
        self.failed: str | None = None
        self.refused = 0  # values
        self.refusal = ""  # reason of the latest
        self.sender = ValueSender()
        self._receiver = ValueReceiver()
        self._initiator = initiator
        self._identity = identity
        self._last_session = session
        self._peer_identity = 0
        self._session: int | None = None
        self._due: list[Value] = []  # control values that wait to leave
        self._status_due = False
        self._since = 0.0  # when the wait for an answer began
        self._deadline: float | None = None  # when to repeat the question
        self._full_since: float | None = None  # since when the peer has no room

    def connected(self, now: float) -> None:
        """Values can pass: begin a session."""
        self.disconnected()
        self.failed = None
        if self._initiator:
            self._last_session = self._session = (self._last_session + 1) % 2**16
            self._due = [self._hello()]
        self._wait(now)

    def disconnected(self) -> None:
        """End the session; unconfirmed frames wait for the next connection."""
        self.established = False
        self._session = None
        self._due = []
        self._status_due = False
        self._full_since = None
        self._deadline = None

    def set_reading(self, reading: bool) -> None:
        """Grant credits, or no more of them; values on their way are accepted in both cases."""
        self._status_due |= reading and not self._receiver.reading
        self._receiver.reading = reading

    def receive_value(self, value: bytes, now: float) -> list[bytes]:
        """The frames that a value completes; its bytes may be anything."""
        try:
            return self._take(values.decode(value, self._session), now)
        except WireError as error:
            self.refused += 1
            self.refusal = str(error)
            if error.reason == "frame":  # The values are sound, the stream is not.
                self._fail(str(error))
            return []

    def values_to_send(self, value_max: int, now: float) -> list[bytes]:
        """The values that must leave now, in order; each is returned once."""
        due, self._due = self._due, []
        if self.established:
            if self._status_due:
                due.append(self._receiver.status())
            due += self.sender.values(value_max, now)
            self._status_due = False
            if self._deadline is None and len(self.sender):
                self._wait(now)
        return [values.encode(value, self._session or 0) for value in due]

    def next_timeout(self) -> float | None:
        """When `handle_timeout` must be called, or None."""
        return self._deadline

    def handle_timeout(self, now: float) -> None:
        """Repeat the question; after `SILENCE_S` the connection has failed."""
        if self._deadline is None or now < self._deadline:
            return
        if now >= self._since + SILENCE_S:
            self._fail(self._silence())
            return
        self._deadline = now + self.sender.patience_s
        if not self.established:
            self._due = [self._hello()] if self._initiator else []
        elif (ask := self.sender.overdue()) is not None:
            self._due.append(ask)

    def _take(self, value: Value, now: float) -> list[bytes]:
        match value:
            case BleHello() if value.answer is self._initiator:
                self._take_hello(value)
            case Data() if self.established:
                self._status_due |= value.ask
                return self._receiver.take(value)
            case Ask() if self.established:
                self._status_due = True
            case BleStatus() if self.established:
                self._take_status(value, now)
            case _:
                raise WireError("state", f"a {type(value).__name__} is not expected now")
        return []

    def _take_status(self, status: BleStatus, now: float) -> None:
        """Take a status. A peer without room gets time, at most `FULL_MAX_S`."""
        if self.sender.take(status, now):
            self._full_since = None
            self._deadline = None
        elif status.window == 0:
            if self._full_since is None:
                self._full_since = now
            self._deadline = None
            if now >= self._full_since + FULL_MAX_S:
                self._fail(f"the peer has had no room for {FULL_MAX_S:g} s")
        else:
            self._full_since = None

    def _take_hello(self, hello: BleHello) -> None:
        """Begin the session of `hello`; the end that is no initiator answers each hello."""
        if self._initiator and hello.session != self._session:
            raise WireError("session", "an answer is to an earlier hello")
        if hello.identity == 0 or (hello.frames_taken == 0) != (hello.peer_identity == 0):
            raise WireError("state", "a hello has no identity, or counts frames of no identity")
        if not (self.established and hello.session == self._session):
            knows_us = hello.peer_identity == self._identity
            self.sender.restart(hello.frames_taken if knows_us else None, hello.window)
            self._receiver.restart()
            if hello.identity != self._peer_identity:
                self._peer_identity = hello.identity
                self._receiver.frames_taken = 0
            self._session = hello.session
            self.established = True
            self._full_since = None
            self._deadline = None
        if not self._initiator:
            self._due = [self._hello()]

    def _hello(self) -> BleHello:
        assert self._session is not None
        frames_taken = self._receiver.frames_taken
        return BleHello(
            answer=not self._initiator,
            session=self._session,
            identity=self._identity,
            peer_identity=self._peer_identity if frames_taken else 0,
            frames_taken=frames_taken,
            window=self._receiver.window,
        )

    def _wait(self, now: float) -> None:
        self._since = now
        self._deadline = now + self.sender.patience_s

    def _fail(self, sentence: str) -> None:
        self.disconnected()
        self.failed = sentence

    def _silence(self) -> str:
        if self.established:
            what = "the peer is silent, or the same value is lost again and again"
        elif self._initiator:
            what = "the peer did not answer our hello: is it a ternmesh bridge?"
        else:
            what = "the peer sent no hello: is it a ternmesh node?"
        return f"{what} (last refusal: {self.refusal})" if self.refusal else what
