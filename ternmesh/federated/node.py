"""What a node of a fleet does, sans-I/O: it joins a run, applies global updates, sends its own.

A run has rounds. In each the program trains from the newest global adapter and hands the result to
`submit`, which makes an update of it. The host adds up what it gets, and its global update leads
all nodes to the next version of the adapter. What an update could not carry stays in the residual.

The program calls `receive_frames`, `handle_timeout` and, after a `WorkReady`, `submit`. It then
takes all events with `next_event`, makes them durable, and sends `frames_to_send`. Time is an
argument, in seconds of any clock that does not jump. The shape is aioquic's.

A node goes through a run as `LEGAL` says:

    no run ──> new run ──> training ──> update sent <──> update saved
                              ^   └───> silent <───────> silence saved
                              │
                           waiting <── a global update is applied, in every phase of a run

The last global update leads to `finished`, and one that does not fit to `adrift`. Late work leads
from waiting to update sent or silent, new samples from both silences to update sent. Apart from
that, the host may know the node or not: see `joining`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial

import numpy as np

from ternmesh.codec.encoder import add_residual, zero_residual
from ternmesh.codec.scale import add_q24
from ternmesh.deliveries import Delivery, DeliveryState
from ternmesh.errors import WireError
from ternmesh.federated import events, local_update
from ternmesh.federated.aggregation import follow, older_adapter, read_probe
from ternmesh.federated.channel import Channel
from ternmesh.federated.evaluation import Values, with_staleness, write_values
from ternmesh.federated.events import NodeEvent
from ternmesh.federated.global_reassembler import GlobalReassembler
from ternmesh.federated.joining import Handlers, Joining, NodeSettings
from ternmesh.federated.management import BoardManagement
from ternmesh.federated.recovery import steps_after
from ternmesh.federated.registry import CHAIN_BYTES_MAX, UpdateChain
from ternmesh.federated.state import ChainLink, Learned, NodeState, next_state
from ternmesh.federated.update_sender import UpdateSender
from ternmesh.plan import Plan, from_numbers, genesis
from ternmesh.security.authenticator import OPEN, SecurityLayer
from ternmesh.security.membership import HOST
from ternmesh.timers import ANNOUNCES_MISSED, RateLimiter, earliest
from ternmesh.types import ModelQ24, Vector
from ternmesh.wire import control, fragments
from ternmesh.wire.frame import BROADCAST, UNASSIGNED
from ternmesh.wire.global_update import NO_GLOBAL_HASH, Counted, GlobalSnapshot, GlobalUpdate
from ternmesh.wire.knowledge import KIND as KNOWLEDGE
from ternmesh.wire.release import OFFER, SYMBOL

OTHER_RUNS_MAX = 16  # other runs whose announces are stored
CHAIN_MAX = 64  # global updates that a node keeps for a host that loses them
ANNOUNCES_SAME = 20  # of a round since the last hello, before a node asks for its receipt again
GIVEN_MIN_S = 2.0  # at most one answer for the same version in this time

TakeBody = Callable[[bytes, float], None]  # a body of a release or knowledge packet, and the time


class NodePhase(Enum):
    """Where a node is in its run."""

    NO_RUN = "no run"  # it has never been in one
    NEW_RUN = "new run"  # it uses the adapter of the run before, until this run has taught it
    WAITING = "waiting"  # for a round to open, or for a global update that it lacks
    TRAINING = "training"  # for the round of its version
    UPDATE_SENT = "update sent"  # again and again, until the host has saved it
    UPDATE_SAVED = "update saved"  # it waits for the global update
    SILENT = "silent"  # its work is too little for an update: it says so as it sends an update
    SILENCE_SAVED = "silence saved"
    ADRIFT = "adrift"  # a global update does not fit its adapter: it needs a snapshot
    FINISHED = "finished"


class NodeStep(Enum):
    """What takes a node from one phase to another."""

    RUN_BEGAN = "a welcome to another run, or with another plan"
    ROUND_OPENED = "the host's round is open, and the node has its global adapter"
    UPDATE_MADE = "an update was made"
    TOO_LITTLE = "the work is too little for an update"
    SAVED = "the host has saved the update or the silence"
    WELCOMED = "a welcome: the host may have lost what it had saved"
    ADVANCED = "a global update or snapshot was applied"
    RUN_ENDED = "the last global update was applied"
    MISFIT = "a global update does not lead on from the node's adapter"


_BEGAN = {NodeStep.RUN_BEGAN: NodePhase.NEW_RUN}
_IN_RUN = _BEGAN | {
    NodeStep.ADVANCED: NodePhase.WAITING,
    NodeStep.RUN_ENDED: NodePhase.FINISHED,
    NodeStep.MISFIT: NodePhase.ADRIFT,
}
_OPENED = {NodeStep.ROUND_OPENED: NodePhase.TRAINING}
_MADE = {NodeStep.UPDATE_MADE: NodePhase.UPDATE_SENT}
_SUBMITTED = _MADE | {NodeStep.TOO_LITTLE: NodePhase.SILENT}
LEGAL: Mapping[NodePhase, Mapping[NodeStep, NodePhase]] = {
    NodePhase.NO_RUN: _BEGAN,
    NodePhase.NEW_RUN: _IN_RUN | _OPENED,
    # Late work for a round before may become an update of the open one, see `submit`.
    NodePhase.WAITING: _IN_RUN | _OPENED | _SUBMITTED,
    NodePhase.TRAINING: _IN_RUN | _SUBMITTED,
    NodePhase.UPDATE_SENT: _IN_RUN | {NodeStep.SAVED: NodePhase.UPDATE_SAVED},
    NodePhase.UPDATE_SAVED: _IN_RUN | {NodeStep.WELCOMED: NodePhase.UPDATE_SENT},
    # Without an end, a silent node that gets new samples makes an update after all.
    NodePhase.SILENT: _IN_RUN | _MADE | {NodeStep.SAVED: NodePhase.SILENCE_SAVED},
    NodePhase.SILENCE_SAVED: _IN_RUN | _MADE | {NodeStep.WELCOMED: NodePhase.SILENT},
    NodePhase.ADRIFT: _IN_RUN,
    NodePhase.FINISHED: _IN_RUN,  # a restored host may continue from a snapshot
}


def phase_of(state: NodeState) -> NodePhase:
    """The phase in which a node continues after a restart."""
    if state.plan is None:
        return NodePhase.NO_RUN
    if state.pending is not None:
        return NodePhase.UPDATE_SAVED if state.received else NodePhase.UPDATE_SENT
    if state.silent:
        return NodePhase.SILENT
    if state.finished:
        return NodePhase.FINISHED
    return NodePhase.WAITING if state.version else NodePhase.NEW_RUN


class NodeProtocol:
    """One node. `state` is what it had on disk, `samples` how many it trains on.

    `management` takes what the host sets on this board; `rng` only jitters timers.

    >>> from ternmesh.federated.state import new_node_state
    >>> settings = NodeSettings("theo", model_hash=bytes(32), instance=bytes(8))
    >>> rng = np.random.default_rng(0)
    >>> node = NodeProtocol(settings, new_node_state(dimension=8), samples=40, rng=rng)
    >>> node.start(now=0.0)
    >>> while (event := node.next_event()) is not None:
    ...     pass  # save it to disk, before the frames are sent
    >>> [(peer, len(frames)) for peer, frames in node.frames_to_send(now=0.0)]
    [('host', 1)]
    """

    def __init__(
        self,
        settings: NodeSettings,
        state: NodeState,
        *,
        samples: int,
        rng: np.random.Generator,
        security: SecurityLayer = OPEN,
        management: BoardManagement | None = None,
    ) -> None:
        # Its parts
        self.channel: Channel[NodeEvent] = Channel(
            run=state.run, counter=state.counter, security=security
        )
        self.joining = Joining(
            settings,
            self.channel,
            run=state.run,
            address=state.address,
            samples=samples,
            rng=rng,
            management=management,
        )
        self.sender = UpdateSender(self.channel.outgoing, settings.pace, rng)
        self.chain = UpdateChain(state.global_hash, state.chain, CHAIN_MAX, CHAIN_BYTES_MAX)
        self._reassembler = GlobalReassembler(state.model_q24.size, settings.model_hash)
        self.handlers = self._new_handlers()
        self.settings = settings
        # What the program keeps on disk, as `NodeState`
        self.phase = phase_of(state)
        self.plan = state.plan
        self.version = state.version  # of the global adapter; 0 where a run begins
        self.global_hash = state.global_hash  # of the global update that led to it
        self.model_q24 = state.model_q24  # the global adapter, relative to the initial one
        self.residual = state.residual  # what no update has carried yet
        self.pending = state.pending  # the update that no global update has settled yet
        self.silences = state.silences  # silent rounds since the last update
        self.own_q24 = state.own_q24  # what it keeps beside the global adapter
        is_new = self.phase in (NodePhase.NO_RUN, NodePhase.NEW_RUN)
        self.before = state.before if is_new else None  # what the run before has taught
        # What it knows of the host
        self.host_phase = control.GATHERING  # the highest that the host has told
        self.target = state.version  # the newest version that this node knows of
        self._heard_at = 0.0  # when the last frame of the host came
        self._other_runs = RateLimiter(float("inf"), askers_max=OTHER_RUNS_MAX)
        self._given = RateLimiter(GIVEN_MIN_S, askers_max=CHAIN_MAX)  # by version of the host
        # What the program sets
        self.evaluation: Values = ()  # of the global adapter, for the next update
        self.take_release: TakeBody | None = None  # None: this node takes no releases
        self.take_knowledge: TakeBody | None = None  # None: it learns of its own samples only
        if self.plan is not None and self.version == 0:
            self.global_hash = genesis(settings.model_hash, state.run, self.plan)
        if self.pending is not None:  # it may have been made under other keys
            sign = partial(security.authenticator.sign_update, state.run, self.pending.round)
            self.pending = local_update.sign_again(self.pending, sign)

    # What others read

    @property
    def run(self) -> bytes:
        return self.joining.run

    @property
    def address(self) -> int:
        return self.joining.address

    @property
    def refused(self) -> Counter[str]:
        """How many frames were refused, by reason."""
        return self.channel.refused

    @property
    def joined(self) -> bool:
        """Whether the host knows this node under its address."""
        return self.joining.joined

    @property
    def silent(self) -> bool:
        """Whether the work of this round was too little for an update."""
        return self.phase in (NodePhase.SILENT, NodePhase.SILENCE_SAVED)

    @property
    def received(self) -> bool:
        """Whether the host has saved this round's update or silence."""
        return self.phase in (NodePhase.UPDATE_SAVED, NodePhase.SILENCE_SAVED)

    @property
    def finished(self) -> bool:
        """Whether the last global update of the run was applied."""
        return self.phase is NodePhase.FINISHED

    @property
    def adapter_q24(self) -> ModelQ24:
        """The adapter that this node uses: the global one, and what it keeps of its own beside it.

        Until a run has a global adapter, it is that of the run before.
        """
        model_q24 = (self.before or self).model_q24
        return (
            model_q24 if self.own_q24 is None else add_q24(model_q24, self.own_q24.astype(np.int64))
        )

    # What the program calls

    def start(self, now: float) -> None:
        """Begin: send a hello at once."""
        self._heard_at = now
        self.say_hello(now)
        self.joining.send_handshakes(now)

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Handle received frames. A wrong frame is counted as refused and changes nothing."""
        self.joining.receive_frames(
            peer, frames, self.handlers, now, restarted=self._host_restarted
        )
        self._open_round()
        self.joining.send_handshakes(now)

    def next_timeout(self) -> float | None:
        """The time when `handle_timeout` is due; None if it is not needed."""
        return earliest(
            self.joining.hello_timer.at, self.sender.next_timeout(), self._doubts_host_at()
        )

    def handle_timeout(self, now: float) -> None:
        """Repeat the hello, the update or the silence, if it is due."""
        doubts_at = self._doubts_host_at()
        if doubts_at is not None and now >= doubts_at:
            self._heard_at = now
            self.say_hello(now)
        if self.joining.hello_timer.due(now):
            self.say_hello(now)
        if self.sender.timer.due(now) and not self.sender.is_held:
            self._send_work(now)
        self.joining.send_handshakes(now)

    def handle_delivery(self, delivery: Delivery, now: float) -> None:
        """Note a report of a transport that retransmits: a lost update is sent again at once."""
        self.sender.note(delivery, now)
        if self.sender.is_held:
            return
        if delivery.state is DeliveryState.LOST:
            self._send_work(now)
        elif self._work_bodies():
            self.sender.timer.again(now)

    def next_event(self) -> NodeEvent | None:
        """The next event to save or handle; None if there are no more."""
        return self.channel.next_event()

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:  # noqa: ARG002
        """Frames by peer. Call this after the events are on disk."""
        return self.channel.frames_to_send()

    def send_release_status(self, body: bytes) -> None:
        """Tell the host how far this node is with a release."""
        address = self.address if self.joined else UNASSIGNED
        self.channel.outgoing.push(HOST, address, [body])

    def submit_for_others(self, made: events.AddedUp, now: float) -> None:
        """Submit what an aggregator has added up; nothing while the round is not open here."""
        is_open = made.round == self.version and NodeStep.UPDATE_MADE in LEGAL[self.phase]
        if self.pending is None and is_open:
            self.joining.samples = made.samples
            self.evaluation = write_values(made.evaluation)
            corrected = add_residual(self.residual, made.vector)
            state = local_update.state_of(self.residual)
            self._make_update(corrected, now, members=made.members, root=made.root, state=state)

    def submit(self, round_number: int, delta: Vector | None, now: float) -> None:
        """Submit the result of a round: `delta` is adapter minus global adapter (float32, D).

        A delta that comes later than the plan allows, or is too small for an update, stays in the
        residual. An update for an older round goes into the open one, and says so. Without an end,
        None makes the node silent before it submits a delta. Raises CodecError for NaN.
        """
        if delta is None:
            if round_number == self.version and NodeStep.TOO_LITTLE in LEGAL[self.phase]:
                self._fall_silent(self.residual, now)
            return
        if self.pending is not None:
            corrected = add_residual(self.pending.corrected, delta)
            self.pending = replace(self.pending, corrected=corrected)
            self.channel.events.append(events.UpdateMade(self.pending))
            return
        corrected = add_residual(self.residual, delta)
        plan, staleness = self.plan, self.version - round_number
        if (
            plan is None
            or NodeStep.UPDATE_MADE not in LEGAL[self.phase]
            or not 0 <= staleness <= plan.staleness_rounds
            or (self.silent and plan.rounds > 0)
        ):
            self.residual = corrected
            self.channel.events.append(events.ResidualChanged(corrected))
            return
        silence = self.joining.management.settings.get("silence")
        if local_update.is_too_little(corrected, self.model_q24, self.silences, plan, silence):
            self._fall_silent(corrected, now)
            return
        self._make_update(corrected, now, staleness)

    def _make_update(
        self,
        corrected: Vector,
        now: float,
        staleness: int = 0,
        *,
        members: int = 0,
        root: bytes = b"",
        state: bytes = b"",
    ) -> None:
        self.pending = local_update.make_update(
            corrected,
            self.settings.model_hash,
            self.version,
            self.joining.samples,
            self._known_plan,
            sign=partial(self.channel.authenticator.sign_update, self.run, self.version),
            evaluation=with_staleness(self.evaluation, staleness),
            members=members,
            root=root,
            state=state,
        )
        self.silences = 0
        self._take_step(NodeStep.UPDATE_MADE)
        self.channel.events.append(events.UpdateMade(self.pending))
        self.sender.timer.stop()  # the pauses begin anew
        self._send_work(now)

    # What the node receives

    def _new_handlers(self) -> Handlers:
        return {
            # Messages
            control.Welcome: self._receive_welcome,
            control.Refusal: self._receive_refusal,
            control.Announce: self._receive_announce,
            control.Receipt: self._receive_receipt,
            control.Silent: self._receive_silent,
            control.Wanted: self._receive_wanted,
            control.Inquiry: self.joining.receive_management,
            control.Settings: self.joining.receive_management,
            # Parts of larger objects
            fragments.KIND: self._receive_fragment,
            OFFER: self._receive_for_all,
            SYMBOL: self._receive_for_all,
            KNOWLEDGE: self._receive_for_all,
        }

    def _receive_welcome(self, message: control.Welcome, _address: int, now: float) -> None:
        if message.instance != self.joining.instance:
            return  # an answer to another node on a shared transport
        plan = from_numbers(message.plan)
        if plan.dimension != self.model_q24.size:
            raise WireError("vector length", "the host's plan is for an adapter of another size")
        is_new = (message.run, plan) != (self.run, self.plan)
        if not self.joining.answers(message, plan.frame_mtu, is_new=is_new):
            return
        if is_new:
            self._begin_run(message.run, plan)
        self.joining.welcomed(message.address)
        self.joining.trip_s = now - self.joining.asked_at
        self._reassembler.expect(plan, genesis(self.settings.model_hash, self.run, plan))
        self._heard_at = now
        if message.phase != control.GATHERING:
            self.joining.hello_timer.stop()  # else it goes on: the open announce may be lost
        self.channel.events.append(events.Joined(self.run, self.address, plan, is_new))
        self.target = self.version  # a host that was restored is behind what it once announced
        self._aim(message.version, message.phase, now)
        if self.pending is not None and self.pending.sent_to is not None:
            self.joining.say_away(self.version)  # it has nothing for this round
        if self.sender.is_on_its_way(now, self.channel.sealing.process_of(HOST)):
            return
        if self.received:
            # The answer to the hello has the receipt, unless the host's disk was set back.
            self._take_step(NodeStep.WELCOMED)
            self.sender.timer.again(now)
        else:
            self._send_work(now)

    def _receive_refusal(self, message: control.Refusal, _address: int, now: float) -> None:
        self._heard_at = now
        self.joining.receive_refusal(message, now)

    def _receive_announce(self, message: control.Announce, _address: int, now: float) -> None:
        """Send frames only if the announce is new: anybody can replay an old announce."""
        self.joining.check_list_number(message.members, now)
        if not self.joined:
            return
        hello_timer = self.joining.hello_timer
        if message.run != self.run:
            if self._other_runs.allow(message.run.hex(), now) or hello_timer.at is None:
                hello_timer.soon(now)
            return
        told, known = (message.version, message.phase), (self.target, self.host_phase)
        if told < known:
            raise WireError("replay", "an announce of an older state than the newest known one")
        self._heard_at = now
        if told == known:
            return
        if self.host_phase == control.GATHERING:
            hello_timer.stop()
        self._aim(message.version, message.phase, now)

    def _receive_receipt(self, message: control.Receipt, _address: int, now: float) -> None:
        pending = self.pending
        if pending is not None and message.round == pending.round:
            is_whole = local_update.is_whole_receipt(message, pending, self._known_plan)
            if is_whole and self.phase is NodePhase.UPDATE_SENT:
                self._work_saved()
                self.channel.events.append(events.UpdateReceived(pending.round))
        self._heard_at = now

    def _receive_silent(self, message: control.Silent, _address: int, now: float) -> None:
        self._heard_at = now
        if self.phase is NodePhase.SILENT and message.round == self.version:
            self._work_saved()

    def _receive_wanted(self, message: control.Wanted, _address: int, now: float) -> None:
        """Send a host that is behind the next global updates, or the adapter with the newest."""
        steps = steps_after(message.version, self.chain, self.version, self.model_q24)
        if not steps or self.sender.is_held or not self._given.allow(str(message.version), now):
            return
        outgoing = self.channel.outgoing
        outgoing.discard(message.address, fragments.KIND)  # an answer that has not left
        outgoing.push_objects(HOST, message.address, steps, self._known_plan.frame_mtu)
        self.joining.hello_timer.by(now + self.settings.pace.catch_up_s)

    def _receive_fragment(self, body: bytes, address: int, now: float) -> None:
        if self.joined:
            forged = self._reassembler.forged
            check = partial(self.channel.authenticator.check_certificate, self.run)
            completed = self._reassembler.add(body, address == BROADCAST, check)
            if self._reassembler.forged > forged:
                self.joining.refuse(HOST, "piece")
            if completed is not None:
                self._apply(*completed, now)
        hello_timer = self.joining.hello_timer
        if hello_timer.at is not None and address == self.joining.own_address:
            # The host is sending what the hello asked for.
            hello_timer.at = max(hello_timer.at, now + self.settings.pace.catch_up_s)

    def _receive_for_all(self, body: bytes, address: int, now: float) -> None:
        """Hand on a part of a release, or knowledge, where the program takes those."""
        if address != BROADCAST:
            raise WireError("kind", "a node takes this only if it is for all nodes")
        take = self.take_knowledge if body[0] == KNOWLEDGE else self.take_release
        if take is not None:
            take(body, now)

    # Joining

    def _host_restarted(self, now: float) -> None:
        """Say hello soon, unless the host announces this node's run before that."""
        if self.plan is not None:
            wait_s = self.joining.catch_up_wait_s()
            self._heard_at = now + wait_s - ANNOUNCES_MISSED * self.plan.announce_s

    def say_hello(self, now: float) -> None:
        is_adrift = self.phase is NodePhase.ADRIFT
        self.joining.say_hello(self.version, NO_GLOBAL_HASH if is_adrift else self.global_hash, now)

    def _doubts_host_at(self) -> float | None:
        """When the host has sent nothing for so long that it may have lost this node.

        A host that goes on announcing the same round may have been restored from an old copy that
        has neither the update nor the node.
        """
        if not self.joined or self.plan is None or self.joining.hello_timer.at is not None:
            return None
        is_lost_at = self.joining.asked_at + ANNOUNCES_SAME * self.plan.announce_s
        silent_at = self._heard_at + ANNOUNCES_MISSED * self.plan.announce_s
        return min(silent_at, is_lost_at) if self.received else silent_at

    def _begin_run(self, run: bytes, plan: Plan) -> None:
        self.joining.begin_run(run)
        self._take_step(NodeStep.RUN_BEGAN)
        if self.version > 0:
            residual = self.residual if self.pending is None else self.pending.corrected
            self.before = Learned(self.model_q24, residual)
        self.plan = plan
        self.version = 0
        self.global_hash = genesis(self.settings.model_hash, run, plan)
        self.model_q24 = np.zeros_like(self.model_q24)
        self.residual = zero_residual(self.model_q24.size)
        self.own_q24 = None
        self.pending = None
        self.silences = 0
        self.chain.clear()
        self.host_phase = control.GATHERING
        self._reassembler.forget()
        self.sender.timer.stop()

    def _aim(self, version: int, phase: int, now: float) -> None:
        """Note the newest version; if this node is behind, ask for the missing global updates."""
        self.target = max(self.target, version)
        self.host_phase = max(self.host_phase, phase)
        if self.version < self.target:
            self.joining.hello_timer.by(now + self.joining.catch_up_wait_s())

    # Global updates

    def _apply(self, step: GlobalUpdate | GlobalSnapshot, link: ChainLink, now: float) -> None:
        version = self.version
        if isinstance(step, GlobalUpdate):
            self._apply_update(step, link, now)
        elif step.version >= version and step.global_hash != self.global_hash:
            link = ChainLink(step.version, step.global_hash, b"")
            # A given adapter lists the rows of a host that may be another than this node's.
            rows = () if self.settings.has_aggregator else step.counted
            self._advance(step, link, Learned(step.state, self.residual), rows, now)
        if step.version > version:
            self._heard_at = now

    def _apply_update(self, step: GlobalUpdate, link: ChainLink, now: float) -> None:
        if step.version < self.version or link.global_hash == self.global_hash:
            return  # a repetition
        plan, model_hash = self._known_plan, self.settings.model_hash
        if step.version == self.version + 1:
            origin = genesis(model_hash, self.run, plan)
            bases: tuple[Learned | None, ...] = Learned(self.model_q24, self.residual), self.before
            if step.returns_to is not None:
                links, to = self.chain.newest_first(), step.returns_to
                older = older_adapter(self.model_q24, links, to, model_hash, plan)
                bases = () if older is None else (Learned(older, self.residual),)
            moved = follow(step, bases, model_hash, origin, plan)
            if moved is not None:
                rows: Sequence[Counted] | None = step.counted
                proof = b""
                is_proved = step.root or self.settings.has_aggregator
                if is_proved and self.pending is not None and self.pending.sent_to is None:
                    has_aggregator = self.settings.has_aggregator
                    rows, proof = self._reassembler.proved(
                        step, self.address, self.pending, has_aggregator=has_aggregator
                    )
                if rows is None:
                    self.joining.hello_timer.soon(now)  # the answer comes with a proof
                    return
                link = replace(link, rows=proof)
                self._advance(step, link, moved, rows, now, read_probe(step, model_hash, plan))
                return
            self._take_step(NodeStep.MISFIT)
        self.target = max(self.target, step.version)
        self.joining.hello_timer.soon(now)

    def _advance(
        self,
        step: GlobalUpdate | GlobalSnapshot,
        link: ChainLink,
        moved: Learned,
        rows: Sequence[Counted],
        now: float,
        probe: Vector | None = None,
    ) -> None:
        """Go on from the adapter to which a step has moved. Raises WireError for a wrong list."""
        carried = moved.residual if self.pending is None else self.pending.corrected
        residual = carried
        if self.pending is not None:
            of_this = self.address, self.settings.model_hash, self._known_plan
            residual = local_update.settle_by_step(self.pending, step, rows, *of_this)
        returns = isinstance(step, GlobalUpdate) and step.returns_to is not None
        if isinstance(step, GlobalSnapshot) or returns or self.before is not None:
            self.own_q24 = None  # the adapter did not move by what the fleet has learned
        else:
            moved_q24 = moved.model_q24.astype(np.int64) - self.model_q24
            plan, counted = self._known_plan, carried - residual
            self.own_q24 = local_update.keep_own(self.own_q24, counted, moved_q24, plan)
        if link.content:
            self.chain.append(link)
        else:
            self.chain.clear()  # nothing leads to a snapshot
        self._take_step(NodeStep.RUN_ENDED if step.finished else NodeStep.ADVANCED)
        self.channel.outgoing.discard(self.address)
        self.sender.timer.stop()
        self.joining.refused_timer.stop()
        self.version = step.version
        self.global_hash = link.global_hash
        self.model_q24 = moved.model_q24
        self.residual = residual
        self.pending = None
        self.before = None
        self.target = max(self.target, step.version)
        self.host_phase = max(self.host_phase, control.FINISHED if step.finished else control.OPEN)
        if self.version >= self.target:
            self.joining.hello_timer.stop()
        else:
            self.joining.hello_timer.at = now + self.settings.pace.catch_up_s
        advanced = events.Advanced(
            version=step.version,
            global_hash=link.global_hash,
            model_q24=moved.model_q24,
            residual=residual,
            finished=step.finished,
            content=link.content,
            oldest=self.chain.oldest,
            counts_own=residual is not carried,
            counts_nobody=isinstance(step, GlobalSnapshot) or not (step.counted or step.root),
            probe=probe,
            has_returned=returns and not step.counted,
            own_q24=self.own_q24,
            rows=link.rows,
        )
        self.channel.events.append(advanced)

    # Work

    def _open_round(self) -> None:
        """Hand out the work of the host's open round, once."""
        is_open = self.joined and self.host_phase == control.OPEN and self.version >= self.target
        if is_open and NodeStep.ROUND_OPENED in LEGAL[self.phase]:
            self._take_step(NodeStep.ROUND_OPENED)
            self.before = None  # this run begins from nothing
            self.channel.events.append(events.WorkReady(self.version))

    def _fall_silent(self, corrected: Vector, now: float) -> None:
        self.residual = corrected
        self.silences += 1
        self._take_step(NodeStep.TOO_LITTLE)
        self.channel.events.append(events.FellSilent(self.version, corrected, self.silences))
        self.sender.timer.stop()  # the pauses begin anew
        self._send_work(now)

    def _send_work(self, now: float) -> None:
        process = self.channel.sealing.process_of(HOST)
        self.sender.send(self.address, self._work_bodies(), now, process)

    def _work_bodies(self) -> tuple[bytes, ...]:
        """The update or the silence that the host may not have; empty if there is none.

        A silence is repeated like an update: if it were sent once and lost, a host that needs every
        node (`min_peers`) could wait for ever.
        """
        if not self.joined or self.joining.management.paused:
            return ()
        if self.phase is NodePhase.UPDATE_SENT and self.pending is not None:
            if self.pending.sent_to is not None:
                return ()  # it might count twice
            # The repeated manifests come last: one burst of losses does not remove all of them.
            bodies = self.pending.bodies
            return bodies + bodies[:1] * self._known_plan.manifest_repeats
        is_silent = self.phase is NodePhase.SILENT
        return (control.write_control(control.Silent(self.version)),) if is_silent else ()

    def _work_saved(self) -> None:
        """Stop repeating the update or the silence: the host has saved it."""
        self._take_step(NodeStep.SAVED)
        self.sender.timer.stop()
        self.joining.refused_timer.stop()

    @property
    def _known_plan(self) -> Plan:
        assert self.plan is not None
        return self.plan

    def _take_step(self, step: NodeStep) -> None:
        self.phase = next_state(LEGAL, self.phase, step)
