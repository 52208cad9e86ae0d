"""The run that a host keeps: its global updates, and the exchange of those that one side lacks.

A node that is behind gets the global updates that it lacks, or a snapshot. A host that was restored
from an old copy gets what it lacks back from its nodes (`recovery`).
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping

from ternmesh.codec.encoder import zero_residual
from ternmesh.deliveries import Deliveries
from ternmesh.errors import WireError
from ternmesh.federated.events import HostEvent, RunAdopted
from ternmesh.federated.host_session import HostSession
from ternmesh.federated.recovery import ASKS_MAX, Answer, Recovery, own_rows
from ternmesh.federated.registry import NodeRegistry, UpdateChain
from ternmesh.federated.state import (
    RUN_LEGAL,
    ChainLink,
    HostSettings,
    HostState,
    RegisteredNode,
    RunStep,
    registered,
)
from ternmesh.plan import Plan, genesis, to_numbers
from ternmesh.security.authenticator import SecurityLayer
from ternmesh.timers import RateLimiter, TimerSettings
from ternmesh.wire import control, fragments
from ternmesh.wire.control import FINISHED, GATHERING, Hello
from ternmesh.wire.frame import DOWN, UNASSIGNED
from ternmesh.wire.global_update import (
    Certificate,
    Counted,
    GlobalSnapshot,
    certify,
    split_certificate,
    write_global_snapshot,
)

CATCH_UP_MIN_S = 2.0  # at most one catch-up a node in this time: a hello must not be an amplifier


class HostRun(HostSession[RegisteredNode, HostEvent]):
    """The newest global adapter of a run, and how host and nodes bring each other up to it."""

    def __init__(
        self,
        plan: Plan,
        settings: HostSettings,
        model_hash: bytes,
        run: bytes,
        state: HostState,
        security: SecurityLayer,
        pace: TimerSettings,
    ) -> None:
        registry = NodeRegistry(map(registered, state.nodes), new=RegisteredNode)
        super().__init__(model_hash, run, to_numbers(plan), registry, state.counter, security, pace)
        self.plan = plan
        self.settings = settings
        self._model_hash = model_hash
        self._origin = genesis(model_hash, run, plan)
        # Kept on disk by the program, as `HostState`
        self.phase = state.phase
        self.version = state.version
        self.global_hash = state.global_hash or self._origin
        self.model_q24 = state.model_q24
        self.residual = state.residual
        self._chain = UpdateChain(self._origin, state.chain, settings.chain_max)
        # Of this process
        self._round_ms = min(control.INTEGER_MAX, round(1000 * settings.deadline_s))
        self._may_adopt = state.is_first
        self._catch_ups = RateLimiter(CATCH_UP_MIN_S)
        self._recovery = Recovery(plan, model_hash, pace.catch_up_s)
        self._deliveries = Deliveries()  # of a transport that retransmits
        self._catch_up_s = pace.catch_up_s

    # What a subclass implements

    @abstractmethod
    def _begin_round(self) -> None:
        """Begin the round of the newest version, without any update."""

    @abstractmethod
    def _lead_on(self, now: float) -> None:
        """Go on with the round of the newest version: no node is ahead any more."""

    @abstractmethod
    def _given_back(self, link: ChainLink, rows: Mapping[int, Counted], giver: str) -> None:
        """Take a global update that this host had lost as the newest."""

    @property
    def boards(self) -> Iterator[RegisteredNode]:
        """The nodes that have not been given up for now, and may train."""
        may_train = self._authenticator.may_train
        return (node for node in self.nodes.values() if node.active and may_train(node.name))

    @property
    def has_boards(self) -> bool:
        """Whether the round waits for any node; other than `awaited`, without a look at all."""
        return any(True for _ in self.boards)

    # Catching up

    def _catch_up(self, node: RegisteredNode, hello: Hello, now: float) -> None:
        """Send a node the global updates that it lacks, unless they are being sent already."""
        own = hello.version, hello.global_hash
        version, known = own if hello.run == self.run else (0, self._chain.hash_of(0))
        is_up_to_date = version == self.version and known == self.global_hash
        is_on_its_way = self._deliveries.is_held(node.name) or self._deliveries.was_delivered(
            node.name, now - self._catch_up_s
        )
        if is_up_to_date or is_on_its_way or not self._catch_ups.allow(node.name, now):
            return
        address = node.address | DOWN
        if self._outgoing.holds(address, fragments.KIND):  # the slowest check, so the last one
            return
        for content in self._missing(node, version, known):
            objects = self._authenticator.objects_to_send(self.run, content)
            self._outgoing.cut(node.name, address, objects, self.plan.frame_mtu)

    def _missing(self, node: RegisteredNode, version: int, known: bytes | None) -> list[bytes]:
        """Return the global updates that a node lacks, or a snapshot if that is smaller."""
        steps = self._chain.between(version, known, self.version)
        if steps is not None and sum(map(len, steps)) <= 4 * self.plan.dimension:
            return [self._certified(split_certificate(step)[0]) for step in steps]
        global_snapshot = GlobalSnapshot(
            version=self.version,
            global_hash=self.global_hash,
            model=self._model,
            finished=self.phase == FINISHED,
            deadline_ms=self._round_ms,  # not the time left: the bytes must not depend on the time
            counted=tuple(row for row in (node.counted, node.partial_aggregate) if row is not None),
            state=self.model_q24,
        )
        return [self._certified(write_global_snapshot(global_snapshot))]

    # Recovering

    @property
    def recovering(self) -> bool:
        """Whether a node may have global updates that the host has lost."""
        return self._recovery.source is not None

    @property
    def ahead(self) -> list[str]:
        """The nodes with a newer global update that nobody has given back."""
        return self._recovery.unmet(self.version)

    def _adopt(self, hello: Hello) -> None:
        """Go on with the node's run: the host has lost its own, and gets it back as a claim."""
        self.run = hello.run
        self._sealing.bind(self.run)
        self.global_hash = self._origin = genesis(self._model_hash, self.run, self.plan)
        self._chain = UpdateChain(self._origin, (), self.settings.chain_max)
        self._may_adopt = False
        self._begin_round()
        self._events.append(RunAdopted(self.run, hello.name))

    def _hear_claim(self, hello: Hello, now: float) -> None:
        """Ask the node for what the host lacks instead of a welcome. Raises WireError."""
        is_possible = hello.version <= self.plan.last_version
        if not (is_possible and self._recovery.claim(hello.name, hello.version, now)):
            raise WireError("ahead", f"{hello.name} has a global update that this host never made")

    def _ask_if_due(self, now: float) -> None:
        """Ask the node with the newer version; give its claim up after too many questions."""
        recovery = self._recovery
        if recovery.at is None or now < recovery.at:
            return
        if recovery.tries >= ASKS_MAX:
            self._refuse(recovery.give_up(now), "ahead", now)
        node = self.nodes.named(recovery.source or "")
        if node is None:
            self._lead_on(now)
            return
        recovery.asked(node.name, self.version, now)
        question = control.write_control(control.Wanted(node.address, self.version))
        self._outgoing.push(node.name, UNASSIGNED, [question])

    def _receive_fragment(self, node: RegisteredNode, body: bytes, now: float) -> None:
        if node.name not in self._recovery.givers:
            raise WireError("kind", "a fragment that this host did not ask for")
        if node.name != self._recovery.source:
            node.refused["duplicate"] += 1  # the host has it already, or has given up
            return
        held = self.version, self.model_q24
        answer = self._recovery.add(body, held, self._origin, self._check_own)
        if answer is not None:
            self._take_back(answer, node.name, now)

    def _take_back(self, answer: Answer, giver: str, now: float) -> None:
        """Apply a global update that this host has made, and lost."""
        step, link, self.model_q24 = answer
        if step.version != self.version + 1:
            self._chain.clear()
        if self.phase == GATHERING:
            self.phase = RUN_LEGAL[self.phase][RunStep.ENOUGH_JOINED]
        self.residual = zero_residual(self.plan.dimension)  # no global update tells what it was
        self._given_back(link, own_rows(step.counted, self.nodes), giver)
        self._recovery.advanced(self.version, now)
        if not self.recovering:
            self._lead_on(now)

    def _check_own(self, data: bytes, content: bytes, certificate: Certificate) -> None:
        beside = self._authenticator.objects_to_send(self.run, data)[:-1]
        self._authenticator.check_certificate(self.run, content, certificate, beside)

    def _certified(self, content: bytes) -> bytes:
        return certify(content, self._authenticator.certify(self.run, content))
