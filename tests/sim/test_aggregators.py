"""Fleets with aggregators under faults and liars: nothing counts twice, and who lies is found."""

import logging
import random
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from ternmesh.federated.audit import Audits
from ternmesh.wire.proof import RoundRows, restored
from tests.host.test_upstream import BARN, BOARDS, PLAN, SHED, Fleet, lie
from tests.sim.planted import Bug, groups, instead, plant

pytestmark = pytest.mark.no_cover

SEEDS, GROUPS = 200, 100
LIES = ("scaled", "invented", "other rows", "remainder", "silent", "own")
FAULTS_S, AFTER_S = 15, 200
PLAN_40 = replace(PLAN, rounds=40)


class Violation(Exception):
    """What must never happen."""


class Simulation:
    """One fleet with keys and files; its seed says what happens to it."""

    def __init__(self, seed: int, folder: Path, stack: ExitStack) -> None:
        self.seed, self.rng = seed, random.Random(f"aggregators {seed}")
        self.fleet = Fleet(folder, stack, PLAN_40)
        self.liar = self.rng.choice((SHED, BARN)) if seed % 2 else ""
        self.kind = LIES[seed // 2 % len(LIES)]
        self.dead: dict[str, float] = {}
        self.cut: dict[str, float] = {}
        self.away: dict[str, tuple[float, Any]] = {}

    def run(self) -> "Simulation":
        fleet, rng = self.fleet, self.rng
        if self.liar:
            self._make_lie(self.liar)
        start = fleet.now
        while fleet.now < start + FAULTS_S:
            for _ in range(rng.randint(0, 40)):
                fleet.turn()  # a kill may come between any two steps
            self._fault()
            fleet.live(1)
            self._mend(fleet.now)
        self._mend(float("inf"))
        until = fleet.now + AFTER_S
        while fleet.now < until and not self._is_over():
            fleet.live(1)
        self._check()
        return self

    def _is_over(self) -> bool:
        ends: list[Any] = [board.endpoint for board in self.fleet.boards.values()]
        return {end.version for end in ends} == {PLAN_40.rounds}

    def _make_lie(self, name: str) -> None:
        upstream = self.fleet.upstreams[name]
        take = upstream.take
        if self.kind == "silent":
            upstream.show = lambda data: None  # type: ignore[method-assign]
        else:
            upstream.take = lambda made: take(  # type: ignore[method-assign]
                lie(made, self.kind, upstream.node)
            )

    def _fault(self) -> None:
        fleet, rng, until = self.fleet, self.rng, self.fleet.now + self.rng.uniform(1, 30)
        name = rng.choice((SHED, BARN))
        is_free = name not in self.dead and name not in self.cut
        match rng.randrange(20):
            case 0 if is_free and name != self.liar:
                fleet.kill(name)
                self.dead[name] = until
            case 1 if is_free:
                fleet.upstreams[name].transport.close()
                self.cut[name] = until
            case 2 if is_free and not self.away:
                board = rng.choice(BOARDS[name])
                self.away[board] = until, fleet.boards.pop(board)

    def _mend(self, now: float) -> None:
        fleet = self.fleet
        for name in [name for name, until in self.dead.items() if until <= now]:
            del self.dead[name]
            fleet.boot(name)
        for name in [name for name, until in self.cut.items() if until <= now]:
            del self.cut[name]
            fleet.upstreams[name].transport.open()
        for name in [name for name, (until, _) in self.away.items() if until <= now]:
            fleet.boards[name] = self.away.pop(name)[1]

    def _check(self) -> None:
        fleet = self.fleet
        caught = set(fleet.hosts[""].caught)
        if caught - {self.liar}:
            raise Violation(
                f"an honest aggregator is muted: {fleet.hosts[''].caught} ({self.seed})"
            )
        if self.liar and not caught:
            raise Violation(f"{self.kind} is not found (seed {self.seed})")
        if self.liar and self.kind == "other rows":
            return  # its boards lack proofs
        if not self._is_over():
            raise Violation(f"no progress: {fleet.top.version} (seed {self.seed})")
        try:
            fleet.check()
        except AssertionError as error:
            raise Violation(f"ends differ: {error} (seed {self.seed})") from error
        for below in (SHED, BARN):
            host, seen = fleet.hosts[below].protocol, set()
            for link in host.chain.newest_first():
                for row in restored(link.rows).rows or ():
                    if (row.address, row.digest) in seen:
                        raise Violation(f"an update counts twice (seed {self.seed})")
                    seen.add((row.address, row.digest))


def run_seed(seed: int) -> Simulation:
    with TemporaryDirectory(dir="/dev/shm") as folder, ExitStack() as stack:
        return Simulation(seed, Path(folder), stack).run()


def run_seeds(seeds: Iterable[int]) -> None:
    for seed in seeds:
        run_seed(seed)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@groups(GROUPS, 1)
def test_aggregators_under_faults(group: int) -> None:
    run_seeds(range(group, SEEDS, GROUPS))


# What is wrong, and the seeds that look at it
MUTANTS: dict[str, tuple[Bug, range]] = {
    "nobody is audited": ((Audits, "note", instead(lambda *_: {})), range(1, 2)),
    "an update is told not to count": (
        (RoundRows, "proofs", instead(lambda *_: [])), range(0, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_bug_is_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug, seeds = MUTANTS[mutant]
    plant(monkeypatch, bug)
    with pytest.raises(Violation):
        run_seeds(seeds)
