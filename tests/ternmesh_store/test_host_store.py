from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from ternmesh.federated.evaluation import Evaluation
from ternmesh.federated.events import (
    BoardChanged,
    BodyAccepted,
    CountersReserved,
    GlobalUpdateMade,
    NodeJoined,
    Refused,
    RoundExtended,
    RoundOpened,
    UpdateForgotten,
)
from ternmesh.federated.local_update import make_update
from ternmesh.federated.management import BoardRecord
from ternmesh.federated.open_round import PARTIAL_AGGREGATE
from ternmesh.federated.state import ChainLink, HostState, RegisteredNode, new_host_state
from ternmesh.plan import make_plan
from ternmesh.wire.control import Report, Silent, write_control
from ternmesh.wire.global_update import Counted, certify, hash_global_update
from ternmesh.wire.update import Contribution, write_contributions
from ternmesh_store import host_store
from ternmesh_store.files import create_private_file
from ternmesh_store.host_store import HostStore, StoredRound, Tally
from ternmesh_store.state_file import STATE

MODEL, OTHER_MODEL = bytes(range(32)), bytes(32)
DIMENSION = 50
RUN = b"run-0001"
PLAN = make_plan(DIMENSION, rounds=50, local_steps=1, learning_rate=0.1)
EMPTY = new_host_state(DIMENSION)

ADA, BOB = NodeJoined(1, "ada", 100), NodeJoined(2, "bob", 30)
COUNTED = Counted(1, 0, b"dige", b"\x01")


def global_hash(version: int, counted=(COUNTED,), missing=(2,), finished=False) -> GlobalUpdateMade:
    rng = np.random.default_rng(version)
    return GlobalUpdateMade(
        version=version,
        global_hash=hash_global_update(b"content of %d" % version),
        content=certify(b"content of %d" % version),
        model_q24=rng.integers(-(2**31) + 1, 2**31, DIMENSION).astype(np.int32),
        residual=rng.standard_normal(DIMENSION).astype(np.float32),
        counted=counted,
        missing=missing,
        finished=finished,
    )


def at(event: GlobalUpdateMade, **changes: Any) -> HostState:
    state = replace(
        EMPTY,
        version=event.version,
        global_hash=event.global_hash,
        model_q24=event.model_q24,
        residual=event.residual,
        chain=(ChainLink(event.version, event.global_hash, event.content),),
    )
    return replace(state, **changes)


def plain(state: HostState) -> dict[str, object]:
    """A state that == compares, arrays by type and bytes."""
    values = {item.name: getattr(state, item.name) for item in fields(state)}
    for name in ("model_q24", "residual"):
        values[name] = (str(values[name].dtype), values[name].tobytes())
    return values


NODES = (RegisteredNode(1, "ada", 100), RegisteredNode(2, "bob", 30))
AFTER_1 = (RegisteredNode(1, "ada", 100, COUNTED), RegisteredNode(2, "bob", 30))
HEAD, SHARE = make_update(EMPTY.residual + 1, MODEL, 0, 9, PLAN).bodies[:2]
SILENT = write_control(Silent(0))
LISTED = write_contributions(0, [Contribution(b"dige", 1)] * 2)
BODIES = [BodyAccepted(1, 0, SHARE), BodyAccepted(2, 0, SILENT), BodyAccepted(1, 0, HEAD)]

BUNDLE_ROW = Counted(1, 0, b"bndl", b"\x01")
BUNDLED = replace(
    global_hash(1, missing=()),
    counted=(COUNTED, Counted(2, 0, b"bobs", b"\x01")),
    partial_aggregates=((1, BUNDLE_ROW), (2, BUNDLE_ROW)),
)

# What was before, the event, and the state that must be found after it.
CASES: dict[str, Any] = {
    "counters": ([], CountersReserved(4096), replace(EMPTY, counter=4096)),
    "node joined": ([ADA], BOB, replace(EMPTY, nodes=NODES)),
    "node has more samples": (
        [ADA, BOB, global_hash(1)],
        replace(BOB, samples=31),
        at(global_hash(1), nodes=(AFTER_1[0], replace(NODES[1], samples=31))),
    ),
    "round opened": ([], RoundOpened(0, 60.0), replace(EMPTY, started=True)),
    "body accepted": (
        [ADA, BOB, *BODIES[:2]],
        BODIES[2],
        replace(EMPTY, nodes=NODES, bodies=((1, SHARE), (2, SILENT), (1, HEAD))),
    ),
    "packet forgotten": (
        [ADA, BOB, *BODIES],
        UpdateForgotten(1, 0),
        replace(EMPTY, nodes=NODES, bodies=((2, SILENT),)),
    ),
    "reference made": ([ADA, BOB, *BODIES], global_hash(1), at(global_hash(1), nodes=AFTER_1)),
    "reference of a bundle": (
        [ADA, BOB, BodyAccepted(1 | PARTIAL_AGGREGATE, 0, LISTED), BODIES[1]],
        BUNDLED,
        at(
            global_hash(1),
            nodes=(
                RegisteredNode(1, "ada", 100, COUNTED, BUNDLE_ROW),
                RegisteredNode(2, "bob", 30, BUNDLED.counted[1], BUNDLE_ROW),
            ),
        ),
    ),
    "reference after that of a bundle": (
        [ADA, BOB, BUNDLED],
        replace(global_hash(2), counted=(replace(COUNTED, round=1),)),
        at(
            global_hash(2),
            nodes=(
                RegisteredNode(1, "ada", 100, replace(COUNTED, round=1)),
                RegisteredNode(2, "bob", 30, BUNDLED.counted[1], BUNDLE_ROW),
            ),
            chain=(
                ChainLink(1, global_hash(1).global_hash, global_hash(1).content),
                ChainLink(2, global_hash(2).global_hash, global_hash(2).content),
            ),
        ),
    ),
    "body of a bundle accepted": (
        [ADA, BODIES[0]],
        BodyAccepted(1 | PARTIAL_AGGREGATE, 0, LISTED),
        replace(EMPTY, nodes=NODES[:1], bodies=((1, SHARE), (1 | PARTIAL_AGGREGATE, LISTED))),
    ),
    "bundle forgotten": (
        [ADA, BODIES[0], BodyAccepted(1 | PARTIAL_AGGREGATE, 0, LISTED)],
        UpdateForgotten(1 | PARTIAL_AGGREGATE, 0),
        replace(EMPTY, nodes=NODES[:1], bodies=((1, SHARE),)),
    ),
    "last reference made": (
        [ADA, BOB, RoundOpened(0, 60.0), *BODIES],
        global_hash(1, finished=True),
        at(global_hash(1), nodes=AFTER_1, started=True, finished=True),
    ),
}


