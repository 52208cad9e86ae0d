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
from collections.abc import Sequence

from ternmesh.errors import WireError
from ternmesh.hypervector.scale import add_fixed
from ternmesh.plan import Plan, genesis, to_numbers
from ternmesh.swarm.chain import Chain
from ternmesh.swarm.events import (
    REFUSED_SHOWN_MAX,
    BodyAccepted,
    HostEvent,
    NodeJoined,
    PacketForgotten,
    ReferenceMade,
    Refused,
    RoundExtended,
    RoundOpened,
)
from ternmesh.swarm.incoming import read_hello, round_of
from ternmesh.swarm.open_round import BUNDLE, Count, OpenRound
from ternmesh.swarm.outgoing import Outgoing
from ternmesh.swarm.records import CoordinatorState, Link, Node, Settings
from ternmesh.swarm.roll import Roll
from ternmesh.swarm.seldom import Seldom
from ternmesh.swarm.step import make_step
from ternmesh.trust.notary import OPEN as TRUST_OPEN
from ternmesh.trust.notary import Trust
from ternmesh.wire import control, manifest, pieces, seal
from ternmesh.wire.control import FINISHED, GATHERING, OPEN, Announce, Hello, Receipt, Refusal
from ternmesh.wire.reference import (
    Reference,
    Snapshot,
    certify,
    reference_hash,
    split_certificate,
    write_reference,
    write_snapshot,
)

ALL = "all"
CATCH_UP_MIN_S = 2.0  # at most one catch-up a node in this time: a hello must not be an amplifier
ANSWER_MIN_S = 1.0  # at most one refusal a peer in this time


