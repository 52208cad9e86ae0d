from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from ternmesh.federated.events import (
    Advanced,
    CountersReserved,
    FellSilent,
    Joined,
    Pending,
    Refused,
    ResidualChanged,
    SettingsTaken,
    UpdateMade,
    UpdateReceived,
    WorkReady,
)
from ternmesh.federated.local_update import make_update
from ternmesh.federated.state import NO_RUN, ChainLink, Learned, NodeState, new_node_state
from ternmesh.plan import genesis, make_plan
from ternmesh.wire.global_update import certify, hash_global_update
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile

MODEL, OTHER_MODEL = bytes(range(32)), bytes(32)
DIMENSION = 50
RUN, NEXT_RUN, OTHER_RUN = b"run-0001", b"run-0002", b"run-0003"
PLAN = make_plan(DIMENSION, rounds=5, local_steps=1, learning_rate=0.1)
OTHER_PLAN = make_plan(DIMENSION, rounds=6, local_steps=1, learning_rate=0.1)


def floats(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32)


def model_q24(seed: int) -> np.ndarray:
    integers = np.random.default_rng(seed).integers(-(2**31) + 1, 2**31, DIMENSION)
    return integers.astype(np.int32)


def plain(state: NodeState) -> dict[str, object]:
    """A state that == compares, arrays by type and bytes."""
    values = {item.name: getattr(state, item.name) for item in fields(state)}
    if state.pending is not None:
        values["pending"] = {f.name: getattr(state.pending, f.name) for f in fields(Pending)}
        values["pending"]["corrected"] = exact(state.pending.corrected)
    if state.before is not None:
        values["before"] = exact(state.before.model_q24), exact(state.before.residual)
    if state.own_q24 is not None:
        values["own_q24"] = exact(state.own_q24)
    return values | {"model_q24": exact(state.model_q24), "residual": exact(state.residual)}


def exact(array: np.ndarray) -> tuple[str, bytes]:
    return str(array.dtype), array.tobytes()


JOINED = Joined(RUN, 7, PLAN)
PENDING = replace(make_update(floats(1), MODEL, 3, 9, PLAN), carried=None)  # as on disk
ADVANCED = Advanced(3, b"reference-hash-3", model_q24(2), floats(3), False)
LINK = ChainLink(3, hash_global_update(b"step"), certify(b"step"))
CHAINED = replace(ADVANCED, global_hash=LINK.global_hash, content=LINK.content, oldest=3)
BEFORE = Learned(ADVANCED.model_q24, ADVANCED.residual)
EMPTY = new_node_state(DIMENSION)
AT_START = replace(EMPTY, run=RUN, address=7, plan=PLAN, global_hash=genesis(MODEL, RUN, PLAN))
AT_3 = replace(
    AT_START,
    version=3,
    global_hash=ADVANCED.global_hash,
    model_q24=ADVANCED.model_q24,
    residual=ADVANCED.residual,
)
WITH_PACKET = replace(AT_3, pending=PENDING)