@pytest.fixture
def store(reopen):
    store = HostStore(reopen(), chain_max=3)
    store.begin(RUN, PLAN, MODEL)
    return store


def begin(store: HostStore) -> None:
    store.begin(RUN, PLAN, MODEL)


def read(store: HostStore) -> dict[str, object]:
    stored = store.load(MODEL)
    assert (stored.run, stored.plan) == (RUN, PLAN)
    return plain(stored.state)


def test_without_its_wal_a_state_still_knows_the_run(store, reopen, tmp_path) -> None:
    create_private_file(tmp_path / "copy" / STATE, store.path.read_bytes())
    assert HostStore(reopen(tmp_path / "copy")).load(MODEL).run == RUN


@pytest.mark.parametrize("name", CASES)
def test_each_event_is_kept_from_its_commit_on(name, check_kept):
    before, event, after = CASES[name]
    check_kept(HostStore, begin, read, (before, event, plain(after)))


def test_what_needs_no_disk_is_not_written(store):
    for event in (Refused("ada", "seal"), RoundExtended(0, 60.0)):
        store.record(event)
        assert not store.changed


def test_a_new_file_holds_no_run_and_another_models_run_is_not_ours(reopen):
    store = HostStore(reopen())
    assert store.load(MODEL) is None
    store.begin(RUN, PLAN, MODEL)
    assert store.load(OTHER_MODEL) is None
    assert store.load(MODEL) is not None


def test_a_new_run_forgets_everything_but_the_frame_counter(store):
    for event in (ADA, BOB, CountersReserved(4096), RoundOpened(0, 1.0), *BODIES, global_hash(1)):
        store.record(event)
    store.charge(1, {"ada": (10, 20)}, 1.0)
    store.commit()
    begun = store.begin(b"run-0002", PLAN, MODEL)
    assert begun.run == b"run-0002"
    assert plain(begun.state) == plain(replace(EMPTY, counter=4096))
    assert store.history() == []
    assert store.tallies() == {}


def test_the_mean_of_the_adapters_stays_until_there_is_another_or_a_new_run(store):
    for version, mean in ((1, b""), (2, b"mean"), (3, b"")):
        store.record(replace(global_hash(version, counted=(), missing=()), mean=mean))
        assert store.load(MODEL).state.mean == (b"mean" if version > 1 else b"")
    assert store.begin(b"run-0002", PLAN, MODEL).state.mean == b""


def test_only_the_newest_references_are_kept(store):
    store.record(ADA)
    for version in range(1, 8):
        store.record(global_hash(version, missing=()))
        store.commit()
    chain = store.load(MODEL).state.chain
    assert [link.version for link in chain] == [5, 6, 7]
    assert chain[-1].content == certify(b"content of 7")


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


def test_what_the_owner_has_muted_stays_over_restarts_and_runs(store, reopen):
    assert store.muted == []
    store.keep_muted({"bob", "ada"})
    store.begin(b"run-0002", PLAN, MODEL)
    store.commit()
    assert HostStore(reopen()).muted == ["ada", "bob"]


REPORT = Report("0.1.0", 3, (2, 0, 0, 0), (5, 0, 7))


def test_boards_are_kept_over_restarts_and_runs(store, reopen):
    store.record(BoardChanged("ada", 3, (2, 0, 0, 0), None))
    store.record(BoardChanged("ada", 4, (0, 9, 0, 0), REPORT))
    store.record(BoardChanged("bob", 0, (), REPORT))
    store.begin(b"run-0002", PLAN, MODEL)
    store.commit()
    boards = HostStore(reopen()).boards(500.0)
    for board in boards.values():
        assert 495.0 < board.reported_at <= 500.0
        board.reported_at = 500.0
    assert boards == {
        "ada": BoardRecord(4, (0, 9, 0, 0), REPORT, 500.0),
        "bob": BoardRecord(0, (), REPORT, 500.0),
    }


def test_settings_do_not_make_a_report_younger(reopen):
    state = reopen()
    store = HostStore(state)
    store.record(BoardChanged("ada", 1, (2,), REPORT))
    state.write("UPDATE host_board SET reported_at = reported_at - 100")
    store.record(BoardChanged("ada", 2, (1,), REPORT))
    assert store.boards(500.0)["ada"].reported_at <= 400.0
    store.record(BoardChanged("ada", 2, (1,), replace(REPORT, number=2)))
    assert store.boards(500.0)["ada"].reported_at > 490.0
