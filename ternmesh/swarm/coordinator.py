"""The host's side of a run, sans-I/O: take nodes in, open rounds, combine, publish references.

The program around it calls `receive_frames` and `handle_timeout`; then takes all events with
`next_event`, makes them durable, and sends `frames_to_send`.

                min_peers have joined
    GATHERING ───────────────────────> OPEN(round) ──┐ all whom it waits for are in, or the deadline
                                          ^          │ has passed with min_peers packets
                                          │          v
                                          └── reference made ──> FINISHED after the last round

A node that misses a deadline is not waited for again until it is heard from. One that says it is
silent in a round counts as present without a packet.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from ternmesh.errors import WireError
from ternmesh.hypervector import feedback
from ternmesh.hypervector.scale import add_fixed, to_vector
from ternmesh.plan import Plan, genesis, to_numbers
from ternmesh.swarm.chain import Chain
from ternmesh.swarm.events import (
    REFUSED_SHOWN_MAX,
    BodyAccepted,
    CountersReserved,
    HostEvent,
    NodeJoined,
    PacketForgotten,
    ReferenceMade,
    Refused,
    RoundExtended,
    RoundOpened,
)
from ternmesh.swarm.intake import Intake
from ternmesh.swarm.open_round import OpenRound
from ternmesh.swarm.outgoing import Outgoing
from ternmesh.swarm.records import CoordinatorState, Link, Node, Settings
from ternmesh.swarm.step import combine, encode_step, step_units
from ternmesh.wire import control, manifest, pieces, seal, share
from ternmesh.wire.control import FINISHED, GATHERING, OPEN, Announce, Hello, Refusal, Silent
from ternmesh.wire.reference import (
    COUNTED_MAX,
    Counted,
    Reference,
    Snapshot,
    certify,
    reference_hash,
    write_reference,
    write_snapshot,
)

ALL = "all"
CATCH_UP_MIN_S = 2.0  # at most one catch-up a node in this time: a hello must not be an amplifier
ANSWER_MIN_S = 1.0  # at most one refusal a peer in this time
ANSWERED_MAX = 1024


class Coordinator:
    """One run over one fleet."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        model_hash: bytes,
        run: bytes,
        state: CoordinatorState,
    ) -> None:
        self.plan, self.settings, self.run = plan, settings, run
        self.version, self.fixed, self.residual = state.version, state.fixed, state.residual
        origin = genesis(model_hash, run, plan)
        self.reference = state.reference or origin
        self.phase = FINISHED if state.finished else OPEN if state.started else GATHERING
        self.nodes: dict[int, Node] = {
            r.context: Node(r.context, r.name, r.samples, r.counted) for r in state.nodes
        }
        self.deadline = 0.0
        self.refused: Counter[str] = Counter()
        self._model_hash = model_hash
        self._model = model_hash[: manifest.MODEL_SIZE]
        self._names = {node.name: node for node in self.nodes.values()}
        self._chain = Chain(origin, state.chain, settings.chain_max)
        self._outgoing = Outgoing(state.counter)
        self._events: deque[HostEvent] = deque()
        self._round = OpenRound(plan, self._model, self.version)
        self._announce_at = 0.0
        self._round_ms = min(control.INTEGER_MAX, round(1000 * settings.deadline_s))
        self._answered: dict[str, float] = {}
        for context, body in state.bodies:
            self._round.add(context, body)

    # The verbs

    def start(self, now: float) -> None:
        """Begin, or go on after a restart: the open round gets a fresh deadline."""
        if self.phase == OPEN:
            self._open_round(now)
        self._announce(now)
        self._advance(now)

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Take frames from a peer. What is wrong is counted by its reason and changes nothing."""
        touched: set[int] = set()
        for frame in frames:
            try:
                self._receive(peer, frame, now, touched)
            except WireError as error:
                self._refuse(peer, error.reason, now)
        for context in touched:
            self._answer(context)
        self._advance(now)

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due."""
        return min(self._announce_at, self.deadline) if self.phase == OPEN else self._announce_at

    def handle_timeout(self, now: float) -> None:
        """Close or extend the round at its deadline; announce where the run stands."""
        if self.phase == OPEN and now >= self.deadline:
            self._deadline_passed(now)
        if now >= self._announce_at:
            self._announce(now)

    def next_event(self) -> HostEvent | None:
        """The next thing to make durable or show, until None."""
        if self._events:
            return self._events.popleft()
        limit = self._outgoing.reserve()
        return None if limit is None else CountersReserved(limit)

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:  # noqa: ARG002
        """Sealed frames by peer; call it after the events are on disk."""
        return self._outgoing.drain()

    def delivered(self, context: int) -> str:
        """How much of a node's packet for the open round is here: none, part, whole or silent."""
        return self._round.delivered(context)

    # Receiving

    def _receive(self, peer: str, frame: bytes, now: float, touched: set[int]) -> None:
        header, body = seal.open_seal(frame)
        if header.context == seal.ENROL:
            self._receive_hello(peer, body, now)
            return
        node = self.nodes.get(header.context)
        if node is None:
            raise WireError("unknown node", "a frame from a context that nobody was given")
        if peer != node.name:
            raise WireError("wrong peer", "a frame in another node's name")
        node.heard_at, node.active = now, True
        self._check_round(self._round_of(body))
        touched.add(node.context)
        if self._take(node, body):
            self._events.append(BodyAccepted(node.context, self.version, body))
        else:
            self.refused["duplicate"] += 1
            node.refused["duplicate"] += 1

    def _take(self, node: Node, body: bytes) -> bool:
        try:
            return self._round.add(node.context, body)
        except WireError as error:
            # A node that has lost its disk makes another packet: its shares must not mix with what
            # is here of the first one.
            is_other = error.reason == "conflict" and body[0] == manifest.KIND
            is_other = is_other and self.delivered(node.context) != "whole"
            if is_other or error.reason == "digest":
                self._forget(node.context)
            if is_other:
                return self._round.add(node.context, body)
            raise

    def _forget(self, context: int) -> None:
        self._round.forget(context)
        self._events.append(PacketForgotten(context, self.version))

    def _round_of(self, body: bytes) -> int:
        """The round that a node's body is for; WireError where a host takes no such body."""
        if body[0] in (manifest.KIND, share.KIND):
            return share.whole_round(int.from_bytes(body[1:3], "little"), self.version)
        message = control.read_control(body) if body[0] == control.KIND else None
        if not isinstance(message, Silent) or self.plan.silence_rounds == 0:
            raise WireError("kind", f"a host takes no such body of kind {body[0]} here")
        return message.round

    def _check_round(self, round_number: int) -> None:
        if self.phase != OPEN or round_number < self.version:
            raise WireError("old round", f"a packet for round {round_number}, which is over")
        if round_number > self.version:
            raise WireError("future round", f"a packet for round {round_number}, not yet open")

    def _receive_hello(self, peer: str, body: bytes, now: float) -> None:
        hello = control.read_control(body) if body[0] == control.KIND else None
        if not isinstance(hello, Hello):
            raise WireError("kind", "only a hello may come before a node has its context")
        if hello.name != peer:
            raise WireError("wrong peer", "a hello in another node's name")
        if hello.model != self._model:
            raise WireError("wrong model", f"{hello.name} runs another model")
        if not 0 < hello.samples <= manifest.SAMPLES_MAX:
            raise WireError("samples", f"{hello.name} has no samples, or too many")
        if hello.run == self.run and hello.version > self.version:
            raise WireError("ahead", f"{hello.name} holds a reference that this host never made")
        node = self._register(hello)
        node.heard_at, node.active = now, True
        self._outgoing.push(peer, seal.ENROL, [self._welcome(hello, node.context, now)])
        self._catch_up(node, hello, now)
        if self.phase == OPEN:
            self._answer(node.context)

    def _register(self, hello: Hello) -> Node:
        node = self._names.get(hello.name)
        if node is None:
            if len(self.nodes) >= min(self.settings.nodes_max, COUNTED_MAX):
                raise WireError("full", f"this host takes {self.settings.nodes_max} nodes")
            context = max(self.nodes, default=0) + 1
            node = Node(context, hello.name, 0)
            self.nodes[context] = self._names[hello.name] = node
        if node.samples != hello.samples:
            node.samples = hello.samples
            self._events.append(NodeJoined(node.context, node.name, node.samples))
        return node

    def _welcome(self, hello: Hello, context: int, now: float) -> bytes:
        return control.write_control(
            control.Welcome(
                instance=hello.instance,
                context=context,
                run=self.run,
                version=self.version,
                phase=self.phase,
                deadline_ms=self._deadline_ms(now),
                plan=to_numbers(self.plan),
            )
        )

    def _catch_up(self, node: Node, hello: Hello, now: float) -> None:
        version = hello.version if hello.run == self.run else 0
        known = hello.reference if hello.run == self.run else self._chain.hash_of(0)
        if version == self.version and known == self.reference:
            return
        if node.caught_up_at is not None and now < node.caught_up_at + CATCH_UP_MIN_S:
            return
        node.caught_up_at = now
        for content in self._missing(node, version, known):
            bodies = pieces.cut(content, self.plan.frame_mtu)
            self._outgoing.push(node.name, node.context | seal.DOWN, bodies)

    def _missing(self, node: Node, version: int, known: bytes | None) -> list[bytes]:
        """What brings a node up to date: the references that it lacks, or a snapshot if smaller."""
        steps = self._chain.between(version, known, self.version)
        if steps is not None and sum(map(len, steps)) <= 4 * self.plan.dimension:
            return steps
        snapshot = Snapshot(
            version=self.version,
            reference=self.reference,
            model=self._model,
            finished=self.phase == FINISHED,
            deadline_ms=self._round_ms,  # not what is left: the same pieces, whenever it is sent
            counted=() if node.counted is None else (node.counted,),
            state=self.fixed,
        )
        return [certify(write_snapshot(snapshot))]

    # Rounds

    def _advance(self, now: float) -> None:
        if self.phase == GATHERING:
            if sum(node.active for node in self.nodes.values()) >= self.settings.min_peers:
                self.phase = OPEN
                self._open_round(now)
                self._announce(now)
        elif self.phase == OPEN:
            waited_for = [node.context for node in self.nodes.values() if node.active]
            present = self._round.present()
            are_enough = len(present) >= self.settings.min_peers
            if waited_for and are_enough and present.issuperset(waited_for):
                self._close_round(now)

    def _deadline_passed(self, now: float) -> None:
        for node in self.nodes.values():
            node.active = self.delivered(node.context) != "none"
        usable = self._round.usable()
        if len(self._round.silent.union(usable)) >= self.settings.min_peers:
            self._close_round(now)
        else:
            self.deadline = now + self.settings.deadline_s
            self._events.append(RoundExtended(self.version, self.deadline))
            self._announce(now)

    def _open_round(self, now: float) -> None:
        self.deadline = now + self.settings.deadline_s
        self._events.append(RoundOpened(self.version, self.deadline))

    def _close_round(self, now: float) -> None:
        usable = self._round.usable()
        packets = [(i.manifest.samples, i.hypervector()) for i in usable.values() if i.manifest]
        mean = combine(packets, self._model_hash, self.version, self.plan)
        wanted = feedback.update(self.residual, mean)
        version = self.version + 1
        shares = encode_step(wanted, self._model_hash, version, self.plan)
        units = step_units(shares, self._model_hash, version, self.plan)
        self.residual = feedback.settle(wanted, to_vector(units))
        self.fixed = add_fixed(self.fixed, units)
        self.phase = FINISHED if version >= self.plan.rounds else OPEN
        self._publish(version, shares, tuple(self._counted(usable)), now)
        self._round = OpenRound(self.plan, self._model, self.version)
        if self.phase == OPEN:
            self._open_round(now)

    def _counted(self, usable: dict[int, Intake]) -> Iterable[Counted]:
        for context, node in self.nodes.items():
            intake = usable.get(context)
            if intake is None or intake.manifest is None:
                continue
            node.counted = Counted(context, self.version, intake.manifest.digest, intake.have)
            yield node.counted

    def _publish(
        self, version: int, shares: tuple[bytes, ...], counted: tuple[Counted, ...], now: float
    ) -> None:
        content = write_reference(
            Reference(
                version=version,
                parent=self.reference,
                model=self._model,
                finished=self.phase == FINISHED,
                deadline_ms=self._round_ms,
                counted=counted,
                shares=shares,
            )
        )
        link = Link(version, reference_hash(content), certify(content))
        self._chain.append(link)
        self.version, self.reference = version, link.reference
        known = {entry.context for entry in counted} | self._round.silent
        self._events.append(
            ReferenceMade(
                version=version,
                reference=link.reference,
                content=link.content,
                fixed=self.fixed,
                residual=self.residual,
                counted=counted,
                missing=tuple(context for context in self.nodes if context not in known),
                finished=self.phase == FINISHED,
            )
        )
        self._outgoing.push(ALL, seal.BROADCAST, pieces.cut(link.content, self.plan.frame_mtu))
        self._announce_at = now + self.plan.announce_s

    # Sending

    def _answer(self, context: int) -> None:
        bodies = map(control.write_control, self._round.answers(context))
        self._outgoing.push(self.nodes[context].name, context | seal.DOWN, bodies)

    def _announce(self, now: float) -> None:
        message = Announce(self.run, self.version, self.phase, self._deadline_ms(now))
        self._outgoing.discard(seal.BROADCAST, control.KIND)  # they pile up without a bearer
        self._outgoing.push(ALL, seal.BROADCAST, [control.write_control(message)])
        self._announce_at = now + self.plan.announce_s

    def _deadline_ms(self, now: float) -> int:
        left_ms = round(1000 * (self.deadline - now)) if self.phase == OPEN else 0
        return min(control.INTEGER_MAX, max(0, left_ms))

    def _refuse(self, peer: str, reason: str, now: float) -> None:
        self.refused[reason] += 1
        node = self._names.get(peer)
        if node is not None:
            node.refused[reason] += 1
        if len(self._events) < REFUSED_SHOWN_MAX:
            self._events.append(Refused(peer, reason))
        answered = self._answered.pop(peer, None)
        if answered is None or now >= answered + ANSWER_MIN_S:
            answered = now
            body = control.write_control(Refusal(self.version, reason))
            self._outgoing.push(peer, seal.ENROL, [body])
        self._answered[peer] = answered
        while len(self._answered) > ANSWERED_MAX:
            del self._answered[next(iter(self._answered))]
