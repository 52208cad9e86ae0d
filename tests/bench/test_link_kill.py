"""A few points of the benchmark hold, and bugs planted on purpose are found."""

from collections import Counter
from pathlib import Path

import pytest

from bench import link_kill
from bench.link_kill import check, transfer
from ternmesh.link.events import LinkCountersReserved, ObjectArrived
from ternmesh_store.link_store import LinkStore


def test_some_points_of_every_series_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_kill, "QUICK_STEP", 100)
    result = link_kill.measure(quick=True)
    assert result.figures["points"].value >= 5
    assert all(figure.holds is not False for figure in result.figures.values())


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(ObjectArrived, "object missing"), (LinkCountersReserved, "frame counter twice")],
)
def test_an_event_that_is_not_recorded_is_found(
    kind: type, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = LinkStore.record
    monkeypatch.setattr(
        LinkStore,
        "record",
        lambda self, event: None if isinstance(event, kind) else record(self, event),
    )
    faults: Counter[str] = Counter()
    for line in (150, 300, 450, 600):
        faults += check(tmp_path / "files", transfer(tmp_path / "files", line))
        if faults[fault]:
            return
    pytest.fail(f"found {dict(faults)} only")
