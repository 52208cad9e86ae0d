"""Bugs planted on purpose: the simulation must find each within a few seeds.

A simulation that finds nothing proves nothing. The last four are bugs that this core really had.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import simfleet
import simprocess
from simledger import Violation

from ternmesh.errors import WireError
from ternmesh.hypervector import feedback
from ternmesh.hypervector.encoder import Hypervector
from ternmesh.swarm import coordinator, intake, member, open_round, outgoing, packet
from ternmesh.swarm.events import ResidualChanged
from ternmesh.trust import keyed
from ternmesh.wire import control, share

SEEDS = 60  # the budget; the hardest needs about half

Mutant = Callable[[pytest.MonkeyPatch], None]


def settles_without_the_list(patch: pytest.MonkeyPatch) -> None:
    """Every packet that was sent is taken for counted."""

    def settle(self: member.Member, counted: object) -> None:
        if self.pending is not None and self.plan is not None:
            units = packet.update_units(
                self.pending.bodies[1:], self._model_hash, self.pending.round, self.plan
            )
            self.residual = feedback.settle(self.pending.corrected, packet.to_vector(units))
            self.pending = None
            self._resend.stop()

    patch.setattr(member.Member, "_settle", settle)


def settles_whole_packets(patch: pytest.MonkeyPatch) -> None:
    """The list is looked at, the bitmap in it is not."""
    patch.setattr(packet, "read_counted", lambda shares, have: list(shares))


def settles_nothing(patch: pytest.MonkeyPatch) -> None:
    """What was counted stays in the residual: it is sent twice."""
    patch.setattr(packet, "read_counted", lambda shares, have: [])


def counts_duplicates_twice(patch: pytest.MonkeyPatch) -> None:
    """A share that comes again is added again."""
    add = intake.Intake._add_share

    def add_again(self: intake.Intake, item: share.Share, body: bytes) -> bool:
        index = item.slice.index
        if self.bodies.get(index) == body:
            at, trits, scale = self.decoded[index]
            self.decoded[index] = at, trits, 2 * scale
            return False
        return add(self, item, body)

    patch.setattr(intake.Intake, "_add_share", add_again)


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
    reserve = outgoing.Outgoing.reserve

    def reserve_silently(self: outgoing.Outgoing) -> None:
        reserve(self)

    patch.setattr(outgoing.Outgoing, "reserve", reserve_silently)


def takes_the_round_before(patch: pytest.MonkeyPatch) -> None:
    """The round check is off by one: a packet for the round before is taken for this one."""

    def check(self: coordinator.Coordinator, number: int) -> None:
        if self.phase != coordinator.OPEN or not self.version - 1 <= number <= self.version:
            raise WireError("old round", "planted")

    patch.setattr(coordinator.Coordinator, "_check_round", check)


def keeps_the_packet_of_the_round_before(patch: pytest.MonkeyPatch) -> None:
    """The host does not clear what it has counted."""
    close = coordinator.Coordinator._close_round

    def close_and_keep(self: coordinator.Coordinator, now: float) -> None:
        intakes = self._round.intakes
        close(self, now)
        self._round.intakes = intakes

    patch.setattr(coordinator.Coordinator, "_close_round", close_and_keep)


def forgets_absent_shares(patch: pytest.MonkeyPatch) -> None:
    """The mean divides by all who sent anything, not by those who sent this share."""
    gather = intake.Intake.hypervector

    def all_present(self: intake.Intake) -> Hypervector:
        vector = gather(self)
        return replace(vector, present=np.ones_like(vector.present))

    patch.setattr(intake.Intake, "hypervector", all_present)


def forgets_its_own_residual(patch: pytest.MonkeyPatch) -> None:
    """The host drops what its reference could not carry."""
    close = coordinator.Coordinator._close_round

    def drop(self: coordinator.Coordinator, now: float) -> None:
        close(self, now)
        self.residual = np.zeros_like(self.residual)

    patch.setattr(coordinator.Coordinator, "_close_round", drop)


def never_asks_again(patch: pytest.MonkeyPatch) -> None:
    """A node that missed a reference waits for ever."""
    patch.setattr(member.Backoff, "soon", lambda self, now: None)
    patch.setattr(member.Member, "_aim", lambda self, version, phase, now: _aim(self, phase))


def _aim(self: member.Member, phase: int) -> None:
    self.phase = phase


def snapshot_without_the_list(patch: pytest.MonkeyPatch) -> None:
    """A snapshot does not say what was counted of the node that it is sent to."""
    write = coordinator.write_snapshot
    patch.setattr(coordinator, "write_snapshot", lambda s: write(replace(s, counted=())))


def loses_late_work(patch: pytest.MonkeyPatch) -> None:
    """Work that came while a packet was pending went into a residual that was overwritten."""
    submit = member.Member.submit

    def submit_wrongly(
        self: member.Member, round_number: int, delta: member.Vector, now: float
    ) -> None:
        if self.pending is None:
            submit(self, round_number, delta, now)
            return
        self.residual = feedback.update(self.residual, delta)
        self._events.append(ResidualChanged(self.residual))

    patch.setattr(member.Member, "submit", submit_wrongly)


def keeps_the_old_target(patch: pytest.MonkeyPatch) -> None:
    """A new run began, and the node waited for the version of the old one."""
    welcome = member.Member._welcome

    def welcome_wrongly(self: member.Member, *rest: object) -> None:
        target = self.target
        welcome(self, *rest)  # type: ignore[arg-type]
        self.target = max(self.target, target)

    patch.setattr(member.Member, "_welcome", welcome_wrongly)


def counts_any_reason(patch: pytest.MonkeyPatch) -> None:
    """Every word that a stranger sends took a place in the counters for ever."""
    patch.setattr(member, "REASONS_MAX", 1 << 30)


def piles_up_refusals(patch: pytest.MonkeyPatch) -> None:
    """Every refused frame of a burst left an event."""
    patch.setattr(coordinator, "REFUSED_SHOWN_MAX", 1 << 30)


def loses_the_work_of_a_silent_round(patch: pytest.MonkeyPatch) -> None:
    """What was too little for a packet is dropped."""
    submit = member.Member.submit

    def submit_and_drop(self: member.Member, *rest: object) -> None:
        before, was_silent = self.residual, self.silent
        submit(self, *rest)  # type: ignore[arg-type]
        if self.silent and not was_silent:
            self.residual = before
            self._events[-1] = replace(self._events[-1], residual=before)

    patch.setattr(member.Member, "submit", submit_and_drop)


def answers_a_silence_that_is_not_on_disk(patch: pytest.MonkeyPatch) -> None:
    """The node does not say it again, and a host that restarts has forgotten it."""
    add = open_round.OpenRound.add

    def add_without_event(self: open_round.OpenRound, context: int, body: bytes) -> bool:
        return add(self, context, body) and body[0] != control.KIND

    patch.setattr(open_round.OpenRound, "add", add_without_event)


def believes_a_silence_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Who was silent in one round is not waited for in the next."""
    close = coordinator.Coordinator._close_round

    def close_and_keep(self: coordinator.Coordinator, now: float) -> None:
        silent = self._round.silent
        close(self, now)
        self._round.silent = silent

    patch.setattr(coordinator.Coordinator, "_close_round", close_and_keep)


