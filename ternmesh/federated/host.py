"""The host's side of a training run, sans-I/O: register nodes, run rounds, make global updates.

`session` explains how a program drives the host and how nodes join. The phases, as in
`state.RUN_LEGAL`:

                min_peers have joined
    GATHERING ───────────────────────> OPEN(round) ──┐ the updates of all active nodes are here, or
                                          ^          │ the deadline has passed with min_peers
                                          │          v
                                          └── global update made ──> FINISHED after the last round

A node that misses a deadline is inactive until it sends a frame again, and may rest for some rounds
besides; what it sends in time counts. A silent node counts as present without an update.

A host that was restored from an old copy gets what it lacks back from its nodes (`recovery`). To
hear of it first, a deadline counts only nodes known since the start to be at the host's version.
"""

from collections.abc import Collection, Mapping

from ternmesh.codec.encoder import add_residual
from ternmesh.codec.scale import add_q24, to_float
from ternmesh.deliveries import Delivery
from ternmesh.errors import WireError
from ternmesh.federated.aggregation import encode_step, make_step, older_adapter
from ternmesh.federated.consolidation import Consolidation
from ternmesh.federated.events import (
    BodyAccepted,
    GlobalUpdateMade,
    NodeJoined,
    RoundExtended,
    RoundOpened,
    UpdateForgotten,
)
from ternmesh.federated.guard import Guard
from ternmesh.federated.host_run import HostRun
from ternmesh.federated.open_round import PARTIAL_AGGREGATE, Count, OpenRound, check_round, round_of
from ternmesh.federated.registry import CHAIN_BYTES_MAX
from ternmesh.federated.reputation import restored
from ternmesh.federated.robust import MEANS, RobustAggregation, Weighted
from ternmesh.federated.state import (
    RUN_LEGAL,
    ChainLink,
    HostSettings,
    HostState,
    RegisteredNode,
    RunStep,
    addresses_awaited,
    is_any_counted,
)
from ternmesh.plan import Plan
from ternmesh.security.authenticator import OPEN as SECURITY_OPEN
from ternmesh.security.authenticator import SecurityLayer
from ternmesh.security.membership import ALL
from ternmesh.timers import NETWORK_TIMERS, TimerSettings, earliest
from ternmesh.types import ModelQ24, Vector
from ternmesh.wire import control, fragments
from ternmesh.wire.control import GATHERING, OPEN, Announce, Hello, Receipt
from ternmesh.wire.frame import BROADCAST, DOWN, UNASSIGNED
from ternmesh.wire.global_update import (
    Counted,
    GlobalUpdate,
    hash_adapter,
    hash_global_update,
    write_global_update,
)
from ternmesh.wire.update import MANIFEST_KIND

UNHEARD = "unheard"  # the reason that makes a node say hello to a host that has begun anew


