"""Fleets with liars, a guard and an owner who goes back, under faults; see test_fleet.py."""

import os

import pytest

from ternmesh.federated import robust
from tests.sim.planted import groups
from tests.sim.simfleet import run_fleet
from tests.sim.simliars import LiarFleet, draw_with_liars

pytestmark = pytest.mark.no_cover

HAS_BOUNDS = True
SEEDS = int(os.environ.get("TERNMESH_SEEDS", "200"))
GROUPS = 10


def one_round_spoils(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds are the product's, but one round can spoil the adapter, and steps stay whole."""
    monkeypatch.setattr(robust, "NORM_RATIO", 100.0)
    monkeypatch.setattr(robust, "ADAM_RATIO", 1e9)
    monkeypatch.setattr(robust, "STEP_RATIO", 1e9)


@pytest.fixture(autouse=True)
def _bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    one_round_spoils(monkeypatch)


@groups(GROUPS, 1)
def test_all_end_at_the_same_adapter_and_nothing_honest_is_lost(group: int) -> None:  # R4.5-9
    for seed in range(group, SEEDS, GROUPS):
        run_fleet(seed, LiarFleet(seed, draw_with_liars(seed)))


def test_seeds_go_back_by_the_guard_and_by_the_owner() -> None:
    ledgers = [
        run_fleet(seed, LiarFleet(seed, draw_with_liars(seed))).host.ledger for seed in range(12)
    ]
    assert sum(ledger.guarded for ledger in ledgers) > 3
    assert sum(ledger.asked for ledger in ledgers) > 0
