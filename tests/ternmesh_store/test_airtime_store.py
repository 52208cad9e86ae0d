import os
import resource
import signal
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ternmesh.link.ledger import AHEAD_PARTS, ENTRIES_MAX, HOLD_MAX_S, HOUR_S, Moment
from ternmesh.link.regions import EU868, UNREGULATED, SubBand
from ternmesh_store.airtime_store import HOLD_S, SCHEMA, AirtimeStore
from ternmesh_store.database import Database, StoreError

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


def test_the_hour_is_full_until_it_is_over(path):
    store = opened(path)
    frames = BUDGET_US // 1_000_000
    for second in range(frames):
        assert store.reserve(BAND, at(second), 1_000_000)
    assert not store.reserve(BAND, at(frames), 1_000_000)
    free_s = store.ledger(BAND, at(frames)).next_free_s(100.0 + frames, 1_000_000)
    assert free_s >= 100 + HOUR_S + HOLD_S + 1
    assert store.reserve(BAND, Moment("boot 1", free_s), 1_000_000)
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


def test_a_damaged_file_has_spent_the_hour_everywhere(path):  # R8.3-12
    store = opened(path)
    store.reserve(BAND, START, FRAME_US)
    store.close()
    path.write_bytes(b"no database" * 1000)
    store = opened(path, at(10))
    for band in (BAND, OTHER):
        assert spent_us(store, at(10), band) == band.budget_us
    store.close()
    store = opened(path, at(20 + HOUR_S + HOLD_MAX_S))
    assert store.reserve(OTHER, at(20 + HOUR_S + HOLD_MAX_S), FRAME_US)
    store.close()


@pytest.mark.parametrize("damage", ["a damaged file without a new one", "a log that is cut"])
def test_what_is_lost_has_spent_the_hour_once(path, in_killed_process, damage):  # R8.3-12
    if damage == "a log that is cut":
        in_killed_process(lambda: opened(path).reserve(BAND, START, FRAME_US))
        wal = path.with_name(f"{path.name}-wal")
        wal.write_bytes(wal.read_bytes()[:-1])
    else:  # the power failed after it was set aside
        path.with_name(f"{path.name}.damaged-1").write_bytes(b"no database")
    store = opened(path)
    assert spent_us(store, START) == BUDGET_US
    store.close()
    store = opened(path, at(HOUR_S + HOLD_MAX_S))
    assert store.reserve(BAND, at(HOUR_S + HOLD_MAX_S), FRAME_US), "once, not at each start"
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


def test_the_file_is_bounded(path):
    store = opened(path)
    for second in range(0, 9000, 3):
        store.reserve(OTHER, at(second), 100_000)
        store.ledger(OTHER, at(second))
    store.close()
    [row] = rows_of(path)
    assert 200 * 16 < len(row[-1]) <= ENTRIES_MAX * 16


def rows_of(path: Path) -> list[Any]:
    database = Database(path, SCHEMA)
    database.open()
    rows = database.rows("SELECT * FROM airtime_ledger")
    database.close()
    return rows


@pytest.fixture
def memory() -> Iterator[Path]:
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        yield Path(name)


SAID = struct.Struct("<QQ")  # time in us, airtime in us of the frame that is sent then, or 0


@pytest.mark.nightly
def test_no_kill_makes_an_hour_hold_more_than_the_budget(memory):
    """Processes send all they may in accelerated time and tell a pipe; all are killed (SIGKILL)."""
    path, rng, said = memory / "airtime.sqlite", np.random.default_rng(3), [(100_000_000, 0)]
    receiver, sender = os.pipe()
    os.set_blocking(receiver, False)
    for _ in range(25):
        # A process begins when the last one is just dead, its last frame maybe still on the air.
        child = os.fork()
        if child == 0:
            _send_for_ever(path, said[-1][0] / 1e6, sender)
        time.sleep(rng.uniform(0.004, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said += _read_all(receiver)
    os.close(receiver)
    os.close(sender)
    sent = [(start, air) for start, air in said if air]
    assert len(sent) > 1000
    assert _worst_hour_us(sent) <= BUDGET_US


def _send_for_ever(path: Path, begin_s: float, sender: int) -> None:
    try:
        store, now = AirtimeStore(path), Moment("boot", begin_s)
        store.open(now)
        while True:
            os.write(sender, SAID.pack(round(now.now_s * 1e6), 0))
            if store.reserve(BAND, now, 100_000, hold_s=0.0):
                os.write(sender, SAID.pack(round(now.now_s * 1e6), 100_000))
                now = at(0.1, now)
            else:
                free_s = store.ledger(BAND, now).next_free_s(now.now_s, 100_000)
                now = Moment("boot", free_s + 1e-6)
    finally:
        os._exit(1)


def _read_all(receiver: int) -> list[tuple[int, int]]:
    try:
        return list(SAID.iter_unpack(os.read(receiver, 65_536)))
    except BlockingIOError:
        return []  # killed before its first word


def _worst_hour_us(sent: list[tuple[int, int]]) -> int:
    starts, lengths = np.array(sent, np.int64).T
    edges = np.concatenate([starts, starts + lengths])
    windows = np.concatenate([edges, edges - HOUR_US])
    until = [
        _passed(starts, at) - _passed(starts + lengths, at) for at in (windows, windows + HOUR_US)
    ]
    return int((until[1] - until[0]).max())


def _passed(edges: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The time since all those edges that lie before, summed, at many points in time."""
    edges = np.sort(edges)
    before = np.searchsorted(edges, at)
    return before * at - np.concatenate([[0], np.cumsum(edges)])[before]