class HostProtocol(HostRun):
    """One run over one fleet."""

    def __init__(
        self,
        plan: Plan,
        settings: HostSettings,
        model_hash: bytes,
        run: bytes,
        state: HostState,
        security: SecurityLayer = SECURITY_OPEN,
        pace: TimerSettings = NETWORK_TIMERS,
    ) -> None:
        super().__init__(plan, settings, model_hash, run, state, security, pace)
        # Bodies on disk have a receipt: they count, even if partial aggregates are disabled now.
        stored = any(place & PARTIAL_AGGREGATE for place, _ in state.bodies)
        self._round = self._new_round(may_be_aggregated=settings.partial_aggregates or stored)
        for place, body in state.bodies:
            self._round.add(place, body)
        # Of this process
        self._to_answer: set[int] = set()  # nodes that sent bodies in the last frames
        self._missed: list[int] = []  # nodes for which the round waited at the last full look
        self.aggregation = RobustAggregation(
            plan, model_hash, settings.aggregation, run, restored(state.standings)
        )
        limit = settings.aggregation.guard if self.aggregation.has_probes else 0.0
        keeps_steps = settings.aggregation.name not in MEANS
        self.guard = Guard(plan, model_hash, limit, keeps_steps=keeps_steps)
        self.muted: frozenset[str] = frozenset()
        self.returned = ""  # which global update went back to which version, and why
        self.consolidation = Consolidation(plan.dimension, state.mean)
        # Timers
        self.deadline = 0.0  # the deadline of the open round
        self._is_held = False
        self._announce_at = 0.0

    # What the program calls

    def start(self, now: float) -> None:
        """Begin, or continue after a restart: the open round gets a new deadline."""
        self._ask(now)  # first the key that seals the announce
        for node in self.nodes.values():
            if not self._authenticator.may_train(node.name):
                self._forget(node.address)  # it was revoked while the host was down
        self._lead_on(now)
        self._advance(now)

    def exclude(self, name: str, now: float) -> None:
        """Remove a revoked node's update from the open round."""
        node = self.nodes.named(name)
        if node is not None:
            self._forget(node.address)
            self.residual = self.guard.forget(node.address, self.residual)
            self.aggregation.before = None  # no momentum of its updates
        self._ask(now)  # first the new broadcast key for the others
        self._advance(now)

    def return_to(self, version: int, now: float) -> str:
        """Go back to an older global adapter, for the owner; return why not, or nothing.

        What the host has not sent yet is dropped. The updates of the open round do not count, and
        stay with their nodes.
        """
        if self.phase != OPEN or self.recovering:
            return "no round is open: an older version is for a run that goes on"
        if not 0 <= version < self.version:
            return f"there is no version {version} before {self.version}"
        older = self._older(version)
        if older is None:
            return f"version {version} is not kept any more, or was itself taken back"
        self.guard.reset()
        self._round.silent.update(self.nodes)  # none is missing
        self._go_back((version, older), 0 * self.residual, Count([], {}, {}), now)
        return ""

    def is_excluded(self, name: str) -> bool:
        """Whether a node may not train any more: its key was revoked."""
        return not self._authenticator.may_train(name)

    def delivered(self, address: int) -> str:
        """Return how much of a node's update has arrived: none, part, whole or silent."""
        return self._round.delivered(address)

    # Timers

    def next_timeout(self) -> float | None:
        """Return the time when `handle_timeout` is due."""
        deadline = self.deadline if self.phase == OPEN and not self.recovering else None
        return earliest(self._announce_at, self._recovery.at, deadline, self._next_ask())

    def handle_timeout(self, now: float) -> None:
        """Close or extend the round at its deadline; announce version and phase."""
        self._ask(now)
        self._ask_if_due(now)
        if self.phase == OPEN and not self.recovering and now >= self.deadline:
            self._deadline_passed(now)
        if now >= self._announce_at:
            self._announce(now)

    def handle_delivery(self, delivery: Delivery, now: float) -> None:
        """Note a delivery report of a transport that retransmits messages to nodes."""
        self._deliveries.note(delivery, now)

    # Receiving

    def _receive_body(self, node: RegisteredNode, body: bytes, now: float) -> None:
        if body[0] == fragments.KIND:
            self._receive_fragment(node, body, now)
            return
        number = round_of(body, self.version, self.plan, self.settings.partial_aggregates)
        check_round(number, self.version, is_open=self.phase == OPEN and not self.recovering)
        place = self._round.place(node.address, body)
        if place & PARTIAL_AGGREGATE and not self.settings.partial_aggregates:
            raise WireError("bundle", "this host takes no partial aggregates any more")
        try:
            is_new = self._take(node, place, body)
        finally:
            self._to_answer.update(self._round.contributors(place))
        for address in self._round.contributors(place):
            self.nodes[address].heard(now)
            self.nodes[address].in_step = True
        if is_new:
            self._events.append(BodyAccepted(place, self.version, body))
        else:
            self.refused["duplicate"] += 1
            node.refused["duplicate"] += 1

    def _take(self, node: RegisteredNode, place: int, body: bytes) -> bool:
        """Add a body to the open round. Return False for a duplicate. Raises WireError."""
        try:
            is_new = self._round.add(place, body)
            update = self._round.whole_update(place) if is_new else None
            if update is not None:  # before that, only the frame protection shows the sender
                self._authenticator.check_update(node.name, self.run, self.version, *update)
            return is_new
        except WireError as error:
            # A node that has lost its disk makes another update. Its chunks must not mix with the
            # chunks of the first one that are here.
            is_other = error.reason == "conflict" and body[0] == MANIFEST_KIND
            is_other = is_other and not self._round.is_whole(place)
            if is_other or error.reason in ("digest", "signature"):
                self._forget(place)
            if is_other:
                return self._round.add(place, body)
            raise

    def _forget(self, place: int) -> None:
        self._round.forget(place)
        self._events.append(UpdateForgotten(place, self.version))

    def _frames_taken(self, now: float) -> None:
        for address in self._to_answer:
            self._answer(address)
        self._to_answer = set()
        self._ask(now)  # first a new broadcast key, if there is one
        self._ask_if_due(now)
        self._advance(now)

    # Joining

    def _excuse(self, node: RegisteredNode, now: float) -> None:
        node.active = False  # no round waits for this node
        self._advance(now)

    def _receive_hello(self, hello: Hello, now: float) -> None:
        node = self.nodes.take_in(hello.name, self.settings.places)
        node.heard(now)
        if node.samples != hello.samples:
            node.samples = hello.samples
            self._events.append(NodeJoined(node.address, node.name, node.samples))
        is_lost = self._may_adopt and self.version == 0 < hello.version <= self.plan.last_version
        if is_lost and hello.run != self.run:
            self._adopt(hello)
        if hello.run == self.run and hello.version > self.version:
            self._hear_claim(hello, now)
            return
        node.in_step |= (hello.run, hello.version) == (self.run, self.version)
        self._push_welcome(node, hello.instance, self.version, self.phase, self._deadline_ms(now))
        self._catch_up(node, hello, now)
        if self.phase == OPEN:
            self._answer(node.address)

    # Rounds

    def hold(self, held: bool, now: float) -> None:
        """Keep the open round open until its deadline, or no longer: another group is behind."""
        is_released = self._is_held and not held
        self._is_held = held
        if is_released:
            self._advance(now)

    def _lead_on(self, now: float) -> None:
        if self.phase == OPEN:
            self._open_round(now)
        self._announce(now)

    def _begin_round(self) -> None:
        self._round = self._new_round(may_be_aggregated=self.settings.partial_aggregates)

    def _given_back(self, link: ChainLink, rows: Mapping[int, Counted], giver: str) -> None:
        self.guard.reset()
        self._move_on(link, Count([], dict(rows), {}), (), giver)

    def _advance(self, now: float) -> None:
        """Open the first round or close the open round, if its condition is met."""
        if self.recovering:
            return
        if self.phase == GATHERING and len(self.awaited(now)) >= self.settings.min_peers:
            self.phase = RUN_LEGAL[self.phase][RunStep.ENOUGH_JOINED]
            if self.model_q24.any():  # it is of another run: version 1 takes it along
                self._round.silent.update(self.nodes)  # nobody was asked for an update
                chunks, _ = encode_step(0 * self.residual, self._model_hash, 1, self.plan)
                self._publish(1, chunks, Count([], {}, {}), now)
            self._lead_on(now)
        elif self.phase == OPEN and not (self._is_held or self._is_waiting(now)):
            awaited, ready = self.awaited(now), self._round.ready()
            self._missed = [address for address in awaited if address not in ready]
            if awaited and not self._missed and len(ready) >= self.settings.min_peers:
                self._close_round(now)

    def _is_waiting(self, now: float) -> bool:
        """Whether the round still waits for a node of the last full look at all of them.

        One such node is proof enough: so the frames of one node cost no look at all others.
        """
        while self._missed:
            node = self.nodes[self._missed[-1]]
            is_able = self._authenticator.may_train(node.name)
            is_awaited = is_able and node.is_awaited(self.version, now)
            if is_awaited and not self._round.is_ready(node.address):
                return True
            self._missed.pop()
        return False

    def awaited(self, now: float) -> list[int]:
        """Return the addresses of the nodes that the round waits for."""
        able = [n for n in self.nodes.values() if self._authenticator.may_train(n.name)]
        return addresses_awaited(able, self.version, now)

    def _new_round(self, *, may_be_aggregated: bool) -> OpenRound:
        nodes = self.nodes if may_be_aggregated else None
        all_train = self.plan.rounds == 0 and is_any_counted(self.nodes.values(), self.version - 1)
        return OpenRound(self.plan, self._model, self.version, nodes, all_train=all_train)

    def _open_round(self, now: float) -> None:
        self.deadline = now + self.settings.deadline_s
        self._events.append(RoundOpened(self.version, self.deadline))

    def _deadline_passed(self, now: float) -> None:
        awaited = self.awaited(now)
        for node in self.nodes.values():
            node.active = self._round.has_spoken(node.address)
        usable = self._round.count().rows
        in_step = [a for a in self._round.silent.union(usable) if self.nodes[a].in_step]
        self.deadline = now + self.settings.deadline_s
        if len(in_step) >= self.settings.min_peers:
            # Where each frame is sent once, an update that lacks chunks is as good as it gets.
            enough = self._round.ready().union(usable if self.plan.manifest_repeats else ())
            for address in set(awaited) - enough:
                self.nodes[address].rest(self.version, now, self.settings.deadline_s)
            self._close_round(now)
        else:
            self._events.append(RoundExtended(self.version, self.deadline))
            self._announce(now)
            # These may believe that the host has their update: a refusal makes them say hello.
            unheard = control.write_control(control.Refusal(self.version, UNHEARD))
            for node in self.nodes.values():
                if not node.in_step:
                    self._outgoing.push(node.name, UNASSIGNED, [unheard])

    def _close_round(self, now: float) -> None:
        count = self._round.count()
        if self.plan.rounds == 0 and not self._round.has_news(count.rows):
            if not self._round.all_train:
                return  # the round waits for news
            step = self.consolidation.step(self.model_q24)
            self.residual, count = add_residual(self.residual, step), Count([], {}, {})
        for address in self._round.present():
            self.nodes[address].was_on_time(now, self.settings.deadline_s)
        self._fix_weights()
        combined = self.aggregation.combine(
            count.updates, self.version, self._round.silent, to_float(self.model_q24)
        )
        reputations = self.aggregation.reputations
        # Only the guard may keep what the nodes sent: with many nodes it is much.
        sent, self.aggregation.sent = self.aggregation.sent, Weighted()
        oldest = self._chain.reach(CHAIN_BYTES_MAX)  # as far as nodes can follow
        rest = sent, combined, reputations, oldest
        back = self.guard.look(self.version, self.residual, *rest)
        older = None if back is None else self._older(back.version)
        if back is None or older is None:
            self._make_step(combined, count, now)
        else:
            self.guard.returned(back, reputations)
            names = ", ".join(sorted(self.nodes[address].name for address in back.without))
            why = f": since then the boards' loss has risen by {back.rise:.2f}, likely by {names}"
            self._go_back((back.version, older), back.residual, count, now, why)

    def _go_back(
        self, older: tuple[int, ModelQ24], residual: Vector, count: Count, now: float, why: str = ""
    ) -> None:
        """Make the next global update from an older version and a residual."""
        self.residual = residual
        # These are of the adapters that are taken back.
        self.consolidation = Consolidation(self.plan.dimension)
        self.aggregation.before = None
        self.returned = f"global update {self.version + 1} goes back to version {older[0]}{why}"
        self._make_step(0 * residual, count, now, older)

    def _older(self, version: int) -> ModelQ24 | None:
        """The global adapter of an older version; None where the steps since are not kept."""
        links = self._chain.newest_first()
        return older_adapter(self.model_q24, links, version, self._model_hash, self.plan)

    def _make_step(
        self, combined: Vector, count: Count, now: float, older: tuple[int, ModelQ24] | None = None
    ) -> None:
        """Make the next global update, from the newest adapter or an `older` one of its version."""
        version = self.version + 1
        returns_to, base_q24 = older or (None, self.model_q24)
        probe = self.aggregation.probe(version) if older is None else ()
        rest = self._model_hash, version, self.plan
        made = make_step(combined, self.residual, *rest, has_probe=bool(probe))
        chunks, delta_q24, self.residual = made
        self.model_q24 = add_q24(base_q24, delta_q24)
        self._publish(version, chunks, count, now, probe, returns_to)
        if self.phase == OPEN:
            self._open_round(now)

    def _publish(
        self,
        version: int,
        chunks: tuple[bytes, ...],
        count: Count,
        now: float,
        probe: tuple[bytes, ...] = (),
        returns_to: int | None = None,
    ) -> None:
        content = write_global_update(
            GlobalUpdate(
                version=version,
                adapter_hash=hash_adapter(self._origin, version, self.model_q24),
                model=self._model if self._authenticator.names_model else b"",
                finished=version >= self.plan.last_version,
                deadline_ms=self._round_ms,
                counted=(*count.rows.values(), *dict.fromkeys(count.partial_aggregates.values())),
                chunks=chunks,
                probe=probe,
                returns_to=returns_to,
            )
        )
        link = ChainLink(version, hash_global_update(content), self._certified(content))
        known = count.rows.keys() | self._round.silent
        missing = tuple(address for address in self.nodes if address not in known)
        self._move_on(link, count, missing, returns_to=returns_to)
        objects = self._authenticator.objects_to_send(self.run, link.content)
        self._outgoing.cut(ALL, BROADCAST, objects, self.plan.frame_mtu)
        self._announce_at = now + self.plan.announce_s

    def mute(self, names: Collection[str]) -> None:
        """From now on nodes with these names count nothing, as if `fixed` said so."""
        self.muted = frozenset(names)
        self._fix_weights()

    def _fix_weights(self) -> None:
        fixed = {**self.settings.aggregation.fixed, **dict.fromkeys(self.muted, 0.0)}
        named = {name: self.nodes.named(name) for name in fixed}
        self.aggregation.reputations.fixed = {
            node.address: fixed[name] for name, node in named.items() if node is not None
        }

    def _move_on(
        self,
        link: ChainLink,
        count: Count,
        missing: tuple[int, ...],
        given_by: str = "",
        returns_to: int | None = None,
    ) -> None:
        """Take the global update of `link` as the newest, and begin the round after it."""
        is_last = link.version >= self.plan.last_version
        self.phase = RUN_LEGAL[self.phase][RunStep.RUN_ENDED if is_last else RunStep.ROUND_CLOSED]
        self.version, self.global_hash = link.version, link.global_hash
        self._chain.append(link)
        for address, row in count.rows.items():
            node = self.nodes[address]
            node.counted = row
            node.partial_aggregate = count.partial_aggregates.get(address)
        made = GlobalUpdateMade(
            version=link.version,
            global_hash=link.global_hash,
            content=link.content,
            model_q24=self.model_q24,
            residual=self.residual,
            counted=tuple(count.rows.values()),
            missing=missing,
            finished=is_last,
            partial_aggregates=tuple(count.partial_aggregates.items()),
            given_by=given_by,
            mean=b"" if count.rows or self.plan.rounds else self.consolidation.stored(),
            evaluation=count.evaluation,
            evaluations=count.evaluations,
            standings=self.aggregation.reputations.stored(),
            returns_to=returns_to,
        )
        self._events.append(made)
        self._begin_round()

    # Sending

    def _answer(self, address: int) -> None:
        name = self.nodes[address].name
        for answer in self._round.answers(address):
            body = control.write_control(answer)
            if isinstance(answer, Receipt):
                body = self._authenticator.sign_receipt(name, self.run, body)
            self._outgoing.push(name, address | DOWN, [body])

    def _announce(self, now: float) -> None:
        state = self.version, self.phase, self._deadline_ms(now), self._authenticator.list_number
        body = self._authenticator.sign_announce(control.write_control(Announce(self.run, *state)))
        self._outgoing.discard(BROADCAST, control.KIND)  # replaces a queued announce
        self._outgoing.push(ALL, BROADCAST, [body])
        self._announce_at = now + self.plan.announce_s

    def _deadline_ms(self, now: float) -> int:
        left_ms = round(1000 * (self.deadline - now)) if self.phase == OPEN else 0
        return min(control.INTEGER_MAX, max(0, left_ms))
