"""The host's side of `session`: it welcomes nodes, answers them, and looks after them."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from ternmesh.errors import WireError
from ternmesh.federated.events import FRAME_SIZE, OLD_MEMBERS
from ternmesh.federated.management import FleetManagement
from ternmesh.federated.registry import NodeRegistry, Registered
from ternmesh.federated.release_transfer import ReleaseSender
from ternmesh.federated.session import Event, Session
from ternmesh.security.authenticator import SecurityLayer
from ternmesh.security.membership import ALL
from ternmesh.security.signatures import NO_RUN
from ternmesh.timers import RateLimiter, TimerSettings, earliest
from ternmesh.wire import control
from ternmesh.wire.control import Control, Hello, Refusal, Report, Settings, Welcome
from ternmesh.wire.frame import BROADCAST, UNASSIGNED, Header
from ternmesh.wire.release import OFFER, STATUS, read_status
from ternmesh.wire.update import MODEL_SIZE, SAMPLES_MAX

REFUSAL_MIN_S = 1.0  # at most one refusal to each peer in this time

NodeT = TypeVar("NodeT", bound=Registered)


class HostSession(Session[Event], Generic[NodeT, Event]):
    """The host's side: one run and its nodes by address. `plan` is the plan as sent."""

    def __init__(
        self,
        model_hash: bytes,
        run: bytes,
        plan: tuple[int, ...],
        nodes: NodeRegistry[NodeT],
        counter: int,
        security: SecurityLayer,
        pace: TimerSettings,
    ) -> None:
        super().__init__(run, counter, security)
        self.management = FleetManagement(pace.catch_up_s)
        self.release: ReleaseSender | None = None  # on its way to the boards
        self.version = 0  # of the global adapter; a split training has none
        self.nodes = nodes
        self._model = model_hash[:MODEL_SIZE]
        self._plan_numbers = plan
        self._refusals = RateLimiter(REFUSAL_MIN_S)

    # What a subclass implements

    @abstractmethod
    def _receive_hello(self, hello: Hello, now: float) -> None:
        """Register a node and welcome it. Raises WireError."""

    @abstractmethod
    def _receive_body(self, node: NodeT, body: bytes, now: float) -> None:
        """Handle a body of a known node. Raises WireError."""

    def _excuse(self, node: NodeT, now: float) -> None:
        """Wait for this node in no round until its next hello: it cannot train, or must not."""

    @abstractmethod
    def _frames_taken(self, now: float) -> None:
        """All frames of a call were read: answer them."""

    # What the program calls

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Handle frames from a peer. A wrong frame is counted by reason and changes nothing."""
        for frame in frames:
            try:
                header, body = self._sealing.open(peer, frame)
            except WireError as error:
                self._refuse(peer, error.reason, now, aloud=not self._sealing.is_keyed)
                continue
            try:
                self._receive(peer, header, body, now)
            except WireError as error:
                self._refuse(peer, error.reason, now)
                if error.reason == "wrong model" and self.release is not None:
                    self.release.heard(peer, is_behind=True)
        self._frames_taken(now)

    def set_board(self, name: str, settings: Mapping[str, float | None], now: float) -> None:
        """Set all settings of a board by name, as `management.LIMITS` allows; None: its own."""
        self._events.append(self.management.set(name, settings, now))
        self._ask(now)

    def broadcast_release(self, bodies: Sequence[bytes]) -> None:
        """Send offers, which are signed, and symbols of a release to all boards."""
        sign = self._authenticator.sign_announce
        signed = [sign(body) if body[0] == OFFER else body for body in bodies]
        self._outgoing.push(ALL, BROADCAST, signed)

    def broadcast_knowledge(self, bodies: Sequence[bytes]) -> None:
        """Send the parts of a knowledge packet, each signed, to all boards."""
        signed = [self._authenticator.sign_announce(body) for body in bodies]
        self._outgoing.push(ALL, BROADCAST, signed)

    # Receiving

    def _receive(self, peer: str, header: Header, body: bytes, now: float) -> None:
        if self._sealing.is_own(header.address, body):
            return
        if body[0] == STATUS:
            if header.address != UNASSIGNED:
                self.nodes.sender(header.address, peer)
            if self.release is None or not self._authenticator.may_train(peer):
                raise WireError("release", f"a status of {peer} that nobody asked for")
            self.release.receive(peer, read_status(body))
            return
        if header.address == UNASSIGNED:
            match control.read_control(body):
                case Refusal() as message:
                    self._receive_refusal(peer, message, now)
                case Report() as message:
                    self._receive_report(peer, message, now)
                case message:
                    self._hear_hello(check_hello(message, peer, self._model), now)
            return
        node = self.nodes.sender(header.address, peer)
        node.heard_at = now
        self._receive_body(node, body, now)

    def _hear_hello(self, hello: Hello, now: float) -> None:
        if not self._authenticator.may_train(hello.name):
            raise WireError("role", f"{hello.name} has no role that learns")
        self._receive_hello(hello, now)
        if self.release is not None:
            self.release.heard(hello.name)
        is_same_run = hello.run == self.run
        instance = hello.instance if is_same_run else control.renewed(hello.instance, self.run)
        self.management.heard(hello.name, instance, now)
        self._excuse_if_paused(hello.name, now)

    def _receive_report(self, peer: str, report: Report, now: float) -> None:
        node = self.nodes.named(peer)
        if node is None or not self._authenticator.may_train(peer):
            raise WireError("unknown node", f"a report of {peer}, which has not joined")
        node.heard_at = now
        changed = self.management.reported(peer, report, now)
        if changed is not None:
            self._events.append(changed)
        self._excuse_if_paused(peer, now)

    def _excuse_if_paused(self, name: str, now: float) -> None:
        node = self.nodes.named(name)
        if node is not None and self.management.boards[name].in_force.get("pause"):
            self._excuse(node, now)

    def _receive_refusal(self, peer: str, message: Refusal, now: float) -> None:
        node = self.nodes.named(peer)
        if message.reason == FRAME_SIZE:
            if node is not None:
                self._excuse(node, now)
        elif message.reason == OLD_MEMBERS:
            if message.round <= self._authenticator.list_number:
                return  # the list has changed since
            self._authenticator.claim_list_number(message.round)
        elif message.reason != "settings":
            raise WireError("kind", "a host takes no such refusal")
        self._refuse(peer, message.reason, now, aloud=False)

    def _refuse(self, peer: str, reason: str, now: float, *, aloud: bool = True) -> None:
        """Count a refusal; with `aloud`, also send it to the peer."""
        self._show_refusal(peer, reason)
        node = self.nodes.named(peer)
        if node is not None:
            node.refused[reason] += 1
        if aloud and self._refusals.allow(peer, now):
            body = control.write_control(Refusal(self.version, reason))
            self._outgoing.push(peer, UNASSIGNED, [body])

    # Sending

    def _next_ask(self) -> float | None:
        """Return the time when `_ask` is due."""
        return earliest(self._sealing.next_due(), self.management.next_due())

    def _ask(self, now: float) -> None:
        """Send what the sealing has to send, and what boards have to hear of the host."""
        self._outgoing.ask(now)
        for name, message in self.management.due(now):
            body = control.write_control(message)
            if not self._authenticator.may_train(name):
                continue
            if isinstance(message, Settings):
                body = self._authenticator.sign_receipt(name, NO_RUN, body)  # for any run
            self._outgoing.push(name, UNASSIGNED, [body])

    def _push_welcome(
        self, node: NodeT, instance: bytes, version: int, phase: int, deadline_ms: int = 0
    ) -> None:
        welcome = Welcome(
            instance=instance,
            address=node.address,
            run=self.run,
            version=version,
            phase=phase,
            deadline_ms=deadline_ms,
            plan=self._plan_numbers,
        )
        self._outgoing.push(node.name, UNASSIGNED, [control.write_control(welcome)])


def check_hello(hello: Control, peer: str, model: bytes) -> Hello:
    """Return the hello of `peer` for this model (8 bytes). Raises WireError for anything else."""
    if not isinstance(hello, Hello):
        raise WireError("kind", "a node without an address may send a hello only")
    if hello.name != peer:
        raise WireError("wrong peer", "a hello in another node's name")
    if hello.model != model:
        raise WireError("wrong model", f"{hello.name} runs another model")
    if not 0 < hello.samples <= SAMPLES_MAX:
        raise WireError("samples", f"{hello.name} has no samples, or too many")
    return hello
