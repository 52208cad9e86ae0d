"""A few points of the benchmark hold, and bugs planted on purpose are found."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from bench import link_kill
from bench.link_kill import survive, unkilled, worst_hour_us
from bench.link_kill_life import Entry, Kill, Kind
from ternmesh.link.ledger import Ledger
from ternmesh.link.records import (
    LinkCountersReserved,
    ObjectArrived,
    RepairsReserved,
    SymbolHeld,
    TransferBegun,
)
from ternmesh_store.airtime_store import AirtimeStore
from ternmesh_store.link_store import LinkStore

Mutant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    memory = link_kill.MEMORY
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name, "files")


@pytest.fixture(scope="module")
def whole(folder: Path) -> list[Entry]:
    return unkilled(folder)


def test_some_points_of_every_series_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_kill, "QUICK_STEP", 100)
    result = link_kill.measure(quick=True)
    assert result.figures["points"].value >= 10
    assert result.details["points_before_unknown_boot"] >= 2
    assert all(figure.holds is not False for figure in result.figures.values())


def forgets(*kinds: type) -> Mutant:
    def mutant(patch: pytest.MonkeyPatch) -> None:
        record = LinkStore.record
        patch.setattr(
            LinkStore,
            "record",
            lambda self, event: None if isinstance(event, kinds) else record(self, event),
        )

    return mutant


def refills_the_hour(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AirtimeStore, "_load", lambda self, name, budget_us, now: Ledger(budget_us))


@pytest.mark.parametrize(
    ("mutant", "fault", "boot"),
    [
        (forgets(ObjectArrived), "object missing", "one"),
        (forgets(SymbolHeld), "held symbol again", "one"),
        (forgets(TransferBegun), "held symbol again", "one"),
        (forgets(RepairsReserved), "repair symbol twice", "one"),
        (forgets(LinkCountersReserved), "seal counter twice", "one"),
        (refills_the_hour, "hour exceeded", "one"),
        (refills_the_hour, "hour not spent", ""),
    ],
)
def test_a_planted_bug_is_found(mutant, fault, boot, folder, whole, monkeypatch) -> None:
    mutant(monkeypatch)
    faults: Counter[str] = Counter()
    for event in (150, 250, 350, 450):
        faults += survive(folder, Kill(event, boot=boot), whole).faults
        if faults[fault]:
            return
    pytest.fail(f"found {dict(faults)} only")


def test_the_worst_hour_may_begin_anywhere() -> None:
    def sent(*frames: tuple[float, float]) -> int:
        log = [Entry(Kind.SENT, 0, start, round(1e6 * air_s)) for start, air_s in frames]
        return worst_hour_us([*log, Entry(Kind.SENT, 1, 0.0, 10**9)], 0)

    assert sent() == 0
    assert sent((10.0, 2.0)) == 2_000_000
    assert sent((0.0, 2.0), (3599.0, 2.0)) == 3_000_000, "all of one, half of the other"
    assert sent((0.0, 2.0), (3602.0, 2.0)) == 2_000_000
    starts = np.sort(np.random.default_rng(1).choice(10_000, 500, replace=False))
    begins = np.arange(10_000)[:, None]
    worst = ((begins <= starts) & (starts + 1 <= begins + 3600)).sum(axis=1).max()
    assert sent(*((float(start), 1.0) for start in starts)) == 1e6 * worst
