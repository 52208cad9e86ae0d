"""What the host of a fleet does, sans-I/O: it registers nodes, runs rounds, makes global updates.

The program calls `receive_frames` and `handle_timeout`. It then takes all events with
`next_event`, makes them durable, and sends `frames_to_send`. Time is an argument, in seconds of any
clock that does not jump.

The states of a run, as in `state.RUN_LEGAL`; a round is open in OPEN, and in no other state:

                       enough nodes have joined        the last round was closed
            GATHERING ──────────────────────────> OPEN ──────────────────────────> FINISHED
               │  ^                               │  ^
     a node has │  │ that was                      │  │ the host has
     newer ones v  │ not true                      v  │ these, too
         GATHERING_BEHIND ─────────────────────> BEHIND
                           a node gave one back

From both states of a host that is behind, the last global update leads to FINISHED.

A round, in the order of the methods: bodies arrive (`_receive_update`), until the round has all of
them or its deadline passes (`_advance`, `_deadline_passed`). Then it is closed, and what counts is
combined, encoded (both by a `Combiner`), certified and published (`end_round`).

A node that misses a deadline is inactive until it sends a frame again, and may rest for some rounds
besides; what it sends in time counts. A silent node counts as present without an update.

A host that was restored from an old copy gets what it lacks back from its nodes (`recovery`). To
hear of it first, a deadline counts only nodes known since the start to be at the host's version.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ternmesh.codec.encoder import zero_residual
from ternmesh.deliveries import Delivery
from ternmesh.errors import WireError
from ternmesh.federated import audit, events
from ternmesh.federated.aggregation import encode_step
from ternmesh.federated.channel import Channel
from ternmesh.federated.combiner import Combiner, Proposal
from ternmesh.federated.events import HostEvent
from ternmesh.federated.fleet_session import FleetSession, Handlers
from ternmesh.federated.open_round import Count, OpenRound, check_round, round_of
from ternmesh.federated.recovery import ASKS_MAX, Recovery, own_rows
from ternmesh.federated.registry import CatchUp, NodeRegistry, UpdateChain
from ternmesh.federated.state import (
    RUN_LEGAL,
    WIRE_PHASES,
    ChainLink,
    HostSettings,
    HostState,
    RegisteredNode,
    RunState,
    RunStep,
    next_state,
)
from ternmesh.plan import Plan, genesis, to_numbers
from ternmesh.security.authenticator import OPEN, SecurityLayer
from ternmesh.security.membership import ALL
from ternmesh.timers import NETWORK_TIMERS, TimerSettings, earliest
from ternmesh.types import ModelQ24
from ternmesh.wire import control, fragments, global_update, release, update
from ternmesh.wire.control import Hello, Refusal
from ternmesh.wire.frame import BROADCAST, DOWN, NODE_MAX, UNASSIGNED
from ternmesh.wire.global_update import Certificate, GlobalSnapshot, GlobalUpdate
from ternmesh.wire.proof import LEAF, RoundRows, restored, write_proofs


@dataclass(frozen=True, slots=True)
class Awaiting:
    """A global update to which the other voters have not agreed yet."""

    proposal: Proposal
    count: Count
    content: bytes
    rows: bytes  # as in `ChainLink`


PROVED_TO_ALL = 4  # leaves of proofs that go to all nodes
UNHEARD = "unheard"  # the reason that makes a node say hello to a host that has begun anew


class HostProtocol:
    """One run over one fleet.

    >>> from ternmesh.federated.state import new_host_state
    >>> from ternmesh.plan import make_plan
    >>> host = HostProtocol(
    ...     plan=make_plan(8, rounds=3, local_steps=1, learning_rate=0.1),
    ...     settings=HostSettings(min_peers=2),
    ...     model_hash=bytes(32),
    ...     run=bytes(range(8)),
    ...     state=new_host_state(dimension=8),
    ... )
    >>> host.start(now=0.0)
    >>> while (event := host.next_event()) is not None:
    ...     pass  # save it to disk, before the frames are sent
    >>> [(peer, len(frames)) for peer, frames in host.frames_to_send(now=0.0)]
    [('all', 1)]
    """

    def __init__(
        self,
        *,
        plan: Plan,
        settings: HostSettings,
        model_hash: bytes,
        run: bytes,
        state: HostState,
        security: SecurityLayer = OPEN,
        pace: TimerSettings = NETWORK_TIMERS,
    ) -> None:
        self.plan = plan
        self.settings = settings
        self._model_hash = model_hash
        self.channel = Channel[HostEvent](run=run, counter=state.counter, security=security)
        self.refused = self.channel.refused  # frames, by reason
        self.nodes = NodeRegistry(state.nodes, new=RegisteredNode)
        self.session = FleetSession(
            channel=self.channel,
            nodes=self.nodes,
            model=model_hash[: update.MODEL_SIZE],
            plan=to_numbers(plan),
            excuse=self._excuse,
            answer_s=pace.catch_up_s,
        )
        self.handlers = self._new_handlers()
        # The run, which the program keeps on disk as `HostState`
        self.run, origin = run, genesis(model_hash, run, plan)
        self.state = state.run_state
        self.version = state.version  # of the newest global update
        self.global_hash = state.global_hash or origin
        self.model_q24 = state.model_q24
        self.residual = state.residual
        self.chain = UpdateChain(origin, state.chain, settings.chain_max)
        # The open round
        self.round = self._new_round(state.bodies)
        self.deadline = 0.0  # the caller's clock
        self.is_held = False  # it stays open until its deadline, whatever is here
        self.awaiting: Awaiting | None = None  # with other voters: what they are to agree to
        self.added_up: Count | None = None  # on an aggregator: what the host above has of it
        self.combiner = Combiner(
            plan=plan,
            settings=settings.aggregation,
            model_hash=model_hash,
            run=run,
            nodes=self.nodes,
            mean=state.mean,
            standings=state.standings,
            kept=state.kept,
        )
        self.recovery = Recovery(
            plan=plan,
            model_hash=model_hash,
            authenticator=security.authenticator,
            pause_s=pace.catch_up_s,
            may_adopt=state.is_first and settings.decides_alone,
        )
        self._catch_up = CatchUp(pace.catch_up_s)
        self.audits = audit.Audits(plan, model_hash)
        self._announce_at = 0.0

    def _new_handlers(self) -> Handlers:
        """What a host receives. The program adds what comes without a seal (`host.enrolment`)."""
        return Handlers(
            of_node={
                update.MANIFEST_KIND: self._receive_update,
                update.CHUNK_KIND: self._receive_update,
                control.KIND: self._receive_update,  # a `Silent`
                fragments.KIND: self._receive_lost_update,
            },
            of_peer={
                Hello: self._receive_hello,
                control.Report: self.session.receive_report,
                Refusal: self.session.receive_refusal,
                release.STATUS: self.session.receive_release_status,
            },
        )

    # What the program calls

    def start(self, now: float) -> None:
        """Begin, or continue after a restart: the open round gets a new deadline."""
        self.session.send_due(now)  # first the key that seals the announce
        for node in self.nodes.values():
            if self.is_excluded(node.name):
                self._forget(node.address)  # it was revoked while the host was down, or just before
                self.residual = self.combiner.forget(node.address, self.residual)
        self._lead_on(now)
        self._advance(now)

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Handle frames from a peer, then do what follows from them."""
        self.session.receive_frames(peer, frames, self.handlers, self.version, now)
        unanswered, self.round.unanswered = self.round.unanswered, set()
        for address in unanswered:
            self._answer(address)
        self.session.send_due(now)  # first a new broadcast key, if there is one
        self._ask_if_due(now)
        self._advance(now)

    def next_timeout(self) -> float | None:
        """Return the time when `handle_timeout` is due."""
        deadline = self.deadline if self.is_collecting else None
        return earliest(self._announce_at, self.recovery.at, deadline, self.session.next_due())

    def handle_timeout(self, now: float) -> None:
        """Close or extend the round at its deadline; announce version and phase."""
        self.session.send_due(now)
        self._ask_if_due(now)
        if self.is_collecting and now >= self.deadline:
            self._deadline_passed(now)
        if now >= self._announce_at:
            self._announce(now)

    def handle_delivery(self, delivery: Delivery, now: float) -> None:
        """Note a delivery report of a transport that retransmits messages to nodes."""
        self._catch_up.deliveries.note(delivery, now)

    def next_event(self) -> HostEvent | events.SessionEvent | None:
        """Return the next event to save or handle; None if there are no more."""
        return self.channel.next_event()

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:  # noqa: ARG002
        """Return frames by peer. Call this after the events are on disk."""
        return self.channel.frames_to_send()

    def exclude(self, name: str, now: float) -> None:
        """Remove a revoked node's update from the open round."""
        node = self.nodes.named(name)
        if node is not None:
            self._forget(node.address)
            self.residual = self.combiner.forget(node.address, self.residual)
        self.session.send_due(now)  # first the new broadcast key for the others
        self._advance(now)

    def hold(self, held: bool, now: float) -> None:
        """Keep the open round open until its deadline, or no longer: another group is behind."""
        is_released = self.is_held and not held
        self.is_held = held
        if is_released:
            self._advance(now)

    def return_to(self, version: int, now: float) -> str:
        """Go back to an older global adapter, for the owner; return why not, or nothing.

        What the host has not sent yet is dropped. The updates of the open round do not count, and
        stay with their nodes.
        """
        if not self.is_collecting:
            return "no round is open: an older version is for a run that goes on"
        if not 0 <= version < self.version:
            return f"there is no version {version} before {self.version}"
        combined = self.combiner.return_to(version, self.model_q24, self.chain)
        if combined is None:
            return f"version {version} is not kept any more, or was itself taken back"
        self.round.silent.update(self.nodes)  # none is missing
        proposal = self.combiner.encode(combined, self.version + 1, self.global_hash)
        self._propose(proposal, Count(), now, returns_to=version)
        return ""

    # With other voters

    @property
    def is_collecting(self) -> bool:
        """Whether a round is open, and takes updates."""
        return self.state is RunState.OPEN and self.awaiting is None and self.added_up is None

    def agreed(self, certificate: Certificate, now: float) -> None:
        """The voters agree to what is `awaiting`: publish it."""
        assert self.awaiting is not None
        awaiting, self.awaiting = self.awaiting, None
        content = awaiting.content
        name = global_update.hash_global_update(content)
        data = global_update.certify(content, certificate)
        link = ChainLink(awaiting.proposal.version, name, data, awaiting.rows)
        self.model_q24, self.residual = awaiting.proposal.model_q24, awaiting.proposal.residual
        self._take_newest(link, awaiting.count, returns_to=awaiting.proposal.returns_to)
        self._publish(link, restored(link.rows) if link.rows else None, now)
        if self.state is RunState.OPEN:
            self._open_round(now)

    # Below another host

    def take_step(
        self,
        step: GlobalUpdate | GlobalSnapshot,
        link: ChainLink,
        model_q24: ModelQ24,
        rows: RoundRows,
        now: float,
    ) -> None:
        """Take the next global update of the host above, or its newest adapter, and pass it on.

        `rows` proves what it counts of this region; nothing of an open round counts otherwise.
        """
        counted = {} if rows.rows is None else {row.address: row for row in rows.rows}
        count = Count(rows=counted) if self.added_up is None else self.added_up
        count = replace(count, rows=counted)
        self.added_up = None
        if self.state is RunState.GATHERING:
            self._step(RunStep.ENOUGH_JOINED)
        if step.version != self.version + 1:
            self.chain.clear()
        self.model_q24 = model_q24
        link = replace(link, rows=rows.stored())
        self._take_newest(link, count)
        if link.content:
            self._publish(link, rows, now)
        if self.state is RunState.OPEN:
            self._open_round(now)

    # What the program shows

    @property
    def phase(self) -> int:
        """The phase that nodes are told (`wire.control`)."""
        return WIRE_PHASES[self.state]

    @property
    def boards(self) -> Iterator[RegisteredNode]:
        """The nodes that have not been given up for now, and may train."""
        return (n for n in self.nodes.values() if n.active and not self.is_excluded(n.name))

    def is_excluded(self, name: str) -> bool:
        """Whether a node may not train any more: its key was revoked."""
        return not self.channel.authenticator.may_train(name)

    def awaited(self, now: float) -> list[int]:
        """Return the addresses of the nodes that the round waits for.

        Where all boards rest, it waits for all: else each round would last until its deadline.
        """
        boards = list(self.boards)
        awaited = [node.address for node in boards if node.is_awaited(self.version, now)]
        return awaited or [node.address for node in boards]

    # Joining

    def _receive_hello(self, peer: str, hello: Hello, now: float) -> None:
        """Register a node and tell it where the run is, or ask it for what this host has lost."""
        self.session.check_hello(peer, hello, least=0)
        if not hello.samples:  # it only looks
            guest, version, phase = RegisteredNode(NODE_MAX, peer), self.version, self.phase
            instance, run = hello.instance, self.run
            self.session.welcome(guest, instance, run=run, version=version, phase=phase)
            return
        node = self.nodes.take_in(hello.name, self.settings.places)
        node.heard(now)
        if node.samples != hello.samples:
            node.samples = hello.samples
            self.channel.events.append(events.NodeJoined(node.address, node.name, node.samples))
        is_lost = self.version == 0 < hello.version <= self.plan.last_version
        if is_lost and self.recovery.may_adopt and hello.run != self.run:
            self._adopt(hello)
        if hello.run == self.run and hello.version > self.version:
            # Other hosts give this one what it lacks: a leader of voters has heard of all.
            is_possible = hello.version <= self.plan.last_version
            is_possible = is_possible and self.settings.decides_alone
            if not (is_possible and self.recovery.claim(hello.name, hello.version, now)):
                raise WireError("ahead", f"{peer} has a global update that this host never made")
            self._step(RunStep.CLAIM_HEARD)
        else:
            node.in_step |= (hello.run, hello.version) == (self.run, self.version)
            self.session.welcome(
                node,
                hello.instance,
                run=self.run,
                version=self.version,
                phase=self.phase,
                deadline_ms=self._deadline_ms(now),
            )
            self._send_missing(node, hello, now)
            if self.phase == control.OPEN:
                self._answer(node.address)
        self.session.note_hello(hello, self.run, now)

    def _excuse(self, node: RegisteredNode, now: float) -> None:
        """Wait for a node in no round until its next hello: it cannot train, or must not."""
        node.active = False
        self._advance(now)

    def _send_missing(self, node: RegisteredNode, hello: Hello, now: float) -> None:
        """Send a node the global updates that it lacks, or a snapshot if that is smaller."""
        own = hello.version, hello.global_hash
        version, known = own if hello.run == self.run else (0, self.chain.genesis)
        is_up_to_date = version == self.version and known == self.global_hash
        if is_up_to_date or not self._catch_up.is_due(node.name, now):
            return
        if self.channel.outgoing.holds(node.address | DOWN, fragments.KIND):
            return  # the slowest check, so the last one
        steps = self.chain.between(version, known, self.version)
        is_long = sum(map(len, steps or ())) > 4 * self.plan.dimension
        authenticator = self.channel.authenticator

        def certified(content: bytes) -> list[bytes]:
            data = global_update.certify(content, authenticator.certify(self.run, content))
            return authenticator.objects_to_send(self.run, data)

        is_signer = self.settings.decides_alone
        newest, first = self.chain.link_of(self.version), self.chain.link_of(version + 1)
        objects: list[bytes] = []
        if is_signer and (steps is None or is_long):
            objects = certified(self._snapshot(node))
        elif steps is None and newest is not None:  # this host alone cannot certify
            beside = authenticator.objects_to_send(self.run, newest.content)[:-1]
            objects = [*beside, global_update.write_given(newest.content, self.model_q24)]
        elif steps is not None:
            if first is not None and first.rows:
                objects = write_proofs(restored(first.rows), [node.address])
            for step in steps:
                # Certified once more, where this can be: the host's key may have changed since.
                content, _ = global_update.split_certificate(step)
                again = certified(content) if is_signer else None
                objects += again or authenticator.objects_to_send(self.run, step)
        outgoing, mtu = self.channel.outgoing, self.plan.frame_mtu
        outgoing.push_objects(node.name, node.address | DOWN, objects, mtu)

    def _snapshot(self, node: RegisteredNode) -> bytes:
        """The newest global adapter, for one node."""
        return global_update.write_global_snapshot(
            global_update.GlobalSnapshot(
                version=self.version,
                global_hash=self.global_hash,
                model=self._model_hash[: update.MODEL_SIZE],
                finished=self.state is RunState.FINISHED,
                # Not the time left: the bytes must not depend on the time.
                deadline_ms=self.settings.deadline_ms,
                counted=tuple(filter(None, (node.counted,))),
                state=self.model_q24,
            )
        )

    # A round: what arrives

    def _receive_update(self, node: RegisteredNode, body: bytes, now: float) -> None:
        """Take a body of an update, or a `Silent`, for the open round."""
        number = round_of(body, self.version, self.plan)
        check_round(number, self.version, is_open=self.is_collecting)
        self.round.unanswered.add(node.address)
        is_new = self.take_body(node, body)
        node.heard(now)
        node.in_step = True
        if is_new:
            self.channel.events.append(events.BodyAccepted(node.address, self.version, body))
        else:
            self.channel.refused["duplicate"] += 1
            node.refused["duplicate"] += 1

    def take_body(self, node: RegisteredNode, body: bytes) -> bool:
        """Add a body to the open round. Return False for a duplicate. Raises WireError."""
        address, authenticator = node.address, self.channel.authenticator
        try:
            is_manifest = body[0] == update.MANIFEST_KIND
            if is_manifest and (members := update.read_manifest(body).members):
                if self.settings.is_aggregator or not authenticator.may_add_up(node.name):
                    raise WireError("signature", f"{node.name} is no aggregator")
                if members > authenticator.boards_max:
                    raise WireError("manifest", f"{node.name} has more boards than are enrolled")
            is_new = self.round.add(address, body)
            whole = self.round.whole_update(address) if is_new else None
            if whole is not None:  # before that, only the frame protection shows the sender
                authenticator.check_update(node.name, self.run, self.version, *whole)
                node.samples = whole[0].samples  # more than at its hello, perhaps
                node.members = whole[0].members
            return is_new
        except WireError as error:
            # A node that has lost its disk makes another update. Its chunks must not mix with the
            # chunks of the first one that are here.
            is_other = error.reason == "conflict" and body[0] == update.MANIFEST_KIND
            is_other = is_other and self.round.whole_update(address) is None
            if is_other or error.reason in ("digest", "signature"):
                self._forget(address)
            if is_other:
                return self.round.add(address, body)
            raise

    def _forget(self, address: int) -> None:
        self.round.forget(address)
        self.channel.events.append(events.UpdateForgotten(address, self.version))

    # A round: when it opens and ends

    def _step(self, step: RunStep) -> None:
        self.state = next_state(RUN_LEGAL, self.state, step)

    def _lead_on(self, now: float) -> None:
        """Go on with the round of the newest version, if one is open."""
        if self.state is RunState.OPEN:
            self._open_round(now)
        self._announce(now)

    def _new_round(self, stored: Sequence[tuple[int, bytes]] = ()) -> OpenRound:
        """The round of the newest version, with the bodies that are on disk."""
        counted = (node.counted for node in self.nodes.values())
        has_learned = any(row is not None and row.round == self.version - 1 for row in counted)
        new_round = OpenRound(
            self.plan,
            self._model_hash[: update.MODEL_SIZE],
            self.version,
            all_train=self.plan.rounds == 0 and has_learned,
            only_whole=self.settings.has_voters or self.settings.is_aggregator,
        )
        for address, body in stored:
            new_round.add(address, body)
        return new_round

    def _open_round(self, now: float) -> None:
        self.deadline = now + self.settings.deadline_s
        self.channel.events.append(events.RoundOpened(self.version, self.deadline))

    def _advance(self, now: float) -> None:
        """Begin the run, or end the open round, if nothing is missing for it."""
        if self.state is RunState.GATHERING:
            if len(self.awaited(now)) >= self.settings.min_peers:
                self.begin_run(now)
        elif self.is_collecting and not self.is_held and self._has_all(now):
            self.end_round(now)

    def begin_run(self, now: float) -> None:
        """Open the first round, or make the global update that takes an adapter along."""
        self._step(RunStep.ENOUGH_JOINED)
        if self.model_q24.any():  # it is of another run: version 1 takes it along
            self.round.silent.update(self.nodes)  # nobody was asked for an update
            zeros = zero_residual(self.plan.dimension)
            chunks, _ = encode_step(zeros, self._model_hash, 1, self.plan)
            self._propose(Proposal(1, chunks, self.model_q24, self.residual), Count(), now)
            self._announce(now)
        else:
            self._lead_on(now)

    def _has_all(self, now: float) -> bool:
        """Whether the open round has the updates of all nodes that it waits for.

        One that is missing is proof enough that it has not, and the last look at all nodes named
        some: so the frames of one node cost no look at all others.
        """
        missing = self.round.missing
        while missing:
            node = self.nodes[missing[-1]]
            is_awaited = node.is_awaited(self.version, now) and not self.is_excluded(node.name)
            if is_awaited and not self.round.is_ready(node.address):
                return False
            missing.pop()
        awaited, ready = self.awaited(now), self.round.ready()
        missing += [address for address in awaited if address not in ready]
        if not awaited or missing or len(ready) < self.settings.min_peers:
            return False
        # In the first round nothing is known yet by which boards could be judged.
        return self.version > 0 or not self.channel.authenticator.lacks(self.nodes.names())

    def _deadline_passed(self, now: float) -> None:
        """End the open round with what is here; with too little, it goes on."""
        awaited = self.awaited(now)
        for node in self.nodes.values():
            node.active = self.round.has_spoken(node.address)
        usable = self.round.count().rows
        in_step = [a for a in self.round.silent.union(usable) if self.nodes[a].in_step]
        self.deadline = now + self.settings.deadline_s
        if len(in_step) >= self.settings.min_peers:
            # Where each frame is sent once, an update that lacks chunks is as good as it gets.
            enough = self.round.ready().union(usable if self.plan.manifest_repeats else ())
            for address in set(awaited) - enough:
                self.nodes[address].rest(self.version, now, self.settings.deadline_s)
            self.end_round(now)
            return
        self.channel.events.append(events.RoundExtended(self.version, self.deadline))
        self._announce(now)
        # These may believe that the host has their update: a refusal makes them say hello.
        unheard = control.write_control(Refusal(self.version, UNHEARD))
        for node in self.nodes.values():
            if not node.in_step:
                self.channel.outgoing.push(node.name, UNASSIGNED, [unheard])

    # A round: from what it has to the next global update

    def end_round(self, now: float) -> None:
        """Make the next global update of the open round, unless nobody has news."""
        count = self.round.count()
        if self.plan.rounds == 0 and not self.round.has_news(count.rows):
            if not self.round.all_train:
                return
            count = Count()
        if self.settings.bears_liars and 0 < len(count.rows) < self.settings.min_peers:
            return  # nobody signs a silence: a leader could make up those of all boards but one
        for address in self.round.present():
            self.nodes[address].was_on_time(now, self.settings.deadline_s)
        if self.settings.is_aggregator:
            # A muted board keeps its update: nothing of it is listed.
            muted = {n.address for n in self.nodes.values() if n.name in self.combiner.silenced}
            count = count.without(muted)
            if count.updates:
                self.added_up = count
                made = audit.added_up(count, self._model_hash, self.version, self.plan)
                self.channel.events.append(made)
            return
        combined = self.combiner.combine(
            count,
            silent=self.round.silent,
            version=self.version,
            model_q24=self.model_q24,
            residual=self.residual,
            chain=self.chain,
        )
        proposal = self.combiner.encode(combined, self.version + 1, self.global_hash)
        self._propose(proposal, count, now)

    def _propose(
        self, proposal: Proposal, count: Count, now: float, *, returns_to: int | None = None
    ) -> None:
        """Publish a global update, or wait until the other voters agree to it."""
        authenticator = self.channel.authenticator
        version, counted = proposal.version, tuple(count.rows.values())
        is_long = len(counted) > self.settings.listed_max
        rows = RoundRows(version, rows=counted) if is_long else None
        adapter_hash = global_update.hash_adapter(self.chain.genesis, version, proposal.model_q24)
        content = global_update.write_global_update(
            global_update.GlobalUpdate(
                version=version,
                adapter_hash=adapter_hash,
                model=self._model_hash[: update.MODEL_SIZE] if authenticator.names_model else b"",
                finished=version >= self.plan.last_version,
                deadline_ms=self.settings.deadline_ms,
                counted=() if rows else counted,
                root=rows.root if rows else b"",
                chunks=proposal.chunks,
                probe=proposal.probe,
                returns_to=proposal.returns_to,
            )
        )
        self.awaiting = Awaiting(proposal, count, content, rows.stored() if rows else b"")
        if self.settings.has_voters:
            self.channel.events.append(events.Proposed(version, content, returns_to))
        else:
            self.agreed(authenticator.certify(self.run, content), now)

    def _publish(self, link: ChainLink, rows: RoundRows | None, now: float) -> None:
        """Send a certified global update to all nodes, and to each the proof that it may need."""
        outgoing, mtu = self.channel.outgoing, self.plan.frame_mtu
        if rows is not None and len(self.nodes) <= PROVED_TO_ALL * LEAF:
            outgoing.push_objects(ALL, BROADCAST, write_proofs(rows, self.nodes), mtu)
        elif rows is not None:
            for node in self.boards:
                own = write_proofs(rows, [node.address])
                outgoing.push_objects(node.name, node.address | DOWN, own, mtu)
        objects = self.channel.authenticator.objects_to_send(self.run, link.content)
        outgoing.push_objects(ALL, BROADCAST, objects, mtu)
        self._announce_at = now + self.plan.announce_s

    def _take_newest(
        self, link: ChainLink, count: Count, *, returns_to: int | None = None, given_by: str = ""
    ) -> None:
        """Take a global update as the newest, and begin the round after it."""
        known = count.rows.keys() | self.round.silent
        missing = tuple(a for a in self.nodes if a not in known and not given_by)
        is_last = link.version >= self.plan.last_version
        self._step(RunStep.RUN_ENDED if is_last else RunStep.ADVANCED)
        self.version, self.global_hash = link.version, link.global_hash
        self.chain.append(link)
        for address, row in count.rows.items():
            node = self.nodes[address]
            node.counted = row
        made = events.GlobalUpdateMade(
            version=link.version,
            global_hash=link.global_hash,
            content=link.content,
            model_q24=self.model_q24,
            residual=self.residual,
            counted=tuple(count.rows.values()),
            missing=missing,
            finished=is_last,
            given_by=given_by,
            mean=b"" if count.rows or self.plan.rounds else self.combiner.consolidation.stored(),
            evaluation=count.evaluation,
            evaluations=count.evaluations,
            standings=self.combiner.aggregation.stored(),
            kept=self.combiner.guard.stored(link.version - 1),
            returns_to=returns_to,
            rows=link.rows,
        )
        self.channel.events.append(made)
        self._catch(self.audits.note(count, self.round.updates, link.content))
        self.round = self._new_round()

    def _catch(self, liars: Mapping[int, str]) -> None:
        """From now on nothing of these aggregators counts, and why."""
        for address, why in liars.items():
            name = self.nodes[address].name
            if name not in self.combiner.muted:
                if not self.settings.bears_liars:  # there no single host mutes anybody
                    self.combiner.mute({*self.combiner.muted, name})
                self.channel.events.append(events.LiarCaught(name, why))

    # Recovering what this host has lost

    def _adopt(self, hello: Hello) -> None:
        """Go on with the node's run: the host has lost its own, and gets it back as a claim."""
        self.run = hello.run
        self.channel.sealing.bind(self.run)
        self.global_hash = genesis(self._model_hash, self.run, self.plan)
        self.chain = UpdateChain(self.global_hash, (), self.settings.chain_max)
        self.recovery.may_adopt = False
        self.round = self._new_round()
        self.channel.events.append(events.RunAdopted(self.run, hello.name))

    def _ask_if_due(self, now: float) -> None:
        """Ask the node with the newer version; give its claim up after too many questions."""
        recovery = self.recovery
        if recovery.at is None or now < recovery.at:
            return
        if recovery.tries >= ASKS_MAX:
            self.session.refuse(recovery.give_up(now), "ahead", now, self.version)
        node = self.nodes.named(recovery.source or "")
        if node is None:
            self._step(RunStep.CLAIMS_OVER)
            self._lead_on(now)
            return
        recovery.asked(node.name, self.version, now)
        question = control.write_control(control.Wanted(node.address, self.version))
        self.channel.outgoing.push(node.name, UNASSIGNED, [question])

    def _receive_lost_update(self, node: RegisteredNode, body: bytes, now: float) -> None:
        """Take a fragment of what an aggregator shows, or of what this host has lost."""
        if node.members:
            if node.name in self.combiner.muted:
                raise WireError("audit", f"{node.name} is muted")
            check = partial(self.channel.authenticator.check_board, run=self.run)
            self._catch(self.audits.receive(node.address, body, check))
            return
        if node.name not in self.recovery.givers:
            raise WireError("kind", "a fragment that this host did not ask for")
        if node.name != self.recovery.source:
            node.refused["duplicate"] += 1  # the host has it already, or has given up
            return
        lost = self.recovery.add(
            body,
            run=self.run,
            origin=self.chain.genesis,
            version=self.version,
            model_q24=self.model_q24,
        )
        if lost is None:
            return
        step, link, self.model_q24 = lost
        if step.version != self.version + 1:
            self.chain.clear()
        self.residual = zero_residual(self.plan.dimension)  # no global update tells what it was
        self.combiner.guard.reset()
        self._take_newest(link, Count(rows=own_rows(step.counted, self.nodes)), given_by=node.name)
        self.recovery.advanced(self.version, now)
        if self.recovery.source is None:
            if self.state is not RunState.FINISHED:
                self._step(RunStep.CLAIMS_OVER)
            self._lead_on(now)

    # Sending

    def _answer(self, address: int) -> None:
        """Tell a node what of its update need not be repeated."""
        name = self.nodes[address].name
        for answer in self.round.answers(address):
            body = control.write_control(answer)
            if isinstance(answer, control.Receipt):
                body = self.channel.authenticator.sign_receipt(name, self.run, body)
            self.channel.outgoing.push(name, address | DOWN, [body])

    def _announce(self, now: float) -> None:
        """Tell all nodes where the run is."""
        authenticator, outgoing = self.channel.authenticator, self.channel.outgoing
        message = control.Announce(
            run=self.run,
            version=self.version,
            phase=self.phase,
            deadline_ms=self._deadline_ms(now),
            members=authenticator.list_number,
        )
        outgoing.discard(BROADCAST, control.KIND)  # replaces a queued announce
        body = authenticator.sign_announce(control.write_control(message))
        outgoing.push(ALL, BROADCAST, [body])
        self._announce_at = now + self.plan.announce_s

    def _deadline_ms(self, now: float) -> int:
        left_ms = round(1000 * (self.deadline - now)) if self.phase == control.OPEN else 0
        return min(control.INTEGER_MAX, max(0, left_ms))
