"""The conversation over a BLE connection, without I/O (SPEC.md section 7.4).

`now` is in seconds of any steady clock. Whatever arrives, nothing is raised: what is refused is
counted, and what cannot go on is said in `failed`.
"""

from ternmesh.errors import WireError
from transports.ble import values
from transports.ble.receiver import Receiver
from transports.ble.sender import Sender
from transports.ble.values import Ask, Data, Hello, Status, Value

SILENCE_S = 10.0  # without a greeting or progress; then the connection is given up
FULL_MAX_S = 60.0  # how long the other end may say that it has no room


class BleProtocol:
    """One end; the initiator greets, and each connection is a session of its own.

    `identity` (1 to 2**32 - 1) and `session` (u16) are random numbers, new at each start.
    """

    def __init__(self, *, initiator: bool, identity: int, session: int) -> None:
        self.established = False
        self.failed: str | None = None  # why this connection should be ended
        self.refused = 0  # values that were not believed
        self.refusal = ""  # the latest reason
        self.sender = Sender()
        self._receiver = Receiver()
        self._initiator = initiator
        self._identity = identity
        self._last_session = session
        self._peer_identity = 0
        self._session: int | None = None
        self._due: list[Value] = []
        self._status_due = False
        self._since = 0.0  # waiting for an answer
        self._deadline: float | None = None  # to do something about it
        self._full_since: float | None = None  # the other end has no room

    def connected(self, now: float) -> None:
        """Values can pass: begin a session."""
        self.disconnected()
        self.failed = None
        if self._initiator:
            self._last_session = self._session = (self._last_session + 1) % 2**16
            self._due = [self._hello()]
        self._wait(now)

    def disconnected(self) -> None:
        """The connection ended; frames that were not confirmed wait for the next."""
        self.established = False
        self._session = None
        self._due = []
        self._status_due = False
        self._full_since = self._deadline = None

    def set_reading(self, reading: bool) -> None:
        """Grant credits, or none more; what is on its way is taken either way."""
        self._status_due |= reading and not self._receiver.reading
        self._receiver.reading = reading

    def receive_value(self, value: bytes, now: float) -> list[bytes]:
        """Take a value, which may be anything; returns the frames that it completed."""
        try:
            return self._take(values.decode(value, self._session), now)
        except WireError as error:
            self.refused += 1
            self.refusal = str(error)
            if error.reason == "frame":  # Values are sound and in order, but not what they hold.
                self._fail(str(error))
            return []

    def values_to_send(self, value_max: int, now: float) -> list[bytes]:
        """What should leave now, in order; handed out once."""
        due, self._due = self._due, []
        if self.established:
            if self._status_due:
                due.append(self._receiver.status())
            due += self.sender.values(value_max, now)
            self._status_due = False
            if self._deadline is None and self.sender.waiting:
                self._wait(now)
        return [values.encode(value, self._session or 0) for value in due]

    def next_timeout(self) -> float | None:
        """When `handle_timeout` wants to be called, or None."""
        return self._deadline

    def handle_timeout(self, now: float) -> None:
        """Repeat what was not answered; too often, and the connection has failed."""
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
            case Hello() if value.answer is self._initiator:
                self._greet(value)
            case Data() if self.established:
                self._status_due |= value.ask
                return self._receiver.take(value)
            case Ask() if self.established:
                self._status_due = True
            case Status() if self.established:
                self._note(value, now)
            case _:
                raise WireError("state", f"a {type(value).__name__} is out of place here")
        return []

    def _note(self, status: Status, now: float) -> None:
        """Learn what came of our values. An end that is full is given time, but not for ever."""
        if self.sender.take(status, now):
            self._full_since = self._deadline = None
        elif status.window == 0:
            since = self._full_since = now if self._full_since is None else self._full_since
            self._deadline = None
            if now >= since + FULL_MAX_S:
                self._fail(f"the other end has had no room for {FULL_MAX_S:g} s")
        else:
            self._full_since = None

    def _greet(self, hello: Hello) -> None:
        """Begin the session of `hello`; the greeted end answers, each time it is greeted."""
        if self._initiator and hello.session != self._session:
            raise WireError("session", "an answer is not to our latest hello")
        if hello.identity == 0 or (hello.frames_taken == 0) != (hello.peer_identity == 0):
            raise WireError("state", "a hello is from nobody, or counts nobody's frames")
        if not (self.established and hello.session == self._session):
            knows_us = hello.peer_identity == self._identity
            self.sender.restart(hello.frames_taken if knows_us else None, hello.window)
            self._receiver.restart()
            if hello.identity != self._peer_identity:
                self._peer_identity = hello.identity
                self._receiver.frames_taken = 0
            self._session = hello.session
            self.established = True
            self._full_since = self._deadline = None
        if not self._initiator:
            self._due = [self._hello()]

    def _hello(self) -> Hello:
        assert self._session is not None
        taken, window = self._receiver.frames_taken, self._receiver.window
        of_whom = self._peer_identity if taken else 0
        return Hello(not self._initiator, self._session, self._identity, of_whom, taken, window)

    def _wait(self, now: float) -> None:
        self._since, self._deadline = now, now + self.sender.patience_s

    def _fail(self, sentence: str) -> None:
        self.disconnected()
        self.failed = sentence

    def _silence(self) -> str:
        if self.established:
            what = "the other end is silent, or the same value is lost again and again"
        elif self._initiator:
            what = "the other end did not answer our hello: is it a ternmesh bridge?"
        else:
            what = "the other end said no hello: is it a ternmesh node?"
        return f"{what} (last refusal: {self.refusal})" if self.refusal else what
