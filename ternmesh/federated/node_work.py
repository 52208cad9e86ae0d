"""The work of a node: its update or silence for a round, sent until the host has saved it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ternmesh.codec.encoder import add_residual
from ternmesh.codec.scale import add_q24
from ternmesh.deliveries import Deliveries, Delivery, DeliveryState
from ternmesh.federated.evaluation import with_staleness
from ternmesh.federated.events import (
    FellSilent,
    NodeEvent,
    ResidualChanged,
    UpdateMade,
    UpdateReceived,
)
from ternmesh.federated.local_update import (
    Sign,
    is_too_little,
    is_whole_receipt,
    make_update,
    settle_update,
    sign_again,
    update_bodies,
)
from ternmesh.federated.session import NodeSession
from ternmesh.federated.state import NODE_LEGAL, NodePhase, NodeState, NodeStep
from ternmesh.plan import Plan, genesis
from ternmesh.security.authenticator import SecurityLayer
from ternmesh.security.membership import HOST
from ternmesh.timers import Backoff, TimerSettings
from ternmesh.types import ModelQ24, Vector
from ternmesh.wire import control
from ternmesh.wire.control import Receipt, Silent
from ternmesh.wire.global_update import Counted


class NodeWork(NodeSession[NodeEvent, Plan]):
    """What a node has learned and not yet brought to the host."""

    def __init__(
        self,
        name: str,
        model_hash: bytes,
        samples: int,
        instance: bytes,
        state: NodeState,
        rng: np.random.Generator,
        pace: TimerSettings,
        security: SecurityLayer,
        frame_max: Callable[[], int],
    ) -> None:
        rest = rng, state.run, state.counter, security, pace, frame_max
        super().__init__(name, model_hash, samples, instance, *rest)
        # Kept on disk by the program, as `NodeState`
        self.address = state.address
        self.plan = state.plan
        self.node_phase = state.phase
        self.version = state.version
        self.global_hash = state.global_hash
        self.model_q24 = state.model_q24
        self.residual = state.residual
        self.pending = state.pending
        self.received = state.received  # the host has all of the pending update, or the silence
        self.silences = state.silences
        self.before = state.before
        self.own_q24 = state.own_q24
        self.evaluation: tuple[tuple[int, int], ...] = ()  # set before `submit`
        # Of this process
        self._update_timer = Backoff(pace.update_s, pace.update_longest_s, rng)
        self._deliveries = Deliveries()  # of a transport that retransmits
        self._work_sent_at = 0.0  # when the update or the silence was last sent

        if self.plan is not None and self.version == 0:
            self.global_hash = genesis(model_hash, self.run, self.plan)
        if self.pending is not None:  # it may have been made under other keys
            self.pending = sign_again(self.pending, self._sign(self.pending.round))

    @property
    def adapter_q24(self) -> ModelQ24:
        """The adapter that this node uses: the global one, and what it keeps of its own beside it.

        Until a run has a global adapter, it is that of the run before.
        """
        model_q24 = (self.before or self).model_q24
        return (
            model_q24 if self.own_q24 is None else add_q24(model_q24, self.own_q24.astype(np.int64))
        )

    @property
    def silent(self) -> bool:
        """Whether the delta of this round was too small for an update."""
        return self.node_phase is NodePhase.SILENT

    @property
    def finished(self) -> bool:
        """Whether the last global update of the run was applied."""
        return self.node_phase is NodePhase.FINISHED

    def submit(self, round_number: int, delta: Vector | None, now: float) -> None:
        """Submit the result of a round: `delta` is adapter minus global adapter (float32, D).

        A delta that comes later than the plan allows, or is too small for an update, stays in the
        residual. An update for an older round goes into the open one, and says so. Without an end,
        None makes the node silent before it submits a delta. Raises CodecError for NaN.
        """
        if delta is None:
            if round_number == self.version and self.node_phase is NodePhase.UP_TO_DATE:
                self._fall_silent(self.residual, now)
            return
        if self.pending is not None:
            corrected = add_residual(self.pending.corrected, delta)
            self.pending = replace(self.pending, corrected=corrected)
            self._events.append(UpdateMade(self.pending))
            return
        corrected = add_residual(self.residual, delta)
        plan, may_submit = self.plan, NodeStep.UPDATE_MADE in NODE_LEGAL[self.node_phase]
        staleness = self.version - round_number
        if (
            plan is None
            or not may_submit
            or not 0 <= staleness <= plan.staleness_rounds
            or (self.silent and plan.rounds > 0)
        ):
            self.residual = corrected
            self._events.append(ResidualChanged(corrected))
            return
        silence = self.management.settings.get("silence")
        if is_too_little(corrected, self.model_q24, self.silences, plan, silence):
            self._fall_silent(corrected, now)
            return
        evaluation = with_staleness(self.evaluation, staleness)
        rest = self.samples, plan, self._sign(self.version), evaluation
        self.pending = make_update(corrected, self._model_hash, self.version, *rest)
        self.silences = 0
        self._take_step(NodeStep.UPDATE_MADE)
        self._events.append(UpdateMade(self.pending))
        self._send_new_work(now)

    def _fall_silent(self, corrected: Vector, now: float) -> None:
        self.residual = corrected
        self.silences += 1
        self._take_step(NodeStep.TOO_LITTLE)
        self._events.append(FellSilent(self.version, corrected, self.silences))
        self._send_new_work(now)

    def handle_delivery(self, delivery: Delivery, now: float) -> None:
        """Note a delivery report of a transport that retransmits messages to the host.

        While the transport holds the update, the node does not repeat it. After delivery the node
        waits longer for the receipt. If the update is lost, the node sends it again at once.
        """
        self._deliveries.note(delivery, now)
        if self._deliveries.is_held(HOST):
            return
        if delivery.state is DeliveryState.LOST:
            self._send_work(now)
        elif self._work_bodies():
            self._update_timer.again(now)

    def _receive_receipt(self, message: Receipt) -> None:
        pending = self.pending
        if pending is None or message.round != pending.round:
            return
        is_whole = is_whole_receipt(message, pending, self._known_plan)
        if is_whole and not self.received:
            self._work_received()
            self._events.append(UpdateReceived(pending.round))

    def _work_received(self) -> None:
        """Stop repeating the update or the silence: the host has saved it."""
        self.received = True
        self._update_timer.stop()
        self._refused_timer.stop()

    def _settle(self, counted: Sequence[Counted]) -> bool:
        """Keep what was not counted of the pending update in the residual; False if nothing was."""
        pending, rest = self.pending, (self.address, self._model_hash, self._known_plan)
        if pending is None:
            return False
        self.residual, self.pending = settle_update(pending, counted, *rest), None
        return self.residual is not pending.corrected

    def _send_new_work(self, now: float) -> None:
        self.received = False
        self._update_timer.stop()
        self._send_work(now)

    def _send_work(self, now: float) -> None:
        """Send the update or the silence; repeat it until the host has saved it.

        A silence is treated as an update of one body. If a silence were sent once and lost, a host
        that needs every node (`min_peers`) could wait forever.
        """
        bodies = self._work_bodies()
        if not bodies:
            self._update_timer.stop()
            return
        self._outgoing.discard(self.address)
        self._outgoing.push(HOST, self.address, bodies)
        self._update_timer.again(now)
        self._work_sent_at = now

    def _work_bodies(self) -> tuple[bytes, ...]:
        """Return the update or silence that the host may not have; empty if there is none."""
        if self.received or not self.joined or self.management.paused:
            return ()
        if self.pending is not None:
            return update_bodies(self.pending, self._known_plan)
        return (control.write_control(Silent(self.version)),) if self.silent else ()

    def _is_on_its_way(self, now: float) -> bool:
        """Whether a transport holds the update, or delivered it and its receipt is not overdue."""
        if self._deliveries.is_held(HOST):
            return True
        due_at = self._update_timer.at
        is_delivered = self._deliveries.was_delivered(HOST, self._work_sent_at)
        return is_delivered and due_at is not None and now < due_at

    def _sign(self, round_number: int) -> Sign:
        return partial(self._authenticator.sign_update, self.run, round_number)

    def _take_step(self, step: NodeStep) -> None:
        self.node_phase = NODE_LEGAL[self.node_phase][step]
