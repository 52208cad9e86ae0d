"""Bugs planted on purpose: the simulation must find each within a few seeds.

A simulation that finds nothing proves nothing. The last four are bugs that this core really had.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from ternmesh.codec.encoder import Hypervector, add_residual, settle_residual
from ternmesh.codec.scale import to_vector
from ternmesh.errors import WireError
from ternmesh.federated import channel, host, joining, local_update, node
from ternmesh.federated.aggregation import update_delta_q24
from ternmesh.federated.channel import SealedQueue
from ternmesh.federated.events import Pending, ResidualChanged
from ternmesh.federated.open_round import OpenRound, UpdateReassembler
from ternmesh.plan import Plan
from ternmesh.security import peer_session
from ternmesh.timers import Backoff
from ternmesh.wire import control, global_update
from ternmesh.wire.global_update import write_global_snapshot
from ternmesh.wire.update import Chunk
from tests.sim import simfleet, simprocess
from tests.sim.simledger import Violation

pytestmark = pytest.mark.no_cover

SEEDS = 60  # the budget; the hardest needs about half

Mutant = Callable[[pytest.MonkeyPatch], None]


def settles_without_the_list(patch: pytest.MonkeyPatch) -> None:
    """Every packet that was sent is taken for counted."""

    def settle(
        pending: Pending, counted: object, address: int, model_hash: bytes, plan: Plan
    ) -> np.ndarray:
        delta_q24 = update_delta_q24(pending.bodies[1:], model_hash, pending.round, plan)
        return settle_residual(pending.corrected, to_vector(delta_q24))

    patch.setattr(node, "settle_update", settle)


def settles_whole_packets(patch: pytest.MonkeyPatch) -> None:
    """The list is looked at, the bitmap in it is not."""
    patch.setattr(local_update, "only_counted", lambda carried, have: carried)


def settles_nothing(patch: pytest.MonkeyPatch) -> None:
    """What was counted stays in the residual: it is sent twice."""
    none = np.zeros(1, np.bool_)
    patch.setattr(local_update, "only_counted", lambda carried, have: carried.only(none))


def counts_duplicates_twice(patch: pytest.MonkeyPatch) -> None:
    """A share that comes again is added again."""
    add = UpdateReassembler._add_chunk

    def add_again(self: UpdateReassembler, item: Chunk, body: bytes) -> bool:
        index = item.slice.index
        if self.bodies.get(index) == body:
            self.hypervector().scales[index] *= 2
            return False
        return add(self, item, body)

    patch.setattr(UpdateReassembler, "_add_chunk", add_again)


def sends_before_commit(patch: pytest.MonkeyPatch) -> None:
    """Receipts and packets leave before they are durable."""

    def settle_late(self: simprocess.Process) -> None:
        events = self.record()
        self.send()
        if events and self._cut():
            return
        self.commit()
        self.after_commit(events)
        self._arm()

    patch.setattr(simprocess.Process, "settle", settle_late)


def reuses_counters(patch: pytest.MonkeyPatch) -> None:
    """Counters are reserved without telling anybody: a restart begins where the last one did."""
    reserve = SealedQueue.reserve

    def reserve_silently(self: SealedQueue) -> None:
        reserve(self)

    patch.setattr(SealedQueue, "reserve", reserve_silently)


def takes_the_round_before(patch: pytest.MonkeyPatch) -> None:
    """The round check is off by one: a packet for the round before is taken for this one."""

    def check(number: int, version: int, *, is_open: bool) -> None:
        if not is_open or not version - 1 <= number <= version:
            raise WireError("old round", "planted")

    patch.setattr(host, "check_round", check)


def keeps_the_packet_of_the_round_before(patch: pytest.MonkeyPatch) -> None:
    """The host does not clear what it has counted."""
    close = host.HostProtocol._end_round

    def close_and_keep(self: host.HostProtocol, now: float) -> None:
        intakes = self.round.updates
        close(self, now)
        self.round.updates = intakes

    patch.setattr(host.HostProtocol, "_end_round", close_and_keep)


def forgets_absent_shares(patch: pytest.MonkeyPatch) -> None:
    """The mean divides by all who sent anything, not by those who sent this share."""
    gather = UpdateReassembler.hypervector

    def all_present(self: UpdateReassembler) -> Hypervector:
        vector = gather(self)
        return replace(vector, present=np.ones_like(vector.present))

    patch.setattr(UpdateReassembler, "hypervector", all_present)


def forgets_its_own_residual(patch: pytest.MonkeyPatch) -> None:
    """The host drops what its reference could not carry."""
    close = host.HostProtocol._end_round

    def drop(self: host.HostProtocol, now: float) -> None:
        close(self, now)
        self.residual = np.zeros_like(self.residual)

    patch.setattr(host.HostProtocol, "_end_round", drop)


def never_asks_again(patch: pytest.MonkeyPatch) -> None:
    """A node that missed a reference waits for ever."""
    patch.setattr(Backoff, "soon", lambda self, now: None)
    patch.setattr(node.NodeProtocol, "_aim", lambda self, version, phase, now: _aim(self, phase))


def _aim(self: node.NodeProtocol, phase: int) -> None:
    self.host_phase = phase


def snapshot_without_the_list(patch: pytest.MonkeyPatch) -> None:
    """A snapshot does not say what was counted of the node that it is sent to."""
    write = write_global_snapshot
    patch.setattr(global_update, "write_global_snapshot", lambda s: write(replace(s, counted=())))


def loses_late_work(patch: pytest.MonkeyPatch) -> None:
    """Work that came while a packet was pending went into a residual that was overwritten."""
    submit = node.NodeProtocol.submit

    def submit_wrongly(
        self: node.NodeProtocol, round_number: int, delta: np.ndarray, now: float
    ) -> None:
        if self.pending is None:
            submit(self, round_number, delta, now)
            return
        self.residual = add_residual(self.residual, delta)
        self.channel.events.append(ResidualChanged(self.residual))

    patch.setattr(node.NodeProtocol, "submit", submit_wrongly)


def keeps_the_old_target(patch: pytest.MonkeyPatch) -> None:
    """A new run began, and the node waited for the version of the old one."""
    welcome = node.NodeProtocol._receive_welcome

    def welcome_wrongly(self: node.NodeProtocol, *rest: object) -> None:
        target = self.target
        welcome(self, *rest)  # type: ignore[arg-type]
        self.target = max(self.target, target)

    patch.setattr(node.NodeProtocol, "_receive_welcome", welcome_wrongly)


def counts_any_reason(patch: pytest.MonkeyPatch) -> None:
    """Every word that a stranger sends took a place in the counters for ever."""
    patch.setattr(joining, "REASONS_MAX", 1 << 30)


def piles_up_refusals(patch: pytest.MonkeyPatch) -> None:
    """Every refused frame of a burst left an event."""
    patch.setattr(channel, "REFUSED_SHOWN_MAX", 1 << 30)


def loses_the_work_of_a_silent_round(patch: pytest.MonkeyPatch) -> None:
    """What was too little for a packet is dropped."""
    submit = node.NodeProtocol.submit

    def submit_and_drop(self: node.NodeProtocol, *rest: object) -> None:
        before, was_silent = self.residual, self.silent
        submit(self, *rest)  # type: ignore[arg-type]
        if self.silent and not was_silent:
            self.residual = before
            events = self.channel.events
            events[-1] = replace(cast(Any, events[-1]), residual=before)

    patch.setattr(node.NodeProtocol, "submit", submit_and_drop)


def answers_a_silence_that_is_not_on_disk(patch: pytest.MonkeyPatch) -> None:
    """The node does not say it again, and a host that restarts has forgotten it."""
    add = OpenRound.add

    def add_without_event(self: OpenRound, address: int, body: bytes) -> bool:
        return add(self, address, body) and body[0] != control.KIND

    patch.setattr(OpenRound, "add", add_without_event)


def believes_a_silence_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Who was silent in one round is not waited for in the next."""
    close = host.HostProtocol._end_round

    def close_and_keep(self: host.HostProtocol, now: float) -> None:
        silent = self.round.silent
        close(self, now)
        self.round.silent = silent

    patch.setattr(host.HostProtocol, "_end_round", close_and_keep)


