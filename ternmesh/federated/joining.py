"""How a node joins its host, sans-I/O: a part of `NodeProtocol` and of `SplitBoard`.

A node says hello, with longer and longer pauses, until the host answers with a welcome. The welcome
holds the node's address, the run and its plan. A node says hello again when the host refuses what
it sends, or when its owner doubts that the host knows it.

    unknown ── welcome ──> joined         both ── the host revokes the key ──> revoked
       ^                     │                                                    │
       ├── "unknown node" ───┘                                                    │
       └────────────── the host seals a frame for this node again ────────────────┘

`Joining` changes only itself and its `Channel`. Its owner gives it the handlers of what comes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ternmesh.errors import WireError
from ternmesh.federated import events
from ternmesh.federated.channel import KNOCKS, Channel
from ternmesh.federated.events import FRAME_SIZE, OLD_MEMBERS, SecurityChanged, known_reason
from ternmesh.federated.management import BoardManagement
from ternmesh.federated.state import next_state
from ternmesh.security import notices
from ternmesh.security.enrolment import refusal_in_clear
from ternmesh.security.membership import HOST
from ternmesh.security.session import HostRotated, ListNumber
from ternmesh.timers import NETWORK_TIMERS, Backoff, Random, RateLimiter, TimerSettings
from ternmesh.wire import control
from ternmesh.wire.control import Control, Hello, Inquiry, Refusal, Settings, Welcome
from ternmesh.wire.frame import BROADCAST, DOWN, FRAME_MAX, UNASSIGNED
from ternmesh.wire.update import MODEL_SIZE

REASONS_MAX = 64  # reasons of refusals that a node counts apart
LIST_REPORT_MIN_S = 60.0  # between two reports of an old membership list
REVOKED_HELLO_S = 3600.0  # between hellos of a node that was revoked: it may be enrolled again
QUESTION_AFTER = 3  # hellos without a welcome, after which a node asks whether it is known
NOTICE_MIN_S = 1.0  # between two checks of a notice: each costs a check of a signature


class Membership(Enum):
    """What a node knows of its place at the host."""

    UNKNOWN = "unknown"  # the host does not know this node, or has not said so yet
    JOINED = "joined"  # the host knows this node under its address
    REVOKED = "revoked"  # the host has revoked the key of this node


class MembershipStep(Enum):
    """What takes a node from one membership to another."""

    WELCOMED = "a welcome"
    FORGOTTEN = "a refusal as unknown, or no answer"
    REVOKED = "a notice that the key was revoked"
    SEALED_AGAIN = "a frame that the host has sealed for this node"


_HEARS = {
    MembershipStep.WELCOMED: Membership.JOINED,
    MembershipStep.FORGOTTEN: Membership.UNKNOWN,
    MembershipStep.REVOKED: Membership.REVOKED,
}
MEMBERSHIP_LEGAL: Mapping[Membership, Mapping[MembershipStep, Membership]] = {
    Membership.UNKNOWN: _HEARS,
    Membership.JOINED: _HEARS,
    Membership.REVOKED: {
        MembershipStep.SEALED_AGAIN: Membership.UNKNOWN,
        MembershipStep.FORGOTTEN: Membership.REVOKED,
    },
}


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What does not change while a node runs.

    >>> NodeSettings("theo", model_hash=bytes(32), instance=bytes(8)).frame_max()
    4096
    """

    name: str
    model_hash: bytes
    instance: bytes  # 8 random bytes that name this process
    pace: TimerSettings = NETWORK_TIMERS  # it fits the timers to the transport
    frame_max: Callable[[], int] = lambda: FRAME_MAX  # bytes that the transport takes now
    frame_min: int = 0  # bytes of the longest frame that it sends, whatever the plan says
    has_aggregator: bool = False  # its host is one, and proves what counts


# What a node receives: the handler of each type of message and each kind of other bodies. It gets
# what came, its address and the time, and raises WireError.
Handlers = Mapping[type[Control] | int, Callable[[Any, int, float], None]]