# What was before, the event, and the state that must be found after it.
CASES: dict[str, Any] = {
    "counters": ([], CountersReserved(4096), replace(EMPTY, counter=4096)),
    "joined": ([], JOINED, AT_START),
    "advanced": ([JOINED], ADVANCED, AT_3),
    "packet made": ([JOINED, ADVANCED], UpdateMade(PENDING), WITH_PACKET),
    "packet received": (
        [JOINED, ADVANCED, UpdateMade(PENDING)],
        UpdateReceived(3),
        replace(WITH_PACKET, received=True),
    ),
    "the next reference settles the packet": (
        [JOINED, UpdateMade(PENDING), UpdateReceived(3)],
        replace(ADVANCED, finished=True),
        replace(AT_3, finished=True),
    ),
    "a new packet has no receipt": (
        [JOINED, ADVANCED, UpdateMade(replace(PENDING, round=2)), UpdateReceived(2)],
        UpdateMade(PENDING),
        WITH_PACKET,
    ),
    "residual": ([JOINED, ADVANCED], ResidualChanged(floats(9)), replace(AT_3, residual=floats(9))),
    "silent": (
        [JOINED, ADVANCED, FellSilent(3, floats(8), 4)],
        FellSilent(3, floats(9), 5),
        replace(AT_3, residual=floats(9), silent=True, silences=5),
    ),
    "silent until the next reference": (
        [JOINED, FellSilent(2, floats(9), 300)],
        ADVANCED,
        replace(AT_3, silences=300),
    ),
    "a packet ends the silence": (
        [JOINED, FellSilent(2, floats(9), 5), ADVANCED],
        UpdateMade(PENDING),
        WITH_PACKET,
    ),
    "another run begins with no silence": (
        [JOINED, FellSilent(0, floats(9), 5)],
        Joined(NEXT_RUN, 7, PLAN),
        replace(AT_START, run=NEXT_RUN, global_hash=genesis(MODEL, NEXT_RUN, PLAN)),
    ),
    "joined again": (
        [JOINED, ADVANCED, UpdateMade(PENDING)],
        replace(JOINED, address=8),
        replace(WITH_PACKET, address=8),
    ),
    "another run keeps what was learned aside": (
        [JOINED, CountersReserved(9), ADVANCED, UpdateMade(PENDING), UpdateReceived(3)],
        Joined(NEXT_RUN, 2, PLAN),
        replace(
            AT_START,
            run=NEXT_RUN,
            address=2,
            global_hash=genesis(MODEL, NEXT_RUN, PLAN),
            counter=9,
            before=Learned(ADVANCED.model_q24, PENDING.corrected),
        ),
    ),
    "a third run keeps it, too": (
        [JOINED, ADVANCED, Joined(OTHER_RUN, 2, PLAN)],
        Joined(NEXT_RUN, 7, PLAN),
        replace(AT_START, run=NEXT_RUN, global_hash=genesis(MODEL, NEXT_RUN, PLAN), before=BEFORE),
    ),
    "its global update ends that": (
        [JOINED, ADVANCED, Joined(RUN, 7, OTHER_PLAN), Joined(RUN, 7, PLAN)],
        ADVANCED,
        AT_3,
    ),
    "what a node keeps of its own": (
        [JOINED],
        replace(ADVANCED, own_q24=model_q24(4)),
        replace(AT_3, own_q24=model_q24(4)),
    ),
    "it keeps nothing any more": (
        [JOINED, replace(ADVANCED, own_q24=model_q24(4))],
        ADVANCED,
        AT_3,
    ),
    "another run begins without it": (
        [JOINED, replace(ADVANCED, own_q24=model_q24(4))],
        Joined(NEXT_RUN, 7, PLAN),
        replace(AT_START, run=NEXT_RUN, global_hash=genesis(MODEL, NEXT_RUN, PLAN), before=BEFORE),
    ),
    "with its global update": (
        [JOINED],
        CHAINED,
        replace(AT_3, global_hash=LINK.global_hash, chain=(LINK,)),
    ),
    "without global updates too many": (
        [JOINED, CHAINED],
        replace(CHAINED, version=4, oldest=4),
        replace(AT_3, version=4, global_hash=LINK.global_hash, chain=(replace(LINK, version=4),)),
    ),
    "a snapshot ends the chain": ([JOINED, CHAINED], ADVANCED, AT_3),
    "another run has another chain": (
        [JOINED, CHAINED],
        Joined(NEXT_RUN, 7, PLAN),
        replace(AT_START, run=NEXT_RUN, global_hash=genesis(MODEL, NEXT_RUN, PLAN), before=BEFORE),
    ),
    "another plan is another run": (
        [JOINED, replace(ADVANCED, finished=True)],
        Joined(RUN, 7, OTHER_PLAN),
        replace(
            AT_START, plan=OTHER_PLAN, global_hash=genesis(MODEL, RUN, OTHER_PLAN), before=BEFORE
        ),
    ),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state"


def opened(path) -> NodeStore:
    file = StateFile(path)
    file.open()
    return NodeStore(file)


def load(path, model: bytes = MODEL) -> NodeState:
    store = opened(path)
    state = store.load(model, DIMENSION)
    store._database.close()
    return state


@pytest.mark.parametrize("name", CASES)
def test_each_event_survives_a_kill_after_its_commit_only(name, path, in_killed_process):
    before, event, after = CASES[name]

    def work(commit: bool) -> None:
        store = opened(path)
        store.load(MODEL, DIMENSION)
        if not commit:
            for earlier in before:
                store.record(earlier)
                store.commit()
        store.record(event)
        if commit:
            store.commit()

    in_killed_process(lambda: work(commit=False))
    without = plain(load(path))
    assert without != plain(after)
    in_killed_process(lambda: work(commit=True))
    assert plain(load(path)) == plain(after)


def test_events_of_one_poll_are_one_transaction(path, in_killed_process):
    def work() -> None:
        store = opened(path)
        store.load(MODEL, DIMENSION)
        for event in (JOINED, UpdateMade(PENDING), ADVANCED, UpdateMade(PENDING)):
            store.record(event)
        store.put("moments", b"moments")

    in_killed_process(work)
    assert plain(load(path)) == plain(EMPTY)


def test_what_needs_no_disk_is_not_written(path):
    store = opened(path)
    store.load(MODEL, DIMENSION)
    for event in (Refused("host", "seal"), WorkReady(0)):
        store.record(event)
        assert not store.changed
    store._database.close()


def test_another_models_state_is_discarded_but_for_the_counter(path):
    store = opened(path)
    store.load(MODEL, DIMENSION)
    for event in (JOINED, CountersReserved(8192), ADVANCED, UpdateMade(PENDING)):
        store.record(event)
    store.put("moments", b"of the first model")
    store.commit()
    assert store.get("moments") == b"of the first model"
    other = store.load(OTHER_MODEL, DIMENSION)
    assert plain(other) == plain(replace(EMPTY, counter=8192))
    assert store.get("moments") is None
    store._database.close()
    assert plain(load(path)) == plain(replace(EMPTY, counter=8192)), "it does not come back"
    assert other.run == NO_RUN


KEY, OTHER_GRAPH, OTHER_START, OTHER_SHAPE = (
    b"".join(bytes([number]) * 32 for number in numbers)
    for numbers in ((1, 1, 1), (1, 2, 2), (1, 1, 2), (2, 2, 1))
)


@pytest.mark.parametrize(
    ("key", "other", "is_kept"),
    [
        (KEY, OTHER_GRAPH, True),
        (KEY, OTHER_START, False),
        (KEY, OTHER_SHAPE, False),
        (b"", KEY, False),
        (KEY, b"", False),
    ],
    ids=["another graph", "what was exported", "another shape", "unknown before", "unknown now"],
)
def test_another_model_keeps_what_its_adapter_can_take(path, key, other, is_kept):
    store = opened(path)
    store.load(MODEL, DIMENSION, key)
    for event in (JOINED, ADVANCED, UpdateMade(PENDING)):
        store.record(event)
    store.put("best", b"of the first model")
    store.commit()
    kept = Learned(ADVANCED.model_q24, PENDING.corrected) if is_kept else None
    for _ in range(2):
        assert plain(store.load(OTHER_MODEL, DIMENSION, other)) == plain(
            replace(EMPTY, before=kept)
        )
    assert store.get("best") is None
    assert plain(store.load(MODEL, DIMENSION, key)) == plain(replace(EMPTY, before=kept))
    store._database.close()


def test_the_vectors_that_are_loaded_may_be_changed(path):
    for _ in range(2):
        state = load(path)
        state.model_q24[:] += 1
        state.residual[:] += 1.0
    assert state.model_q24.sum() != 0


def test_settings_of_the_host_survive_another_model(path):
    store = opened(path)
    store.load(MODEL, DIMENSION)
    assert store.settings() == (0, ())
    store.record(SettingsTaken(3, (2, 0, 0, 0)))
    store.record(SettingsTaken(4, (0, 61, 0, 0)))
    store.commit()
    store._database.close()
    store = opened(path)
    store.load(OTHER_MODEL, DIMENSION)
    assert store.settings() == (4, (0, 61, 0, 0))
    store._database.close()