def takes_ended_processes(patch: pytest.MonkeyPatch) -> None:
    """A frame that opens begins a session, also one of a process that has ended."""
    enter = peer_session.PeerSession._enter

    def enter_freely(self: peer_session.PeerSession, *rest: Any) -> None:
        if self._current is not None:
            self._current.begun_own = 0
        enter(self, *rest)

    patch.setattr(peer_session.PeerSession, "_enter", enter_freely)


MUTANTS: tuple[Mutant, ...] = (
    settles_without_the_list,
    settles_whole_packets,
    settles_nothing,
    counts_duplicates_twice,
    sends_before_commit,
    reuses_counters,
    takes_the_round_before,
    keeps_the_packet_of_the_round_before,
    forgets_absent_shares,
    forgets_its_own_residual,
    never_asks_again,
    snapshot_without_the_list,
    loses_late_work,
    loses_the_work_of_a_silent_round,
    answers_a_silence_that_is_not_on_disk,
    believes_a_silence_for_ever,
    keeps_the_old_target,
    counts_any_reason,
    piles_up_refusals,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_planted_bug_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(Violation, match="seed"):
        run_seeds()


def test_a_bug_planted_in_the_seals_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    takes_ended_processes(monkeypatch)
    with pytest.raises(Violation, match="clone"):
        run_keyed_seeds()


def run_seeds() -> None:
    for seed in range(SEEDS):
        simfleet.run_seed(seed)


def run_keyed_seeds() -> None:
    for seed in range(5 * SEEDS):
        simfleet.run_seed(seed, simfleet.draw_with_keys)
