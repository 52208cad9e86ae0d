import resource
from pathlib import Path

import pytest

from ternmesh.link.ledger import AHEAD_PARTS, HOLD_MAX_S, HOUR_S, Moment
from ternmesh.link.regions import EU868, UNREGULATED, SubBand
from ternmesh_store.airtime_store import AirtimeStore
from ternmesh_store.database import StoreError

BAND = EU868.sub_bands[1]
OTHER = EU868.sub_bands[4]
BUDGET_US = 36_000_000
AHEAD_US = BUDGET_US // AHEAD_PARTS
START = Moment("boot 1", 100.0, 1e9)
FRAME_US = 399_616
HOUR_US = 3_600_000_000


def at(seconds: float, moment: Moment = START) -> Moment:
    wall_s = None if moment.wall_s is None else moment.wall_s + seconds
    return Moment(moment.boot, moment.now_s + seconds, wall_s)


def opened(path: Path, now: Moment = START) -> AirtimeStore:
    store = AirtimeStore(path)
    store.open(now)
    return store


def spent_us(store: AirtimeStore, now: Moment, band: SubBand = BAND) -> int:
    return store.ledger(band, now).spent_us(now.now_s)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "airtime.sqlite"


def test_a_new_device_has_spent_nothing(path):  # R8.3-12
    store = opened(path)
    assert spent_us(store, START) == 0
    assert store.reserve(BAND, START, FRAME_US)
    assert spent_us(store, START) == FRAME_US
    assert spent_us(store, START, OTHER) == 0, "each sub-band has its own"
    store.close()


def test_what_was_granted_is_spent_after_a_kill(path, in_killed_process):  # R8.3-9
    def work() -> None:
        store = opened(path)
        for second in range(4):
            assert store.reserve(BAND, at(second), FRAME_US)

    in_killed_process(work)
    # Frame 1 granted 1.125 s, frames 2 and 3 lived from that, frame 4 wrote again.
    store = opened(path, at(10))
    assert spent_us(store, at(10)) == 4 * FRAME_US + AHEAD_US
    store.close()


def test_a_restart_counts_as_spent_once_and_a_stop_in_peace_does_not(path):  # R8.3-10
    store = opened(path)
    store.reserve(BAND, START, FRAME_US)
    for restart in range(5):
        store.close()
        store = opened(path, at(1000.0 * restart + 1))
        spent_us(store, at(1000.0 * restart + 1))
    later = at(HOUR_S + HOLD_MAX_S + 1)
    assert spent_us(store, later) == 0
    store.reserve(BAND, later, FRAME_US)
    store.settle(at(1, later))
    store.close()
    store = opened(path, at(10, later))
    assert spent_us(store, at(10, later)) == FRAME_US
    store.close()


def test_after_a_reboot_only_trusted_time_brings_air_back(path):
    store = opened(path)
    store.reserve(BAND, START, FRAME_US)
    store.settle(at(1))
    store.close()
    later = at(2 * HOUR_S, Moment("boot 2", 5.0, 1e9))
    store = opened(path, later)
    assert spent_us(store, later) == 0, "the wall clock knows that two hours have passed"
    store.reserve(BAND, later, FRAME_US)
    store.close()
    third = Moment("boot 3", 5.0)
    store = opened(path, third)
    assert spent_us(store, third) == BUDGET_US
    store.close()
    store = opened(path, at(HOUR_S, third))
    assert not store.reserve(BAND, at(HOUR_S, third), FRAME_US)
    assert store.reserve(BAND, at(HOUR_S + HOLD_MAX_S, third), FRAME_US), "once, not once more"
    store.close()


@pytest.mark.parametrize("damage", ["damaged", "set aside before a power cut", "a log that is cut"])
def test_what_is_lost_has_spent_the_hour_everywhere_and_once(path, in_killed_process, damage):
    # R8.3-12
    if damage == "a log that is cut":
        in_killed_process(lambda: opened(path).reserve(BAND, START, FRAME_US))
        wal = path.with_name(f"{path.name}-wal")
        wal.write_bytes(wal.read_bytes()[:-1])
    else:
        aside = f"{path.name}.damaged-1"
        (path if damage == "damaged" else path.with_name(aside)).write_bytes(b"no database" * 1000)
    store = opened(path)
    for band in (BAND, OTHER):
        assert spent_us(store, START, band) == band.budget_us
    store.close()
    later = at(HOUR_S + HOLD_MAX_S)
    store = opened(path, later)
    assert store.reserve(BAND, later, FRAME_US), "once, not at each start"
    store.close()


def test_where_no_law_limits_there_is_no_ledger(path):
    store = opened(path)
    wire = UNREGULATED.sub_bands[0]
    for _ in range(3):
        assert store.reserve(wire, START, HOUR_US)
    with pytest.raises(ValueError, match="unregulated has no budget"):
        store.ledger(wire, START)
    store.close()


def test_after_a_failed_write_nothing_is_granted(path):
    store = opened(path)
    assert store.reserve(BAND, START, FRAME_US)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))  # as a full disk
    try:
        with pytest.raises(StoreError):
            store.reserve(BAND, START, 2 * AHEAD_US)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with pytest.raises(AssertionError, match="open the database first"):
        store.reserve(BAND, START, 1)
