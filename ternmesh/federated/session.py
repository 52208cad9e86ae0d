"""The session between a node and its host, sans-I/O; federated and split training use it.

A node says hello, with longer and longer pauses, until the host answers with a welcome. The welcome
holds the node's address, the run and its plan. A node says hello again when the host refuses what
it sends, or when it doubts that the host knows it. A welcome of another run starts the node anew.

    NodeSession <── NodeProtocol (federated.node), SplitBoard (split.board)
    HostSession (host_session) <── HostProtocol (federated.host), SplitHost (split.host)

The program calls `receive_frames` and `handle_timeout`. It then takes all events with
`next_event`, makes them durable, and sends `frames_to_send`. Time is an argument, in seconds of any
clock that does not jump. The shape is aioquic's.
"""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from ternmesh.errors import WireError
from ternmesh.federated.events import (
    FRAME_SIZE,
    OLD_MEMBERS,
    REFUSED_SHOWN_MAX,
    Decommissioned,
    Refused,
    SecurityChanged,
    SessionEvent,
    known_reason,
)
from ternmesh.federated.management import BoardManagement
from ternmesh.federated.send_queue import SealedQueue
from ternmesh.security import notices
from ternmesh.security.authenticator import SecurityLayer
from ternmesh.security.membership import HOST
from ternmesh.security.session import HostRotated, ListNumber
from ternmesh.timers import Backoff, GrowingPause, RateLimiter, TimerSettings
from ternmesh.wire import control
from ternmesh.wire.control import Control, Hello, Inquiry, Refusal, Settings, Welcome
from ternmesh.wire.frame import BROADCAST, DOWN, UNASSIGNED
from ternmesh.wire.knowledge import KIND as KNOWLEDGE
from ternmesh.wire.release import OFFER, SYMBOL
from ternmesh.wire.update import MODEL_SIZE

REASONS_MAX = 64  # reasons of refusals that a node counts apart
LIST_REPORT_MIN_S = 60.0  # between two reports of an old membership list
REVOKED_HELLO_S = 3600.0  # between hellos of a node that was revoked: it may be enrolled again
NOTICE_MIN_S = 1.0  # between two checks of a notice: each costs a check of a signature

Event = TypeVar("Event")


class _Plan(Protocol):
    @property
    def frame_mtu(self) -> int: ...


PlanT = TypeVar("PlanT", bound=_Plan)
TakeBody = Callable[[bytes, float], None]  # a body of a release or knowledge packet, and the time


class Session(ABC, Generic[Event]):
    """The part common to node and host. `counter` is the first frame counter never reserved."""

    def __init__(self, run: bytes, counter: int, security: SecurityLayer) -> None:
        self.run = run
        self.refused: Counter[str] = Counter()  # by reason
        self._sealing = security.sealing
        self._authenticator = security.authenticator
        self._sealing.bind(run)
        self._outgoing = SealedQueue(counter, security.sealing)
        self._events: deque[Event | SessionEvent] = deque()

    def next_event(self) -> Event | SessionEvent | None:
        """Return the next event to save or handle; None if there are no more."""
        return self._outgoing.next_event(self._events)

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:  # noqa: ARG002
        """Return sealed frames by peer. Call this after the events are on disk."""
        return self._outgoing.drain()

    def _show_refusal(self, peer: str, reason: str) -> None:
        self.refused[reason] += 1
        if len(self._events) < REFUSED_SHOWN_MAX:
            self._events.append(Refused(peer, reason))


