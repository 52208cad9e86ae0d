from dataclasses import replace

import numpy as np
import pytest

from ternmesh.federated.evaluation import Evaluation
from ternmesh.federated.events import (
    BoardChanged,
    CountersReserved,
    GlobalUpdateMade,
    NodeJoined,
    RoundOpened,
)
from ternmesh.plan import make_plan
from ternmesh.wire.control import Report
from ternmesh.wire.global_update import Counted, certify, hash_global_update
from ternmesh_store import host_store
from ternmesh_store.files import create_private_file
from ternmesh_store.host_store import HostStore, StoredRound, Tally
from ternmesh_store.state_file import STATE

MODEL, OTHER_MODEL = bytes(range(32)), bytes(32)
DIMENSION = 50
RUN = b"run-0001"
PLAN = make_plan(DIMENSION, rounds=50, local_steps=1, learning_rate=0.1)

ADA, BOB = NodeJoined(1, "ada", 100), NodeJoined(2, "bob", 30)
COUNTED = Counted(1, 0, b"dige", b"\x01")


def global_hash(version: int, counted=(COUNTED,), missing=(2,)) -> GlobalUpdateMade:
    rng = np.random.default_rng(version)
    return GlobalUpdateMade(
        version=version,
        global_hash=hash_global_update(b"content of %d" % version),
        content=certify(b"content of %d" % version),
        model_q24=rng.integers(-(2**31) + 1, 2**31, DIMENSION).astype(np.int32),
        residual=rng.standard_normal(DIMENSION).astype(np.float32),
        counted=counted,
        missing=missing,
        finished=False,
    )


@pytest.fixture
def store(reopen):
    store = HostStore(reopen(), chain_max=3)
    store.begin(RUN, PLAN, MODEL)
    return store


def test_without_its_wal_a_state_still_knows_the_run(store, reopen, tmp_path) -> None:
    create_private_file(tmp_path / "copy" / STATE, store.path.read_bytes())
    assert HostStore(reopen(tmp_path / "copy")).load(MODEL).run == RUN


def test_a_new_run_forgets_all_but_the_counter_and_whom_the_owner_has_muted(store, reopen):
    for event in (ADA, BOB, CountersReserved(4096), RoundOpened(0, 1.0), global_hash(1)):
        store.record(event)
    store.charge(1, {"ada": (10, 20)}, 1.0)
    assert store.muted == []
    store.keep_muted({"bob", "ada"})
    store.begin(b"run-0002", PLAN, MODEL)
    store = HostStore(reopen())
    begun = store.load(MODEL)
    assert begun.run == b"run-0002"
    assert begun.state.counter == 4096
    assert (begun.state.version, begun.state.started, begun.state.nodes) == (0, False, ())
    assert not begun.state.model_q24.any()
    assert (store.history(), store.tallies(), store.muted) == ([], {}, ["ada", "bob"])


def test_bytes_and_seconds_belong_to_the_round_that_they_were_charged_to(store):
    store.record(ADA)
    store.record(BOB)
    store.charge(1, {"ada": (100, 5), "stranger": (7, 1)}, 2.0)
    store.charge(1, {"ada": (11, 0), "all": (0, 50)}, 0.5)
    store.record(global_hash(1))
    store.charge(2, {"bob": (200, 9)}, 4.0)
    store.charge(1, {"all": (0, 400)}, 0.0)
    first = StoredRound(
        version=1,
        counted=("ada",),
        missing=("bob",),
        bytes_up={"ada": 111, "stranger": 7},
        bytes_down=456,
        seconds=2.5,
        useful_bytes=len(certify(b"content of 1")),
    )
    assert store.history() == [first], "the round that is still open is no history"
    both = (COUNTED, replace(COUNTED, address=2))
    reports = ((1, Evaluation(0.3, None, 1)), (2, Evaluation(0.5, 0.9, 1)))
    made = replace(
        global_hash(2, counted=both, missing=()),
        evaluation=Evaluation(0.4, 0.9, 2),
        evaluations=reports,
    )
    store.record(made)
    assert store.history()[0] == first
    second = StoredRound(
        *(2, ("ada", "bob"), (), {"bob": 200}, 9, 4.0, 0.4, 0.9, 2),
        useful_bytes=len(certify(b"content of 2")),
        reports={"ada": (0.3, None), "bob": (0.5, 0.9)},
    )
    assert store.history(1) == [second]
    assert store.tallies() == {
        "ada": Tally(rounds_counted=2, rounds_missed=0, bytes_up=111, bytes_down=5),
        "bob": Tally(rounds_counted=1, rounds_missed=1, bytes_up=200, bytes_down=9),
    }


def test_the_history_is_bounded_and_totals_are_not_cut(store, monkeypatch):
    monkeypatch.setattr(host_store, "ROUNDS_MAX", 3)
    store.record(ADA)
    for version in range(1, 9):
        store.charge(version, {"ada": (10, 1)}, 1.0)
        store.record(global_hash(version, missing=()))
    assert [item.version for item in store.history()] == [6, 7, 8]
    assert store.tallies()["ada"] == Tally(8, 0, 80, 8)


REPORT = Report("0.1.0", 3, (2, 0, 0, 0), (5, 0, 7))


def test_settings_do_not_make_a_report_younger(reopen):
    state = reopen()
    store = HostStore(state)
    store.record(BoardChanged("ada", 1, (2,), REPORT))
    state.write("UPDATE host_board SET reported_at = reported_at - 100")
    store.record(BoardChanged("ada", 2, (1,), REPORT))
    assert store.boards(500.0)["ada"].reported_at <= 400.0
    store.record(BoardChanged("ada", 2, (1,), replace(REPORT, number=2)))
    assert store.boards(500.0)["ada"].reported_at > 490.0
