"""Fleets with a gateway that bundles, and bugs planted in it that the simulation must find.

What a node has learned is in a reference exactly once, or in exactly one residual: its own, the
host's, or the gateway's. `TERNMESH_SEEDS` sets how many seeds are run.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from ternmesh.federated.events import BodyAccepted
from ternmesh.federated.gateway import aggregator, partial_aggregate
from ternmesh.federated.gateway.partial_aggregate import (
    PartialAggregate,
    PartialAggregateMade,
    settle_partial_aggregate,
)
from ternmesh.federated.open_round import PARTIAL_AGGREGATE, Count, OpenRound
from ternmesh.plan import Plan
from ternmesh.wire import control, global_update
from ternmesh.wire.global_update import write_global_snapshot
from tests.sim import simdisks
from tests.sim.simfleet import Fleet, draw_with_gateway, run_seed
from tests.sim.simledger import Violation

pytestmark = pytest.mark.no_cover

SEEDS = int(os.environ.get("TERNMESH_SEEDS", "30"))
GROUPS = 5
MUTANT_SEEDS = 300

Mutant = Callable[[pytest.MonkeyPatch], None]


def run(seed: int) -> Fleet:
    return run_seed(seed, draw_with_gateway)


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_fleet_behind_a_gateway_loses_nothing(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        run(seed)


def test_seeds_draw_bundles_that_count_and_hosts_that_take_none() -> None:
    fleets = [run(seed) for seed in range(10)]
    assert sum(len(fleet.host.ledger.partial_aggregates) for fleet in fleets) > 5
    assert any(
        not fleet.options.takes_partial_aggregates for fleet in map(Fleet, range(30), OPTIONS)
    )
    crashes = [options.gateway_crash > 0 for options in OPTIONS]
    assert 5 < sum(crashes) < 25


OPTIONS = [draw_with_gateway(seed) for seed in range(30)]


def counts_a_contributor_twice(patch: pytest.MonkeyPatch) -> None:
    """A node's own packet is added beside the bundle that names it."""
    count = OpenRound.count

    def count_all(self: OpenRound) -> Count:
        found = count(self)
        own = self.updates.items()
        extra = [i.update(c) for c, i in own if i.usable and c in found.partial_aggregates]
        return replace(found, updates=found.updates + extra)

    patch.setattr(OpenRound, "count", count_all)


def settles_what_was_not_counted(patch: pytest.MonkeyPatch) -> None:
    """The residual of a bundle is kept although no reference has counted it."""
    settle = aggregator.GatewayAggregator._settle

    def settle_always(
        self: aggregator.GatewayAggregator, made: PartialAggregate, counted: object
    ) -> None:
        settle(self, made, counted)  # type: ignore[arg-type]
        plan = cast(Plan, self.plan)
        everything = np.packbits(np.ones(plan.up.count, bool), bitorder="little").tobytes()
        start = made, everything, self.residual, self._model_hash
        self.residual = settle_partial_aggregate(*start, plan)
        self._events[-1] = replace(cast(Any, self._events[-1]), residual=self.residual)

    patch.setattr(aggregator.GatewayAggregator, "_settle", settle_always)


def forgets_what_a_bundle_could_not_carry(patch: pytest.MonkeyPatch) -> None:
    """The gateway has no residual."""
    patch.setattr(
        aggregator,
        "settle_partial_aggregate",
        lambda partial_aggregate, have, residual, *_: 0 * residual,
    )


def looks_at_no_bitmap(patch: pytest.MonkeyPatch) -> None:
    """A bundle of which a part was counted is settled as a whole."""
    patch.setattr(
        partial_aggregate, "read_bitmap", lambda have, count: np.ones(count, dtype=np.bool_)
    )


def answers_for_shares_that_are_not_on_disk(patch: pytest.MonkeyPatch) -> None:
    """A contributor's receipt names all shares as soon as the bundle is known."""
    answers = OpenRound.answers

    def answer_all(self: OpenRound, address: int) -> list[control.Control]:
        found = answers(self, address)
        if address in self._aggregate_of():
            count = self._plan.up.count
            full = np.packbits(np.ones(count, bool), bitorder="little").tobytes()
            found[-1] = replace(cast(Any, found[-1]), have=full)
        return found

    patch.setattr(OpenRound, "answers", answer_all)


def keeps_no_bundles_on_the_hosts_disk(patch: pytest.MonkeyPatch) -> None:
    """What was accepted of a bundle is answered, and gone with the process."""
    record = simdisks.HostDisk.record

    def record_some(self: simdisks.HostDisk, event: Any) -> None:
        is_body = isinstance(event, BodyAccepted)
        if not (is_body and event.address & PARTIAL_AGGREGATE):
            record(self, event)

    patch.setattr(simdisks.HostDisk, "record", record_some)


def sends_a_bundle_that_it_may_forget(patch: pytest.MonkeyPatch) -> None:
    """A bundle is on its way before it is on the gateway's disk."""
    record = simdisks.GatewayDisk.record

    def record_some(self: simdisks.GatewayDisk, event: Any) -> None:
        if not isinstance(event, PartialAggregateMade):
            record(self, event)

    patch.setattr(simdisks.GatewayDisk, "record", record_some)


def snapshot_without_the_bundle(patch: pytest.MonkeyPatch) -> None:
    """A snapshot does not say in which bundle its node was counted."""
    write = write_global_snapshot
    patch.setattr(
        global_update, "write_global_snapshot", lambda s: write(replace(s, counted=s.counted[:1]))
    )


# With each the seed to begin with, as the rare ones need many: all of them have their turn.
MUTANTS: tuple[tuple[Mutant, int], ...] = (
    (counts_a_contributor_twice, 3),
    (settles_what_was_not_counted, 25),
    (forgets_what_a_bundle_could_not_carry, 0),
    (looks_at_no_bitmap, 37),
    (answers_for_shares_that_are_not_on_disk, 24),
    (keeps_no_bundles_on_the_hosts_disk, 0),
    (sends_a_bundle_that_it_may_forget, 33),
    (snapshot_without_the_bundle, 205),
)


@pytest.mark.parametrize(
    ("mutant", "first"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS]
)
def test_a_planted_bug_is_found(
    mutant: Mutant, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(Violation, match="seed"):
        run_seeds(first)


def run_seeds(first: int) -> None:
    for seed in range(MUTANT_SEEDS):
        run((first + seed) % MUTANT_SEEDS)