def keeps_no_sessions(patch: pytest.MonkeyPatch) -> None:
    """What the seals know is not kept: a restart begins the same session again."""
    patch.setattr(keyed.KeyedSealing, "changes", lambda self: ())


def begins_sessions_late(patch: pytest.MonkeyPatch) -> None:
    """A session is made with its first frame, when it is too late to keep it."""
    patch.setattr(keyed.KeyedSealing, "meet", lambda self, peer: None)


def seals_for_any_run(patch: pytest.MonkeyPatch) -> None:
    """A frame that was held back is taken in the next run."""
    patch.setattr(keyed.KeyedSealing, "bind", lambda self, run: None)


KEYED_MUTANTS: tuple[Mutant, ...] = (keeps_no_sessions, begins_sessions_late)

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


@pytest.mark.parametrize("mutant", KEYED_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_bug_planted_in_the_seals_is_found(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(Violation, match="clone"):
        run_keyed_seeds()


def test_a_seal_for_any_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seals_for_any_run(monkeypatch)
    with pytest.raises(Violation, match="nobody said in this run"):
        run_new_run_seeds()


def run_seeds() -> None:
    for seed in range(SEEDS):
        simfleet.run_seed(seed)


def run_keyed_seeds() -> None:
    for seed in range(5 * SEEDS):
        simfleet.run_seed(seed, simfleet.draw_with_keys)


def run_new_run_seeds() -> None:
    for seed in range(SEEDS):
        simfleet.run_seed(seed, simfleet.draw_with_new_run)