class Joining:
    """A node's membership and address. `rng` only jitters timers."""

    def __init__(
        self,
        settings: NodeSettings,
        channel: Channel[Any],
        *,
        run: bytes,
        address: int = UNASSIGNED,
        samples: int,
        rng: Random,
        management: BoardManagement | None = None,
    ) -> None:
        pace = settings.pace
        self.run = run
        self.address = address
        self.membership = Membership.UNKNOWN
        self.samples = samples  # how many the node trains on
        self.management = management or BoardManagement()
        self.instance = settings.instance  # a welcome must name it
        self.hello_timer = Backoff(pace.hello_s, pace.hello_longest_s, rng)
        self.refused_timer = Backoff(pace.hello_s, pace.hello_longest_s, rng)  # to the next hello
        self.asked_at = 0.0  # when the last hello was sent
        self.heard_at = 0.0  # when the last frame came that the host has sealed
        self.trip_s = math.inf  # from the last hello to the answer
        self._settings = settings
        self._channel = channel
        self._rng = rng
        self._unanswered = 0  # hellos since the last welcome
        self._host_process: bytes | None = None  # names the process of the host; None: none known
        self._notices = RateLimiter(NOTICE_MIN_S)
        self._host_notices = RateLimiter(notices.NOTICE_FIRST_S, notices.NOTICE_LONGEST_S)
        self._list_floor = channel.authenticator.list_number  # from earlier processes of the host
        self._list_reports = RateLimiter(LIST_REPORT_MIN_S)

    @property
    def joined(self) -> bool:
        """Whether the host knows this node under `address`."""
        return self.membership is Membership.JOINED

    @property
    def revoked(self) -> bool:
        return self.membership is Membership.REVOKED

    @property
    def own_address(self) -> int:
        """The address of frames for this node alone."""
        return self.address | DOWN if self.joined else UNASSIGNED

    # Receiving

    def receive_frames(
        self,
        peer: str,
        frames: Sequence[bytes],
        handlers: Handlers,
        now: float,
        *,
        restarted: Callable[[float], None],
    ) -> None:
        """Hand on what frames hold. A wrong one is counted as refused and changes nothing.

        `restarted` is called at the first frame of another process of the host.
        """
        for frame in frames:
            try:
                if notices.is_rotation(frame) or (
                    notices.is_notice(frame) and self._notices.allow(peer, now)
                ):
                    self._receive_notice(frame, now)
                    continue
                if self._channel.sealing.is_keyed and (reason := refusal_in_clear(frame)):
                    if reason in KNOCKS and not self.joined:  # anybody could say so: only show it
                        self.refuse("", reason)
                    continue
                header, body = self._channel.sealing.open(peer, frame)
                if self._is_restart(self._channel.sealing.process_of(peer), now):
                    restarted(now)
                if not self._channel.sealing.is_own(header.address, body):
                    self._receive_body(header.address, body, handlers, now)
            except WireError as error:
                self.refuse(peer, error.reason)
                if error.reason == "seal":
                    self._tell_old_host(frame, now)

    def _receive_body(self, address: int, body: bytes, handlers: Handlers, now: float) -> None:
        body = self._channel.authenticator.open_body(self.run, address, body)
        self.heard_at = now
        if address not in (UNASSIGNED, BROADCAST, self.own_address):
            raise WireError("context", "a frame for another node")
        content = control.read_control(body) if body[0] == control.KIND else body
        kind = content[0] if isinstance(content, bytes) else type(content)
        if kind not in handlers:
            raise WireError("kind", f"a node takes nothing of kind {kind}")
        handlers[kind](content, address, now)

    def _tell_old_host(self, frame: bytes, now: float) -> None:
        """Answer what another key than the host's has sealed: it may be of an old copy of it."""
        rotations = self._channel.authenticator.host_rotations
        is_first_tag = frame[1:3] == UNASSIGNED.to_bytes(2, "little")
        if rotations and is_first_tag and self._host_notices.allow("", now):
            for notice in notices.rotation_frames(rotations):
                self._channel.send_in_clear(HOST, [notice])

    def refuse(self, peer: str, reason: str) -> None:
        """Count a refusal; from a limit on, new reasons count as others."""
        reason = known_reason(reason, self._channel.refused, REASONS_MAX)
        self._channel.show_refusal(peer, reason)

    def answers(self, message: Welcome, frame_mtu: int, *, is_new: bool) -> bool:
        """Whether to take a welcome; `is_new` if its run or plan is not that of this node.

        Raises WireError if the frames of its plan do not fit the transport, and tells the host.
        """
        if max(frame_mtu, self._settings.frame_min) > self._settings.frame_max():
            self._push(Refusal(message.version, FRAME_SIZE))
            raise WireError(FRAME_SIZE, "the frames are longer than the bearer's")
        return self._unanswered > 0 or not is_new  # else it is of a run that was given up

    def begin_run(self, run: bytes) -> None:
        """Another run begins: what waits to be sent is of the run before."""
        self._channel.outgoing.discard(self.address)
        self._channel.sealing.bind(run)
        self.instance = control.renewed(self.instance, run)
        self.run = run

    def welcomed(self, address: int) -> None:
        self._unanswered = 0
        self.address = address
        self.take_step(MembershipStep.WELCOMED)

    def receive_refusal(self, message: Refusal, now: float) -> None:
        """The host has refused a frame of this node: say hello later."""
        self.refuse("", message.reason)
        if message.reason in ("unknown node", "wrong model"):  # it may have a new run, and model
            self.take_step(MembershipStep.FORGOTTEN)
        self.hello_timer.by(self.refused_timer.again(now))

    def receive_management(self, message: Inquiry | Settings, address: int, now: float) -> None:
        """Answer with a report, and take settings. Raises WireError for wrong ones."""
        if address != UNASSIGNED:
            raise WireError("kind", "a node takes no settings at this address")
        was_paused = self.management.paused
        for answer in self.management.receive(message, now):
            if isinstance(answer, bytes):
                self._channel.outgoing.push(HOST, UNASSIGNED, [answer])
                continue
            self._channel.events.append(answer)
            if was_paused and not self.management.paused:
                self.hello_timer.soon(now)  # rounds wait for this node again

    def check_list_number(self, number: int, now: float) -> None:
        """Tell a host whose membership list is older than what it announced before a restart."""
        newest = self._channel.authenticator.list_number
        if self._channel.authenticator.note_list_number(number):
            self._channel.events.append(SecurityChanged((ListNumber(number),)))
        elif number < self._list_floor and self._list_reports.allow(HOST, now):
            self.refuse(HOST, OLD_MEMBERS)
            self._push(Refusal(newest, OLD_MEMBERS))

    def take_step(self, step: MembershipStep) -> None:
        """Change the membership. Raises StateError."""
        self.membership = next_state(MEMBERSHIP_LEGAL, self.membership, step)

    def _is_restart(self, process: bytes, now: float) -> bool:
        """Note which process of the host has sealed a frame; True if it is another than before."""
        if self.revoked:  # the host seals for this node: it may be a member again
            self.take_step(MembershipStep.SEALED_AGAIN)
            self.hello_timer.soon(now)
        before, self._host_process = self._host_process, process
        is_restart = before is not None and before != process
        if is_restart:
            self._list_floor = self._channel.authenticator.list_number
        return is_restart

    def _receive_notice(self, frame: bytes, now: float) -> None:
        match self._channel.authenticator.read_notice(frame, now):
            case HostRotated() as change:
                self._channel.events.append(SecurityChanged((change,)))
                self._channel.outgoing.discard(UNASSIGNED)
                self.hello_timer.soon(now)
            case notices.REVOKED:
                self._leave(now)

    def _leave(self, now: float) -> None:
        """Send nothing but a rare hello from now on."""
        if not self.revoked:
            self.take_step(MembershipStep.REVOKED)
            self._channel.outgoing.discard(self.address)
            self._channel.outgoing.discard(UNASSIGNED)
            self.hello_timer.at = now + REVOKED_HELLO_S
        self.refuse("", "revoked")

    # Sending

    def say_hello(self, version: int, global_hash: bytes, now: float) -> None:
        """Send a hello, which names what this node holds; it is due again after a pause."""
        self.asked_at = now
        self.push_hello(version, global_hash)
        self.hello_timer.again(now)
        if self.revoked:
            self.hello_timer.at = now + REVOKED_HELLO_S
        elif (
            self._unanswered > QUESTION_AFTER
            and self._settings.pace is NETWORK_TIMERS  # links would not pass it
            and not self._settings.has_aggregator  # which could not answer
        ):
            question = self._channel.authenticator.question()
            if question is not None:
                self._channel.send_in_clear(HOST, [question])

    def push_hello(self, version: int, global_hash: bytes) -> None:
        """Send one hello that is not repeated."""
        self._unanswered += 1
        self._channel.outgoing.discard(UNASSIGNED)
        self._push(
            Hello(
                name=self._settings.name,
                instance=self.instance,
                model=self._settings.model_hash[:MODEL_SIZE],
                run=self.run,
                version=version,
                global_hash=global_hash,
                samples=self.samples,
            )
        )

    def say_away(self, version: int) -> None:
        """Tell the host that no round has to wait for this node for now."""
        self._push(Refusal(version, events.AWAY))

    def catch_up_wait_s(self) -> float:
        """How long to wait for what the host has announced, before a hello asks for it."""
        return self._settings.pace.catch_up_s * (0.5 + self._rng.random())

    def send_handshakes(self, now: float) -> None:
        """Queue what the sealing has to send; a revoked node has nobody to send it to."""
        if not self.revoked:
            self._channel.outgoing.push_handshakes(now)

    def _push(self, message: Control) -> None:
        self._channel.outgoing.push(HOST, UNASSIGNED, [control.write_control(message)])
