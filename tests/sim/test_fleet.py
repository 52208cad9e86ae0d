"""Whole fleets under faults, each from one seed. To replay: `run_seed(SEED)` in a debugger.

`TERNMESH_SEEDS=5000 pytest --nightly tests/sim` runs that many; each day some groups of them run.
"""

import os

import pytest

from tests.sim.planted import groups
from tests.sim.simfleet import (
    draw,
    draw_with_carried_runs,
    draw_with_keys,
    draw_with_late_updates,
    draw_with_new_host_keys,
    draw_with_new_run,
    draw_with_old_copy,
    draw_with_settings,
    run_seed,
)

pytestmark = pytest.mark.no_cover

SEEDS = int(os.environ.get("TERNMESH_SEEDS", "100"))
GROUPS = 10


@groups(GROUPS, 2)
def test_a_fleet_finishes_and_loses_nothing(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        run_seed(seed)


@groups(GROUPS, 2)
def test_a_fleet_with_keys_finishes_and_loses_nothing(group: int) -> None:
    for seed in range(group, SEEDS // 3, GROUPS):
        run_seed(seed, draw_with_keys)


@groups(GROUPS, 2)
def test_late_updates_count_once_or_stay_with_their_nodes(group: int) -> None:  # R6.3-9
    for seed in range(group, SEEDS // 2, GROUPS):
        run_seed(seed, draw_with_late_updates)


@pytest.mark.nightly
def test_seeds_draw_late_updates() -> None:
    fleets = [run_seed(seed, draw_with_late_updates) for seed in range(8)]
    assert sum(node.late for fleet in fleets for node in fleet.nodes.values()) > 1


def test_what_was_held_back_does_not_reach_the_next_run() -> None:
    for seed in range(SEEDS // 10):
        run_seed(seed, draw_with_new_run)


@groups(GROUPS, 2)
def test_a_run_takes_along_what_the_run_before_has_learned(group: int) -> None:
    # R6.11-1, R6.11-3, R6.11-4, R6.11-5
    for seed in range(group, SEEDS // 2, GROUPS):
        run_seed(seed, draw_with_carried_runs)


def test_a_host_that_is_set_back_to_an_old_copy_leads_the_run_to_its_end() -> None:
    # R6.9-3, R6.9-6
    for seed in range(SEEDS // 10):
        run_seed(seed, draw_with_old_copy)


def test_a_host_that_gets_other_keys_loses_no_update() -> None:  # R9.5-13, R9.6-12
    for seed in range(SEEDS // 10):
        run_seed(seed, draw_with_new_host_keys)


@groups(GROUPS, 2)
def test_what_the_owner_sets_is_in_force_on_every_board_in_the_end(group: int) -> None:
    # R6.10-2, R6.10-3, R6.10-7, R6.10-10
    for seed in range(group, SEEDS // 2, GROUPS):
        run_seed(seed, draw_with_settings)


def test_a_seed_replays_exactly() -> None:
    first, second = run_seed(3), run_seed(3)
    assert first.now == second.now
    assert first.host.disk.committed.global_hash == second.host.disk.committed.global_hash
    assert first.host.counters == second.host.counters


def test_seeds_draw_every_fault() -> None:
    options = [draw(seed) for seed in range(100)]
    for name in ("drop", "duplicate", "flip", "node_crash", "host_crash", "partition", "hostile"):
        assert 20 < sum(getattr(o, name) > 0 for o in options) < 80
    for name in ("burst", "vanish", "reset", "late", "stragglers"):
        assert any(getattr(o, name) for o in options)
