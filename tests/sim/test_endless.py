"""Whole fleets in a run without an end: it is quiet without news, and goes on with news."""

import os
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.sim.planted import groups
from tests.sim.simfleet import (
    Fleet,
    Options,
    draw,
    draw_with_carried_runs,
    draw_with_old_copy,
    run_fleet,
)
from tests.sim.simledger import expect
from tests.sim.simprocess import NEWS_MIN

pytestmark = pytest.mark.no_cover

SEEDS = int(os.environ.get("TERNMESH_SEEDS", "100")) // 5
GROUPS = 5
POLL_S = 2.0  # of a node's program
QUIET_S = 200.0  # without a global update
PHASES = 2  # times that news comes to a quiet, healed fleet


def without_end(draw_options: Callable[[int], Options]) -> Callable[[int], Options]:
    """The same faults, in a run without an end."""

    def drawn(seed: int) -> Options:
        options, rng = draw_options(seed), random.Random(f"endless {seed}")
        return replace(
            options,
            rounds=0,
            news_rounds=rng.randint(1, 4),
            silence=0.0,
            min_peers=min(options.min_peers, options.nodes - options.vanish),
        )

    return drawn


class EndlessFleet(Fleet):
    """A fleet whose nodes get new samples: while things go wrong, and one of them afterwards."""

    def __init__(self, seed: int, options: Options) -> None:
        super().__init__(seed, options)
        self.quiet_since = (-1, 0.0)  # the version, and since when it is the newest
        self.quiet_at: list[int] = []  # the versions at which the healed fleet was quiet
        self.after(POLL_S, self._poll)

    def _poll(self) -> None:
        """What the programs of the nodes do now and then."""
        for node in self.nodes.values():
            if not self.healed and self.rng.random() < 0.02:
                node.news.add(self.rng.randint(1, 2 * NEWS_MIN))
            node.begin_again()
        self.after(POLL_S, self._poll)

    def _done(self) -> bool:
        host = self.host.endpoint
        if host is None:
            return False
        if self._is_lost(host.version):
            return True
        if host.version != self.quiet_since[0]:
            self.quiet_since = host.version, self.now
        if self.now < self.quiet_since[1] + QUIET_S or not self._is_quiet(host.version):
            return False
        self.quiet_at.append(host.version)
        self.quiet_since = host.version, self.now
        if len(self.quiet_at) > PHASES:
            return True
        self.rng.choice(self._alive()).news.add(NEWS_MIN)  # one board only
        return False

    def _is_quiet(self, version: int) -> bool:
        ends = [node.endpoint for node in self._alive()]
        return all(
            end is not None and end.version == version and end.silent and end.received
            for end in ends
        )

    def check(self) -> None:
        super().check()
        for before, after in zip(self.quiet_at, self.quiet_at[1:], strict=False):
            expect(after - before >= self.plan.news_rounds, "news was not learned in all rounds")


@groups(GROUPS, 2)
def test_a_fleet_without_news_is_quiet_and_goes_on_with_news(group: int) -> None:  # R6.7-8
    for seed in range(group, SEEDS, GROUPS):
        run_fleet(seed, EndlessFleet(seed, without_end(draw)(seed)))


def test_the_same_with_a_host_that_is_set_back() -> None:
    for seed in range(SEEDS // 3):
        run_fleet(seed, EndlessFleet(seed, without_end(draw_with_old_copy)(seed)))


def test_the_same_with_runs_that_take_along_what_was_learned() -> None:
    for seed in range(SEEDS // 3):
        run_fleet(seed, EndlessFleet(seed, without_end(draw_with_carried_runs)(seed)))