class Coordinator:
    """One run over one fleet."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        model_hash: bytes,
        run: bytes,
        state: CoordinatorState,
        trust: Trust = TRUST_OPEN,
    ) -> None:
        self.plan, self.settings, self.run = plan, settings, run
        self.version, self.fixed, self.residual = state.version, state.fixed, state.residual
        origin = genesis(model_hash, run, plan)
        self.reference = state.reference or origin
        self.phase = FINISHED if state.finished else OPEN if state.started else GATHERING
        self.nodes = Roll(state.nodes)
        self.deadline = self._announce_at = 0.0
        self.refused: Counter[str] = Counter()
        self._model_hash = model_hash
        self._model = model_hash[: manifest.MODEL_SIZE]
        self._chain = Chain(origin, state.chain, settings.chain_max)
        self._sealing, self._notary = trust.sealing, trust.notary
        self._sealing.bind(run)
        self._outgoing = Outgoing(state.counter, trust.sealing)
        self._events: deque[HostEvent] = deque()
        # What was taken counts, though bundles be switched off since: there are receipts for it.
        has_bundles = any(place & BUNDLE for place, _ in state.bodies)
        self._round = self._new_round(may_be_bundled=settings.bundles or has_bundles)
        self._round_ms = min(control.INTEGER_MAX, round(1000 * settings.deadline_s))
        self._refusals, self._catch_ups = Seldom(ANSWER_MIN_S), Seldom(CATCH_UP_MIN_S)
        for place, body in state.bodies:
            self._round.add(place, body)

    # The verbs

    def start(self, now: float) -> None:
        """Begin, or go on after a restart: the open round gets a fresh deadline."""
        self._outgoing.ask(now)  # with a key for those who are to read the announce
        for node in self.nodes.values():
            if not self._notary.may_train(node.name):
                self._forget(node.context)  # it was revoked while the host was down
        if self.phase == OPEN:
            self._open_round(now)
        self._announce(now)
        self._advance(now)

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Take frames from a peer. What is wrong is counted by its reason and changes nothing."""
        touched: set[int] = set()
        for frame in frames:
            try:
                header, body = self._sealing.open(peer, frame)
            except WireError as error:
                self._refuse(peer, error.reason, now, aloud=not self._sealing.asks)
                continue
            try:
                self._receive(peer, header, body, now, touched)
            except WireError as error:
                self._refuse(peer, error.reason, now)
        for context in touched:
            self._answer(context)
        self._outgoing.ask(now)  # perhaps with a new broadcast key, before what is under it
        self._advance(now)

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due."""
        return min(self._announce_at, self.deadline) if self.phase == OPEN else self._announce_at

    def handle_timeout(self, now: float) -> None:
        """Close or extend the round at its deadline; announce where the run stands."""
        self._outgoing.ask(now)
        if self.phase == OPEN and now >= self.deadline:
            self._deadline_passed(now)
        if now >= self._announce_at:
            self._announce(now)

    def next_event(self) -> HostEvent | None:
        """The next thing to make durable or show, until None."""
        return self._outgoing.next_event(self._events)

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:  # noqa: ARG002
        """Sealed frames by peer; call it after the events are on disk."""
        return self._outgoing.drain()

    def delivered(self, context: int) -> str:
        """How much of a node's packet for the open round is here: none, part, whole or silent."""
        return self._round.delivered(context)

    # Receiving

    def _receive(
        self, peer: str, header: seal.Header, body: bytes, now: float, touched: set[int]
    ) -> None:
        if self._sealing.is_own(header.context, body):
            return
        if header.context == seal.ENROL:
            self._receive_hello(peer, body, now)
            return
        node = self.nodes.speaker(header.context, peer)
        node.heard_at = now
        self._check_round(round_of(body, self.version, self.plan, self.settings.bundles))
        place = self._round.place(node.context, body)
        if place & BUNDLE and not self.settings.bundles:
            raise WireError("bundle", "this host takes no bundles any more")
        try:
            is_new = self._take(node, place, body)
        finally:
            touched.update(self._round.contributors(place))
        for context in self._round.contributors(place):
            self.nodes[context].heard_at, self.nodes[context].active = now, True
        if is_new:
            self._events.append(BodyAccepted(place, self.version, body))
        else:
            self.refused["duplicate"] += 1
            node.refused["duplicate"] += 1

    def _take(self, node: Node, place: int, body: bytes) -> bool:
        try:
            is_new = self._round.add(place, body)
            packet = self._round.whole_packet(place) if is_new else None
            if packet is not None:  # before, its seals alone speak for it
                self._notary.check_packet(node.name, self.run, self.version, *packet)
            return is_new
        except WireError as error:
            # A node that has lost its disk makes another packet: its shares must not mix with what
            # is here of the first one.
            is_other = error.reason == "conflict" and body[0] == manifest.KIND
            is_other = is_other and not self._round.is_whole(place)
            if is_other or error.reason in ("digest", "signature"):
                self._forget(place)
            if is_other:
                return self._round.add(place, body)
            raise

    def _forget(self, place: int) -> None:
        self._round.forget(place)
        self._events.append(PacketForgotten(place, self.version))

    def _check_round(self, round_number: int) -> None:
        if self.phase != OPEN or round_number < self.version:
            raise WireError("old round", f"a packet for round {round_number}, which is over")
        if round_number > self.version:
            raise WireError("future round", f"a packet for round {round_number}, not yet open")

    def _receive_hello(self, peer: str, body: bytes, now: float) -> None:
        hello = read_hello(body, peer, self._model)
        if not self._notary.may_train(peer):
            raise WireError("role", f"{peer} has no role that learns")
        if hello.run == self.run and hello.version > self.version:
            raise WireError("ahead", f"{hello.name} holds a reference that this host never made")
        node = self._register(hello)
        node.heard_at, node.active = now, True
        self._outgoing.push(peer, seal.ENROL, [self._welcome(hello, node.context, now)])
        self._catch_up(node, hello, now)
        if self.phase == OPEN:
            self._answer(node.context)

    def _register(self, hello: Hello) -> Node:
        node = self.nodes.take_in(hello.name, self.settings.places)
        if node.samples != hello.samples:
            node.samples = hello.samples
            self._events.append(NodeJoined(node.context, node.name, node.samples))
        return node

    def _welcome(self, hello: Hello, context: int, now: float) -> bytes:
        welcome = control.Welcome(
            instance=hello.instance,
            context=context,
            run=self.run,
            version=self.version,
            phase=self.phase,
            deadline_ms=self._deadline_ms(now),
            plan=to_numbers(self.plan),
        )
        return control.write_control(welcome)

    def _catch_up(self, node: Node, hello: Hello, now: float) -> None:
        version = hello.version if hello.run == self.run else 0
        known = hello.reference if hello.run == self.run else self._chain.hash_of(0)
        is_up_to_date = version == self.version and known == self.reference
        if is_up_to_date or not self._catch_ups.may(node.name, now):
            return
        to_it = node.context | seal.DOWN
        if self._outgoing.holds(to_it, pieces.KIND):  # looks through all that waits, so it is last
            return
        for content in self._missing(node, version, known):
            objects = self._notary.travelling(self.run, content)
            self._outgoing.cut(node.name, to_it, objects, self.plan.frame_mtu)

    def _missing(self, node: Node, version: int, known: bytes | None) -> list[bytes]:
        """What brings a node up to date: the references that it lacks, or a snapshot if smaller."""
        steps = self._chain.between(version, known, self.version)
        if steps is not None and sum(map(len, steps)) <= 4 * self.plan.dimension:
            return [self._certified(split_certificate(step)[0]) for step in steps]
        snapshot = Snapshot(
            version=self.version,
            reference=self.reference,
            model=self._model,
            finished=self.phase == FINISHED,
            deadline_ms=self._round_ms,  # not what is left: the same pieces, whenever it is sent
            counted=tuple(row for row in (node.counted, node.bundle) if row is not None),
            state=self.fixed,
        )
        return [self._certified(write_snapshot(snapshot))]

    # Rounds

    def _advance(self, now: float) -> None:
        if self.phase == GATHERING:
            if len(self._waited_for()) >= self.settings.min_peers:
                self.phase = OPEN
                self._open_round(now)
                self._announce(now)
        elif self.phase == OPEN:
            waited_for, present = self._waited_for(), self._round.present()
            are_enough = len(present) >= self.settings.min_peers
            if waited_for and are_enough and present.issuperset(waited_for):
                self._close_round(now)

    def _waited_for(self) -> list[int]:
        nodes = self.nodes.values()
        return [n.context for n in nodes if n.active and self._notary.may_train(n.name)]

    def exclude(self, name: str, now: float) -> None:
        """Nothing of a node counts any more that has not been counted: it was revoked."""
        node = self.nodes.named(name)
        if node is not None:
            self._forget(node.context)
        self._outgoing.ask(now)  # for the rest a new broadcast key, before what is under it
        self._advance(now)

    def _deadline_passed(self, now: float) -> None:
        for node in self.nodes.values():
            node.active = self._round.has_spoken(node.context)
        usable = self._round.count().rows
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
        count, version = self._round.count(), self.version + 1
        shares, units, self.residual = make_step(
            count.packets, self.residual, self._model_hash, version, self.plan
        )
        self.fixed = add_fixed(self.fixed, units)
        self.phase = FINISHED if version >= self.plan.rounds else OPEN
        for context, row in count.rows.items():
            node = self.nodes[context]
            node.counted, node.bundle = row, count.bundles.get(context)
        self._publish(version, shares, count, now)
        self._round = self._new_round(may_be_bundled=self.settings.bundles)
        if self.phase == OPEN:
            self._open_round(now)

    def _certified(self, content: bytes) -> bytes:
        return certify(content, self._notary.certify(self.run, content))

    def _new_round(self, *, may_be_bundled: bool) -> OpenRound:
        nodes = self.nodes if may_be_bundled else None
        return OpenRound(self.plan, self._model, self.version, nodes)

    def _publish(self, version: int, shares: tuple[bytes, ...], count: Count, now: float) -> None:
        counted = tuple(count.rows.values())
        content = write_reference(
            Reference(
                version=version,
                parent=self.reference,
                model=self._model if self._notary.names_model else b"",
                finished=self.phase == FINISHED,
                deadline_ms=self._round_ms,
                counted=(*counted, *dict.fromkeys(count.bundles.values())),
                shares=shares,
            )
        )
        link = Link(version, reference_hash(content), self._certified(content))
        self._chain.append(link)
        self.version, self.reference = version, link.reference
        known = count.rows.keys() | self._round.silent
        made = ReferenceMade(
            version=version,
            reference=link.reference,
            content=link.content,
            fixed=self.fixed,
            residual=self.residual,
            counted=counted,
            missing=tuple(context for context in self.nodes if context not in known),
            finished=self.phase == FINISHED,
            bundles=tuple(count.bundles.items()),
        )
        self._events.append(made)
        objects = self._notary.travelling(self.run, link.content)
        self._outgoing.cut(ALL, seal.BROADCAST, objects, self.plan.frame_mtu)
        self._announce_at = now + self.plan.announce_s

    # Sending

    def _answer(self, context: int) -> None:
        name = self.nodes[context].name
        for answer in self._round.answers(context):
            body = control.write_control(answer)
            if isinstance(answer, Receipt):
                body = self._notary.sign_receipt(name, self.run, body)
            self._outgoing.push(name, context | seal.DOWN, [body])

    def _announce(self, now: float) -> None:
        message = Announce(self.run, self.version, self.phase, self._deadline_ms(now))
        body = self._notary.sign_announce(control.write_control(message))
        self._outgoing.discard(seal.BROADCAST, body[0])  # they pile up without a bearer
        self._outgoing.push(ALL, seal.BROADCAST, [body])
        self._announce_at = now + self.plan.announce_s

    def _deadline_ms(self, now: float) -> int:
        left_ms = round(1000 * (self.deadline - now)) if self.phase == OPEN else 0
        return min(control.INTEGER_MAX, max(0, left_ms))

    def _refuse(self, peer: str, reason: str, now: float, *, aloud: bool = True) -> None:
        self.refused[reason] += 1
        node = self.nodes.named(peer)
        if node is not None:
            node.refused[reason] += 1
        if len(self._events) < REFUSED_SHOWN_MAX:
            self._events.append(Refused(peer, reason))
        if aloud and self._refusals.may(peer, now):
            body = control.write_control(Refusal(self.version, reason))
            self._outgoing.push(peer, seal.ENROL, [body])
