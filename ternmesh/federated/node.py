"""A node's side of a training run, sans-I/O: join, apply global updates, send updates.

`session` says how a program drives it and how it joins. The program also calls `submit` with the
work for a round, after a `WorkReady`. `state.NODE_LEGAL` has the phases of a node:

                welcome                  submit
    joining ─────────────> up to date ─────────────> update pending, or silent
                               ^                               │
                               └─── global update applied ─────┘
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from ternmesh.codec.encoder import zero_residual
from ternmesh.errors import WireError
from ternmesh.federated.aggregation import follow, older_adapter, read_probe
from ternmesh.federated.events import Advanced, Joined, WorkReady
from ternmesh.federated.global_reassembler import GlobalReassembler
from ternmesh.federated.local_update import keep_own
from ternmesh.federated.node_work import NodeWork
from ternmesh.federated.recovery import steps_after
from ternmesh.federated.registry import CHAIN_BYTES_MAX, UpdateChain
from ternmesh.federated.state import ChainLink, Learned, NodePhase, NodeState, NodeStep
from ternmesh.plan import Plan, from_numbers, genesis
from ternmesh.security.authenticator import OPEN, SecurityLayer
from ternmesh.security.membership import HOST
from ternmesh.timers import ANNOUNCES_MISSED, NETWORK_TIMERS, RateLimiter, TimerSettings, earliest
from ternmesh.types import ModelQ24, Vector
from ternmesh.wire import control, fragments
from ternmesh.wire.control import Announce, Control, Receipt, Refusal, Silent, Wanted, Welcome
from ternmesh.wire.frame import BROADCAST, FRAME_MAX
from ternmesh.wire.global_update import NO_GLOBAL_HASH, GlobalSnapshot, GlobalUpdate

OTHER_RUNS_MAX = 16  # other runs whose announces are stored
CHAIN_MAX = 64  # global updates that a node keeps for a host that loses them
ANNOUNCES_SAME = 20  # of a round since the last hello, before a node asks for its receipt again
GIVEN_MIN_S = 2.0  # at most one answer for the same version in this time


class NodeProtocol(NodeWork):
    """One node. `ternmesh.federated.state.NodeState` and `NodeSession` explain the arguments."""

    def __init__(
        self,
        name: str,
        model_hash: bytes,
        samples: int,
        instance: bytes,
        state: NodeState,
        rng: np.random.Generator,
        pace: TimerSettings = NETWORK_TIMERS,
        security: SecurityLayer = OPEN,
        frame_max: Callable[[], int] = lambda: FRAME_MAX,
    ) -> None:
        rest = rng, pace, security, frame_max
        super().__init__(name, model_hash, samples, instance, state, *rest)
        self._chain = UpdateChain(state.global_hash, state.chain, CHAIN_MAX, CHAIN_BYTES_MAX)
        self.target = state.version  # the newest version that this node knows of
        self._is_adrift = False  # a global update does not fit the adapter: a snapshot is needed
        self._offered = -1  # the version of the last `WorkReady`
        self._heard_at = 0.0  # when the last frame of the host came
        self._asked_at = 0.0  # when the last hello was sent
        self._rng = rng
        self._other_runs = RateLimiter(float("inf"), OTHER_RUNS_MAX)
        self._given = RateLimiter(GIVEN_MIN_S, CHAIN_MAX)  # by version of the host
        self._reassembler = GlobalReassembler(self.model_q24.size, model_hash)
        self._catch_up_s = pace.catch_up_s

    # What the program calls

    def start(self, now: float) -> None:
        """Begin: send a hello at once."""
        self._heard_at = now
        super().start(now)

    # Timers

    def next_timeout(self) -> float | None:
        """Return the time when `handle_timeout` is due; None if it is not needed."""
        update_at = None if self._deliveries.is_held(HOST) else self._update_timer.at
        return earliest(self._hello_timer.at, update_at, self._doubts_at())

    def handle_timeout(self, now: float) -> None:
        """Repeat the hello, the update or the silence, if it is due."""
        doubts_at = self._doubts_at()
        if doubts_at is not None and now >= doubts_at:
            self._heard_at = now
            self._say_hello(now)
        if self._hello_timer.due(now):
            self._say_hello(now)
        if self._update_timer.due(now) and not self._deliveries.is_held(HOST):
            self._send_work(now)
        self._ask(now)

    def _doubts_at(self) -> float | None:
        """Return when the host has sent nothing for so long that it may have lost this node.

        A host that goes on announcing the same round may have been restored from an old copy that
        has neither the update nor the node.
        """
        if not self.joined or self.plan is None or self._hello_timer.at is not None:
            return None
        is_lost_at = self._asked_at + ANNOUNCES_SAME * self.plan.announce_s
        silent_at = self._heard_at + ANNOUNCES_MISSED * self.plan.announce_s
        return min(silent_at, is_lost_at) if self.received else silent_at

    def _say_hello(self, now: float) -> None:
        self._asked_at = now
        super()._say_hello(now)

    # Joining

    def _host_restarted(self, now: float) -> None:
        """Say hello soon, unless the host announces this node's run before that."""
        if self.plan is not None:
            wait_s = self._catch_up_s * (0.5 + self._rng.random())
            self._heard_at = now + wait_s - ANNOUNCES_MISSED * self.plan.announce_s

    def _held(self) -> tuple[int, bytes]:
        return self.version, NO_GLOBAL_HASH if self._is_adrift else self.global_hash

    def _read_plan(self, numbers: tuple[int, ...]) -> Plan:
        plan = from_numbers(numbers)
        if plan.dimension != self.model_q24.size:
            raise WireError("vector length", "the host's plan is for an adapter of another size")
        return plan

    def _take_run(self, run: bytes, plan: Plan) -> None:
        self._change_run(run)
        self._take_step(NodeStep.RUN_BEGAN)
        if self.version > 0:
            residual = self.residual if self.pending is None else self.pending.corrected
            self.before = Learned(self.model_q24, residual)
        self.plan = plan
        self.version = 0
        self.global_hash = genesis(self._model_hash, self.run, plan)
        self.model_q24 = np.zeros_like(self.model_q24)
        self.residual = zero_residual(self.model_q24.size)
        self.own_q24 = None
        self.pending = None
        self.silences = 0
        self._chain.clear()
        self.phase = control.GATHERING
        self._offered = -1
        self._reassembler.forget()
        self._update_timer.stop()

    def _welcomed(self, message: Welcome, plan: Plan, now: float) -> None:
        self._reassembler.expect(plan)
        self._heard_at = now
        if message.phase != control.GATHERING:
            self._hello_timer.stop()  # else it says hello again: the open announce may be lost
        self._events.append(Joined(self.run, self.address, plan))
        self.target = self.version  # a host that was restored is behind what it once announced
        self._aim(message.version, message.phase, now)
        if self._is_on_its_way(now):
            return
        if self.received:
            # The answer to the hello has the receipt, unless the host's disk was set back.
            self.received = False
            self._update_timer.again(now)
        else:
            self._send_work(now)

    def _receive_refusal(self, message: Refusal, now: float) -> None:
        self._heard_at = now
        super()._receive_refusal(message, now)

    # Receiving

    def _receive_body(self, address: int, body: bytes, now: float) -> None:
        if body[0] != fragments.KIND:
            raise WireError("kind", f"a node takes no body of kind {body[0]}")
        if self.joined:
            self._receive_fragment(body, address == BROADCAST, now)
        if self._hello_timer.at is not None and address == self._own_address:
            # The host is sending what the hello asked for.
            self._hello_timer.at = max(self._hello_timer.at, now + self._catch_up_s)

    def _receive_control(self, message: Control, now: float) -> None:
        match message:
            case Announce():
                self._receive_announce(message, now)
            case Receipt():
                self._receive_receipt(message)
                self._heard_at = now
            case Silent():
                self._heard_at = now
                if self.silent and message.round == self.version:
                    self._work_received()
            case Wanted():
                self._give_back(message, now)
            case _:
                super()._receive_control(message, now)

    def _receive_announce(self, message: Announce, now: float) -> None:
        """Send frames only if the announce is new: anybody can replay an old announce."""
        self._check_list_number(message.members, now)
        if not self.joined:
            return
        if message.run != self.run:
            if self._other_runs.allow(message.run.hex(), now) or self._hello_timer.at is None:
                self._hello_timer.soon(now)
            return
        news = (message.version, message.phase)
        if news < (self.target, self.phase):
            raise WireError("replay", "an announce of an older state than the newest known one")
        self._heard_at = now
        if news == (self.target, self.phase):
            return
        if self.phase == control.GATHERING:
            self._hello_timer.stop()
        self._aim(message.version, message.phase, now)

    def _aim(self, version: int, phase: int, now: float) -> None:
        """Note the newest version; if this node is behind, ask for the missing global updates."""
        self.target = max(self.target, version)
        self.phase = max(self.phase, phase)
        if self.version < self.target:
            self._hello_timer.by(now + self._catch_up_s * (0.5 + self._rng.random()))

    def _give_back(self, message: Wanted, now: float) -> None:
        """Send a host that is behind the next global updates, or the adapter with the newest."""
        steps = steps_after(message.version, self._chain, self.version, self.model_q24)
        is_on_its_way = self._deliveries.is_held(HOST)
        if not steps or is_on_its_way or not self._given.allow(str(message.version), now):
            return
        self._outgoing.discard(message.address, fragments.KIND)  # an answer that has not left
        mtu = self._known_plan.frame_mtu
        self._outgoing.cut(HOST, message.address, steps, mtu)
        self._hello_timer.by(now + self._catch_up_s)

    # Global updates

    def _receive_fragment(self, body: bytes, is_for_all: bool, now: float) -> None:
        check = partial(self._authenticator.check_certificate, self.run)
        forged = self._reassembler.forged
        found = self._reassembler.add(body, is_for_all, check)
        if self._reassembler.forged > forged:
            self._refuse(HOST, "piece")
        if found is None:
            return
        step, link = found
        version = self.version
        if isinstance(step, GlobalSnapshot):
            self._apply_snapshot(step, now)
        else:
            self._apply_update(step, link, now)
        if step.version > version:
            self._heard_at = now

    def _apply_update(self, step: GlobalUpdate, link: ChainLink, now: float) -> None:
        if step.version < self.version or link.global_hash == self.global_hash:
            return  # a repetition
        plan = self._known_plan
        if step.version == self.version + 1:
            origin = genesis(self._model_hash, self.run, plan)
            moved = follow(step, self._bases(step), self._model_hash, origin, plan)
            if moved is not None:
                probe = read_probe(step, self._model_hash, plan)
                self.residual = moved.residual
                self._chain.append(link)
                self._advance(step, link, moved.model_q24, now, probe)
                return
            self._is_adrift = True
        self.target = max(self.target, step.version)
        self._hello_timer.soon(now)

    def _bases(self, step: GlobalUpdate) -> tuple[Learned | None, ...]:
        """The adapters to which this step may be added."""
        if step.returns_to is None:
            return Learned(self.model_q24, self.residual), self.before
        rest = step.returns_to, self._model_hash, self._known_plan
        older = older_adapter(self.model_q24, self._chain.newest_first(), *rest)
        return () if older is None else (Learned(older, self.residual),)

    def _apply_snapshot(self, step: GlobalSnapshot, now: float) -> None:
        if step.version >= self.version and step.global_hash != self.global_hash:
            self._chain.clear()
            link = ChainLink(step.version, step.global_hash, b"")
            self._advance(step, link, step.state, now)

    def _advance(
        self,
        step: GlobalUpdate | GlobalSnapshot,
        link: ChainLink,
        model_q24: ModelQ24,
        now: float,
        probe: Vector | None = None,
    ) -> None:
        carried = self.residual if self.pending is None else self.pending.corrected
        counts_own = self._settle(step.counted)
        # Else the adapter did not move by what the fleet has learned.
        is_next = isinstance(step, GlobalUpdate) and step.returns_to is None and self.before is None
        moved_q24 = model_q24.astype(np.int64) - self.model_q24
        rest = carried - self.residual, moved_q24, self._known_plan
        self.own_q24 = keep_own(self.own_q24, *rest) if is_next else None
        self._is_adrift = False
        self._take_step(NodeStep.RUN_ENDED if step.finished else NodeStep.ADVANCED)
        self._outgoing.discard(self.address)
        self._update_timer.stop()
        self._refused_timer.stop()
        self.received = False
        self.version, self.global_hash = step.version, link.global_hash
        self.model_q24, self.before = model_q24, None
        self.target = max(self.target, step.version)
        self.phase = max(self.phase, control.FINISHED if step.finished else control.OPEN)
        self._offered = -1
        if self.version >= self.target:
            self._hello_timer.stop()
        else:
            self._hello_timer.at = now + self._catch_up_s
        advanced = Advanced(
            version=step.version,
            global_hash=link.global_hash,
            model_q24=model_q24,
            residual=self.residual,
            finished=step.finished,
            content=link.content,
            oldest=self._chain.oldest,
            counts_own=counts_own,
            counts_nobody=isinstance(step, GlobalSnapshot) or not step.counted,
            probe=probe,
            has_returned=isinstance(step, GlobalUpdate)
            and step.returns_to is not None
            and not step.counted,
            own_q24=self.own_q24,
        )
        self._events.append(advanced)

    # Work

    def _frames_taken(self) -> None:
        """Emit `WorkReady` if this round needs work; once per round."""
        is_open = self.joined and self.phase == control.OPEN and self.version >= self.target
        is_ready = is_open and self.node_phase is NodePhase.UP_TO_DATE
        if is_ready and self._offered != self.version:
            self._offered = self.version
            self.before = None  # this run begins from nothing
            self._events.append(WorkReady(self.version))
