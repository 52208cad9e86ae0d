"""Whole fleets under faults, each from one seed. To replay: `run_seed(SEED)` in a debugger.

`TERNMESH_SEEDS=5000 pytest --nightly tests/sim` runs that many; each day some groups of them run.
"""

import os
from collections.abc import Callable

import pytest

from tests.sim.planted import groups
from tests.sim.simfleet import (
    Options,
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
Draw = Callable[[int], Options]


@pytest.mark.parametrize(
    ("fleet", "share"),
    [
        (draw, 1),
        (draw_with_keys, 3),
        # R6.3-9: late updates count once, or stay with their nodes
        (draw_with_late_updates, 2),
        # R6.11-1, R6.11-3, R6.11-4, R6.11-5: a run takes along what the one before has learned
        (draw_with_carried_runs, 2),
        # R6.10-2, R6.10-3, R6.10-7, R6.10-10: what the owner sets is in force on every board
        (draw_with_settings, 2),
    ],
)
@groups(GROUPS, 2)
def test_a_fleet_finishes_and_loses_nothing(fleet: Draw, share: int, group: int) -> None:
    for seed in range(group, SEEDS // share, GROUPS):
        run_seed(seed, fleet)


@pytest.mark.parametrize(
    "fleet",
    [
        draw_with_new_run,  # what was held back does not reach it
        draw_with_old_copy,  # R6.9-3, R6.9-6: a host that is set back leads the run to its end
        draw_with_new_host_keys,  # R9.5-13, R9.6-12
    ],
)
def test_what_happens_to_a_host_loses_no_update(fleet: Draw) -> None:
    for seed in range(SEEDS // 10):
        run_seed(seed, fleet)


@pytest.mark.nightly
def test_seeds_draw_late_updates() -> None:
    fleets = [run_seed(seed, draw_with_late_updates) for seed in range(8)]
    assert sum(node.late for fleet in fleets for node in fleet.nodes.values()) > 1


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