class NodeSession(Session[Event], Generic[Event, PlanT]):
    """The node's side. `instance` is 8 random bytes of this process; `rng` only jitters timers.

    `run` is the run that the node knows. `pace` fits the timers to the transport. A subclass also
    has `next_timeout` and `handle_timeout`.
    """

    def __init__(
        self,
        name: str,
        model_hash: bytes,
        samples: int,
        instance: bytes,
        rng: np.random.Generator,
        run: bytes,
        counter: int,
        security: SecurityLayer,
        pace: TimerSettings,
        frame_max: Callable[[], int],
    ) -> None:
        super().__init__(run, counter, security)
        self.name = name
        self.samples = samples  # how many samples the node trains on
        self.plan: PlanT | None = None
        self.address = UNASSIGNED
        self.joined = False  # the host knows this node under `address`
        self.revoked = False  # the host has revoked the key of this node
        self.phase = control.GATHERING  # the phase of the run in the host's last message
        self.management = BoardManagement()  # a program that takes settings has one of its own
        self.take_release: TakeBody | None = None  # None: this node takes no releases
        self.take_knowledge: TakeBody | None = None  # None: this node learns of its own samples
        self._frame_max = frame_max
        self._model_hash = model_hash
        self._instance = instance  # a welcome must name it
        self._has_asked = False  # a hello was sent and no welcome has answered
        self._host_process: bytes | None = None  # names the process of the host; None: none known
        self._notices = RateLimiter(NOTICE_MIN_S)
        self._host_notices = GrowingPause(notices.NOTICE_FIRST_S, notices.NOTICE_LONGEST_S)
        self._clear: list[bytes] = []  # frames to send without a seal
        self._list_floor = self._authenticator.list_number  # from earlier processes of the host
        self._list_reports = RateLimiter(LIST_REPORT_MIN_S)
        # Timers; subclasses add theirs
        self._hello_timer = Backoff(pace.hello_s, pace.hello_longest_s, rng)
        self._refused_timer = Backoff(pace.hello_s, pace.hello_longest_s, rng)  # to the next hello

    # What a subclass implements

    @abstractmethod
    def _held(self) -> tuple[int, bytes]:
        """Return the version and the hash to name in a hello."""

    @abstractmethod
    def _read_plan(self, numbers: tuple[int, ...]) -> PlanT:
        """Return the plan of a welcome. Raises WireError if it does not fit this node."""

    @abstractmethod
    def _take_run(self, run: bytes, plan: PlanT) -> None:
        """Handle a new run or plan: set `plan`; if the node starts anew, call `_change_run`."""

    @abstractmethod
    def _welcomed(self, message: Welcome, plan: PlanT, now: float) -> None:
        """Handle the welcome: the host has registered this node."""

    @abstractmethod
    def _receive_body(self, address: int, body: bytes, now: float) -> None:
        """Handle a body that is no control message. Raises WireError."""

    def _receive_control(self, message: Control, now: float) -> None:  # noqa: ARG002
        """Handle a message other than welcome and refusal. Raises WireError."""
        raise WireError("kind", f"a node takes no {type(message).__name__}")

    def _host_restarted(self, now: float) -> None:
        """Handle the first frame of another process of the host: it may have another run."""
        self._hello_timer.soon(now)

    def _frames_taken(self) -> None:
        """Act after all frames of a `receive_frames` call were read."""

    # What the program calls

    def start(self, now: float) -> None:
        """Begin: send a hello at once."""
        self._say_hello(now)
        self._ask(now)

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Handle received frames. A wrong frame is counted in `refused` and changes nothing."""
        for frame in frames:
            try:
                if notices.is_rotation(frame) or (
                    notices.is_notice(frame) and self._notices.allow(peer, now)
                ):
                    self._receive_notice(frame, now)
                else:
                    self._receive(peer, frame, now)
            except WireError as error:
                self._refuse(peer, error.reason)
                if error.reason == "seal":
                    self._tell_old_host(frame, now)
        self._frames_taken()
        self._ask(now)

    # Receiving

    def _receive(self, peer: str, frame: bytes, now: float) -> None:
        header, body = self._sealing.open(peer, frame)
        self._note_process(self._sealing.process_of(peer), now)
        if self._sealing.is_own(header.address, body):
            return
        body = self._authenticator.open_body(self.run, header.address, body)
        if header.address not in (UNASSIGNED, BROADCAST, self._own_address):
            raise WireError("context", "a frame for another node")
        if body[0] in (OFFER, SYMBOL) and header.address == BROADCAST:
            if self.take_release is not None:
                self.take_release(body, now)
            return
        if body[0] == KNOWLEDGE and header.address == BROADCAST:
            if self.take_knowledge is not None:
                self.take_knowledge(body, now)
            return
        if body[0] != control.KIND:
            self._receive_body(header.address, body, now)
            return
        match control.read_control(body):
            case Welcome() as message:
                self._receive_welcome(message, now)
            case Refusal() as message:
                self._receive_refusal(message, now)
            case Inquiry() | Settings() as message if header.address == UNASSIGNED:
                self._manage(message, now)
            case message:
                self._receive_control(message, now)

    def send_release_status(self, body: bytes) -> None:
        """Tell the host how far this node is with a release."""
        self._outgoing.push(HOST, self.address if self.joined else UNASSIGNED, [body])

    def _manage(self, message: Inquiry | Settings, now: float) -> None:
        was_paused = self.management.paused
        for answer in self.management.receive(message, now):
            if isinstance(answer, bytes):
                self._outgoing.push(HOST, UNASSIGNED, [answer])
            else:
                self._events.append(answer)
                if was_paused and not self.management.paused:
                    self._hello_timer.soon(now)  # rounds wait for this node again

    def _note_process(self, process: bytes, now: float) -> None:
        """Note from which process of the host a frame came that has opened."""
        if self.revoked:  # the host seals for this node: it may be a member again
            self.revoked = False
            self._hello_timer.soon(now)
        if process != self._host_process:
            is_restart = self._host_process is not None
            self._host_process = process
            if is_restart:
                self._list_floor = self._authenticator.list_number
                self._host_restarted(now)

    def _receive_notice(self, frame: bytes, now: float) -> None:
        """Handle what the host says in the clear."""
        match self._authenticator.read_notice(frame, now):
            case HostRotated() as change:
                self._events.append(SecurityChanged((change,)))
                self._outgoing.discard(UNASSIGNED)
                self._hello_timer.soon(now)
            case notices.DECOMMISSIONED:
                self._events.append(Decommissioned())
                self._leave(now)
            case notices.REVOKED:
                self._leave(now)

    def _tell_old_host(self, frame: bytes, now: float) -> None:
        """Answer what another key than the host's has sealed: it may be of an old copy of it."""
        rotations = self._authenticator.host_rotations
        is_first_tag = frame[1:3] == UNASSIGNED.to_bytes(2, "little")
        if rotations and is_first_tag and self._host_notices.allow(b"", now):
            self._clear = notices.rotation_frames(rotations)

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:
        clear, self._clear = self._clear, []
        return [(HOST, [frame]) for frame in clear] + super().frames_to_send(now)

    def _leave(self, now: float) -> None:
        """Send nothing but a rare hello: the host has revoked this node's key."""
        if not self.revoked:
            self.revoked = True
            self.joined = False
            self._outgoing.discard(self.address)
            self._outgoing.discard(UNASSIGNED)
            self._hello_timer.at = now + REVOKED_HELLO_S
        self._refuse("", "revoked")

    @property
    def _own_address(self) -> int:
        """The address of frames for this node alone."""
        return self.address | DOWN if self.joined else UNASSIGNED

    def _check_list_number(self, number: int, now: float) -> None:
        """Tell a host whose membership list is older than what it announced before a restart."""
        if self._authenticator.note_list_number(number):
            self._events.append(SecurityChanged((ListNumber(number),)))
        elif number < self._list_floor and self._list_reports.allow(HOST, now):
            self._refuse(HOST, OLD_MEMBERS)
            refusal = Refusal(self._authenticator.list_number, OLD_MEMBERS)
            self._outgoing.push(HOST, UNASSIGNED, [control.write_control(refusal)])

    def _receive_welcome(self, message: Welcome, now: float) -> None:
        if message.instance != self._instance:
            return  # an answer to another node on a shared transport
        plan = self._read_plan(message.plan)
        if plan.frame_mtu > self._frame_max():
            refusal = control.write_control(Refusal(message.version, FRAME_SIZE))
            self._outgoing.push(HOST, UNASSIGNED, [refusal])
            raise WireError(FRAME_SIZE, "the plan's frames are longer than the bearer's")
        if (message.run, plan) != (self.run, self.plan):
            if not self._has_asked:
                return  # of a run that was given up
            self._take_run(message.run, plan)
        self._has_asked = False
        self.address = message.address
        self.joined = True
        self._welcomed(message, plan, now)

    def _change_run(self, run: bytes) -> None:
        self._outgoing.discard(self.address)  # what waits is of the run before
        self._sealing.bind(run)
        self._instance = control.renewed(self._instance, run)
        self.run = run

    def _receive_refusal(self, message: Refusal, now: float) -> None:
        self._refuse("", message.reason)
        if message.reason == "unknown node":
            self.joined = False
        self._hello_timer.by(self._refused_timer.again(now))

    def _refuse(self, peer: str, reason: str) -> None:
        self._show_refusal(peer, known_reason(reason, self.refused, REASONS_MAX))

    @property
    def _known_plan(self) -> PlanT:
        """The plan of a node that is in a run."""
        assert self.plan is not None
        return self.plan

    # Sending

    def _say_hello(self, now: float) -> None:
        self._push_hello()
        self._hello_timer.again(now)
        if self.revoked:
            self._hello_timer.at = now + REVOKED_HELLO_S

    def _ask(self, now: float) -> None:
        """Send what the sealing has to send; a node that was revoked has nobody to send it to."""
        if not self.revoked:
            self._outgoing.ask(now)

    def _push_hello(self) -> None:
        version, global_hash = self._held()
        hello = Hello(
            name=self.name,
            instance=self._instance,
            model=self._model_hash[:MODEL_SIZE],
            run=self.run,
            version=version,
            global_hash=global_hash,
            samples=self.samples,
        )
        self._has_asked = True
        self._outgoing.discard(UNASSIGNED)
        self._outgoing.push(HOST, UNASSIGNED, [control.write_control(hello)])
