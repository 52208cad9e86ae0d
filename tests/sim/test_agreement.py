"""Voters under faults: nothing is decided twice or lost, and they go on by themselves."""

import os

import pytest

from tests.sim.planted import groups
from tests.sim.simagreement import draw, run_seed

pytestmark = pytest.mark.no_cover

SEEDS = int(os.environ.get("TERNMESH_SEEDS", "1000"))
GROUPS = 10


@groups(GROUPS, 1)
def test_voters_agree_and_go_on(group: int) -> None:  # R13.3-1, R13.3-3, R13.4-1, R13.5-1
    for seed in range(group, SEEDS, GROUPS):
        run_seed(seed)


def test_a_seed_gives_the_same_bytes_again() -> None:
    for seed in (3, 4, 5, 6):
        assert run_seed(seed).trace.digest() == run_seed(seed).trace.digest()
    assert run_seed(3).trace.digest() != run_seed(9).trace.digest()


def test_the_seeds_hold_what_they_should() -> None:
    """Without these faults a seed without a violation would say little."""
    options = [draw(seed) for seed in range(100)]
    assert {(each.count, each.mode) for each in options} == {
        (1, "crash"), (3, "crash"), (4, "bft"), (7, "bft"),
    }  # fmt: skip
    assert all(
        sum(getattr(each, name) > 0 for each in options) > 5 for name in ("dead", "old", "liars")
    )
    sims = [run_seed(seed) for seed in range(60)]
    voters = [process.voter for sim in sims for process in sim.honest()]
    assert sum(voter is not None and voter.term > 1 for voter in voters) > 20
    assert sum(bool(voter and voter.evidence) for voter in voters) > 10
    assert sum(sim.refused.get("signature", 0) for sim in sims) > 100
