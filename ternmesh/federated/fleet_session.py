"""The host's session with its nodes: what a federated and a split training have alike, sans-I/O.

It opens frames and hands each message to the handler of its kind. It refuses what breaks the rules,
looks after the boards (`management`), and sends releases and knowledge to all of them.
`HostProtocol` (`federated.host`) and `SplitHost` (`split.host`) own one each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ternmesh.errors import WireError
from ternmesh.federated.channel import Channel
from ternmesh.federated.events import AWAY, FRAME_SIZE, OLD_MEMBERS
from ternmesh.federated.management import FleetManagement
from ternmesh.federated.registry import NodeRegistry, Registered
from ternmesh.federated.release_transfer import ReleaseSender
from ternmesh.security.membership import ALL
from ternmesh.security.signatures import NO_RUN
from ternmesh.timers import RateLimiter, earliest
from ternmesh.wire import control
from ternmesh.wire.control import Control, Hello, Refusal, Report, Settings, Welcome
from ternmesh.wire.frame import BROADCAST, HEAD_SIZE, UNASSIGNED, Header, seal_open
from ternmesh.wire.release import SYMBOL, read_status
from ternmesh.wire.update import SAMPLES_MAX

REFUSAL_MIN_S = 1.0  # at most one refusal to each peer in this time
IN_CLEAR = Header(UNASSIGNED, 0)
_IN_CLEAR_HEAD = seal_open(IN_CLEAR, b"x")[:3]  # version, suite 0, address


@dataclass(slots=True)
class Handlers:
    """What a host receives: a handler for each kind of message. All other kinds are refused.

    A handler gets the sender, the message and the time, and raises WireError.
    """

    # Of a registered node, under its address: bodies by kind
    of_node: Mapping[int, Callable[[Any, bytes, float], None]]
    # Of any peer: control messages by class, without an address, and other bodies by kind
    of_peer: Mapping[int | type[Control], Callable[[str, Any, float], None]]
    # Frames without a seal, by the kind of their body. The program adds these: they need its keys.
    in_clear: dict[int, Callable[[str, bytes, float], None]] = field(default_factory=dict)
    # After the frames of a peer: the program may tell it in the clear why they do not open.
    after_frames: Callable[[str, float], None] = lambda _peer, _now: None


class FleetSession:
    """One session with all nodes of a run.

    `model` is the first 8 bytes of the model hash, `plan` the plan as sent. `excuse` is called for
    a node that no round may wait for until its next hello. `answer_s` is how long a board takes to
    answer.
    """

    def __init__(
        self,
        *,
        channel: Channel[Any],
        nodes: NodeRegistry[Registered],
        model: bytes,
        plan: tuple[int, ...],
        excuse: Callable[[Any, float], None],
        answer_s: float,
    ) -> None:
        self.management = FleetManagement(answer_s)
        self.release: ReleaseSender | None = None  # on its way to the boards
        self._channel = channel
        self._nodes = nodes
        self._model = model
        self._plan = plan
        self._excuse = excuse
        self._refusals = RateLimiter(REFUSAL_MIN_S)

    # Receiving

    def receive_frames(
        self, peer: str, frames: Sequence[bytes], handlers: Handlers, version: int, now: float
    ) -> None:
        """Handle frames from a peer. A wrong frame is counted by reason and changes nothing.

        `version` is that of the global adapter, which refusals name.
        """
        sealing = self._channel.sealing
        for frame in frames:
            try:
                handle = handlers.in_clear.get(_kind_in_clear(frame))
                if handle is not None:
                    handle(peer, frame, now)
                    continue
                header, body = sealing.open(peer, frame)
            except WireError as error:
                self.refuse(peer, error.reason, now, None if sealing.is_keyed else version)
                continue
            self._channel.knocking.pop(peer, None)
            try:
                self._receive(peer, header.address, body, handlers, now)
            except WireError as error:
                self.refuse(peer, error.reason, now, version)
                if error.reason == "wrong model" and self.release is not None:
                    self.release.heard(peer, is_behind=True)
        handlers.after_frames(peer, now)

    def _receive(
        self, peer: str, address: int, body: bytes, handlers: Handlers, now: float
    ) -> None:
        kind = body[0]
        if self._channel.sealing.is_own(address, body):
            return
        if kind in handlers.of_peer:
            handlers.of_peer[kind](peer, body, now)
        elif address == UNASSIGNED:
            message = control.read_control(body)
            if type(message) not in handlers.of_peer:
                raise WireError("kind", "a node without an address may send a hello only")
            handlers.of_peer[type(message)](peer, message, now)
        else:
            node = self._nodes.sender(address, peer)
            node.heard_at = now
            if kind not in handlers.of_node:
                raise WireError("kind", f"the host does not accept a body of kind {kind} here")
            handlers.of_node[kind](node, body, now)

    def check_hello(self, peer: str, hello: Hello, *, least: int = 1) -> None:
        """Raise WireError unless this is the hello of `peer`, which may train this model."""
        if hello.name != peer:
            raise WireError("wrong peer", "a hello in another node's name")
        if hello.model != self._model:
            raise WireError("wrong model", f"{hello.name} runs another model")
        if not least <= hello.samples <= SAMPLES_MAX:
            raise WireError("samples", f"{hello.name} has no samples, or too many")
        if not self._channel.authenticator.may_train(peer):
            raise WireError("role", f"{hello.name} has no role that learns")

    def note_hello(self, hello: Hello, run: bytes, now: float) -> None:
        """Note that a board has answered to its host: it may have to be told of settings."""
        if self.release is not None:
            self.release.heard(hello.name)
        is_same_run = hello.run == run
        instance = hello.instance if is_same_run else control.renewed(hello.instance, run)
        self.management.heard(hello.name, instance, now)
        self._excuse_if_paused(hello.name, now)

    def receive_report(self, peer: str, report: Report, now: float) -> None:
        """Take what a board says of itself."""
        node = self._nodes.named(peer)
        if node is None or not self._channel.authenticator.may_train(peer):
            raise WireError("unknown node", f"a report of {peer}, which has not joined")
        node.heard_at = now
        changed = self.management.reported(peer, report, now)
        if changed is not None:
            self._channel.events.append(changed)
        self._excuse_if_paused(peer, now)

    def receive_refusal(self, peer: str, message: Refusal, now: float) -> None:
        """Take what a node could not use of this host's messages."""
        authenticator = self._channel.authenticator
        node = self._nodes.named(peer)
        if message.reason in (FRAME_SIZE, AWAY):
            if node is not None:
                self._excuse(node, now)
            if message.reason == AWAY:
                return
        elif message.reason == OLD_MEMBERS:
            if message.round <= authenticator.list_number:
                return  # the list has changed since
            authenticator.claim_list_number(message.round)
        elif message.reason != "settings":
            raise WireError("kind", "a host takes no such refusal")
        self.refuse(peer, message.reason, now)

    def receive_release_status(self, peer: str, body: bytes, _now: float) -> None:
        """Take how far a board is with the release that it is sent."""
        if self.release is None or not self._channel.authenticator.may_train(peer):
            raise WireError("release", f"a status of {peer} that nobody asked for")
        self.release.receive(peer, read_status(body))

    def _excuse_if_paused(self, name: str, now: float) -> None:
        node = self._nodes.named(name)
        if node is not None and self.management.boards[name].in_force.get("pause"):
            self._excuse(node, now)

    # Sending

    def refuse(self, peer: str, reason: str, now: float, version: int | None = None) -> None:
        """Count a refusal; with the `version` of the global adapter, also send it to the peer."""
        self._channel.show_refusal(peer, reason)
        node = self._nodes.named(peer)
        if node is not None:
            node.refused[reason] += 1
        if version is not None and self._refusals.allow(peer, now):
            body = control.write_control(Refusal(version, reason))
            self._channel.outgoing.push(peer, UNASSIGNED, [body])

    def welcome(
        self,
        node: Registered,
        instance: bytes,
        *,
        run: bytes,
        version: int,
        phase: int,
        deadline_ms: int = 0,
    ) -> None:
        """Tell a registered node its address, and where the run is."""
        message = Welcome(
            instance=instance,
            address=node.address,
            run=run,
            version=version,
            phase=phase,
            deadline_ms=deadline_ms,
            plan=self._plan,
        )
        self._channel.outgoing.push(node.name, UNASSIGNED, [control.write_control(message)])

    def set_board(self, name: str, settings: Mapping[str, float | None], now: float) -> None:
        """Set all settings of a board by name, as `management.LIMITS` allows; None: its own."""
        self._channel.events.append(self.management.set(name, settings, now))
        self.send_due(now)

    def broadcast(self, bodies: Sequence[bytes]) -> None:
        """Send the parts of a release or of knowledge to all boards; all but symbols are signed."""
        sign = self._channel.authenticator.sign_announce
        signed = [body if body[0] == SYMBOL else sign(body) for body in bodies]
        self._channel.outgoing.push(ALL, BROADCAST, signed)

    def next_due(self) -> float | None:
        """Return the time when `send_due` has something to send."""
        return earliest(self._channel.sealing.next_due(), self.management.next_due())

    def send_due(self, now: float) -> None:
        """Send what the sealing has to send, and what boards have to hear of the host."""
        self._channel.outgoing.push_handshakes(now)
        for name, message in self.management.due(now):
            body = control.write_control(message)
            if not self._channel.authenticator.may_train(name):
                continue
            if isinstance(message, Settings):
                # for any run
                body = self._channel.authenticator.sign_receipt(name, NO_RUN, body)
            self._channel.outgoing.push(name, UNASSIGNED, [body])


def _kind_in_clear(frame: bytes) -> int:
    """The kind of what a frame without a seal carries; -1 for all other frames."""
    is_in_clear = len(frame) > HEAD_SIZE and frame.startswith(_IN_CLEAR_HEAD)
    return frame[HEAD_SIZE] if is_in_clear else -1
