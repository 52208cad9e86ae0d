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
from ternmesh.federated.gateway.aggregator import GatewayAggregator
from ternmesh.federated.gateway.partial_aggregate import (
    PartialAggregate,
    PartialAggregateMade,
    settle_partial_aggregate,
)
from ternmesh.federated.open_round import PARTIAL_AGGREGATE, Count, OpenRound
from ternmesh.plan import Plan
from ternmesh.wire import global_update
from tests.sim import simdisks
from tests.sim.planted import Bug, each, groups, instead, plant
from tests.sim.simfleet import Fleet, draw_with_gateway, run_seed
from tests.sim.simledger import Violation

pytestmark = pytest.mark.no_cover

SEEDS = int(os.environ.get("TERNMESH_SEEDS", "30"))
GROUPS = 5
MUTANT_SEEDS = 300


def run(seed: int) -> Fleet:
    return run_seed(seed, draw_with_gateway)


@groups(GROUPS, 2)
def test_a_fleet_behind_a_gateway_loses_nothing(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        run(seed)


@pytest.mark.nightly
def test_seeds_draw_bundles_that_count_and_hosts_that_take_none() -> None:
    fleets = [run(seed) for seed in range(10)]
    assert sum(len(fleet.host.ledger.partial_aggregates) for fleet in fleets) > 5
    assert any(
        not fleet.options.takes_partial_aggregates for fleet in map(Fleet, range(30), OPTIONS)
    )
    crashes = [options.gateway_crash > 0 for options in OPTIONS]
    assert 5 < sum(crashes) < 25


OPTIONS = [draw_with_gateway(seed) for seed in range(30)]


Method = Callable[..., Any]


def counting_twice(count: Method) -> Method:
    def method(self: OpenRound) -> Count:
        found: Count = count(self)
        own = self.updates.items()
        extra = [i.update(c) for c, i in own if i.usable and c in found.partial_aggregates]
        return replace(found, updates=found.updates + extra)

    return method


def settling_always(settle: Method) -> Method:
    def method(self: GatewayAggregator, made: PartialAggregate, counted: object) -> None:
        settle(self, made, counted)
        plan = cast(Plan, self.plan)
        start = made, all_chunks(plan), self.residual, self._model_hash
        self.residual = settle_partial_aggregate(*start, plan)
        self._events[-1] = replace(cast(Any, self._events[-1]), residual=self.residual)

    return method


def all_chunks(plan: Plan) -> bytes:
    return np.packbits(np.ones(plan.up.count, bool), bitorder="little").tobytes()


def answering_all(answers: Method) -> Method:
    def method(self: OpenRound, address: int) -> Any:
        found = answers(self, address)
        if address in self._aggregate_of():
            found[-1] = replace(found[-1], have=all_chunks(self._plan))
        return found

    return method


def unless(is_lost: Callable[[Any], bool]) -> Callable[[Method], Method]:
    """A disk that does not keep some events."""
    return lambda record: lambda self, event: None if is_lost(event) else record(self, event)


# With each the seed to begin with, as the rare ones need many: all of them have their turn.
MUTANTS: dict[str, tuple[Bug, int]] = {
    "a node's own update is added beside the aggregate that names it": (
        (OpenRound, "count", counting_twice),
        3,
    ),
    "the residual of an aggregate is kept though nothing has counted it": (
        (GatewayAggregator, "_settle", settling_always),
        25,
    ),
    "the gateway has no residual": (
        (aggregator, "settle_partial_aggregate", instead(lambda made, have, own, *_: 0 * own)),
        0,
    ),
    "an aggregate of which a part was counted is settled as a whole": (
        (partial_aggregate, "read_bitmap", instead(lambda have, count: np.ones(count, np.bool_))),
        33,
    ),
    "a receipt names all chunks as soon as the aggregate is known": (
        (OpenRound, "answers", answering_all),
        24,
    ),
    "what was accepted of an aggregate is gone with the host's process": (
        (
            simdisks.HostDisk,
            "record",
            unless(lambda e: isinstance(e, BodyAccepted) and e.address & PARTIAL_AGGREGATE > 0),
        ),
        0,
    ),
    "an aggregate is on its way before it is on the gateway's disk": (
        (simdisks.GatewayDisk, "record", unless(lambda e: isinstance(e, PartialAggregateMade))),
        33,
    ),
    "a snapshot does not say in which aggregate its node was counted": (
        (
            global_update,
            "write_global_snapshot",
            lambda write: lambda item: write(replace(item, counted=item.counted[:1])),
        ),
        205,
    ),
}


@each(
    MUTANTS,
    "an aggregate is on its way before it is on the gateway's disk",
    "a snapshot does not say in which aggregate its node was counted",
)
def test_a_planted_bug_is_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug, first = MUTANTS[mutant]
    plant(monkeypatch, bug)
    with pytest.raises(Violation, match="seed"):
        run_seeds(first)


def run_seeds(first: int) -> None:
    for seed in range(MUTANT_SEEDS):
        run((first + seed) % MUTANT_SEEDS)
