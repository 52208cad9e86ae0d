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


def read(store: NodeStore) -> dict[str, object]:
    return plain(store.load(MODEL, DIMENSION))


@pytest.mark.parametrize("name", CASES)
def test_each_event_is_kept_from_its_commit_on(name, check_kept):
    before, event, after = CASES[name]
    check_kept(NodeStore, read, read, (before, event, plain(after)))


def test_what_needs_no_disk_is_not_written(reopen):
    store = NodeStore(reopen())
    store.load(MODEL, DIMENSION)
    for event in (Refused("host", "seal"), WorkReady(0)):
        store.record(event)
        assert not store.changed


def test_another_models_state_is_discarded_but_for_the_counter(reopen):
    store = NodeStore(reopen())
    store.load(MODEL, DIMENSION)
    for event in (JOINED, CountersReserved(8192), ADVANCED, UpdateMade(PENDING)):
        store.record(event)
    store.put("moments", b"of the first model")
    store.commit()
    assert store.get("moments") == b"of the first model"
    other = store.load(OTHER_MODEL, DIMENSION)
    assert plain(other) == plain(replace(EMPTY, counter=8192))
    assert store.get("moments") is None
    assert read(NodeStore(reopen())) == plain(replace(EMPTY, counter=8192)), "it does not return"
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
def test_another_model_keeps_what_its_adapter_can_take(reopen, key, other, is_kept):
    store = NodeStore(reopen())
    store.load(MODEL, DIMENSION, key)
    for event in (JOINED, ADVANCED, UpdateMade(PENDING)):
        store.record(event)
    store.commit()
    kept = Learned(ADVANCED.model_q24, PENDING.corrected) if is_kept else None
    expected = plain(replace(EMPTY, before=kept))
    for model, its_key in ((OTHER_MODEL, other), (OTHER_MODEL, other), (MODEL, key)):
        assert plain(store.load(model, DIMENSION, its_key)) == expected


def test_the_vectors_that_are_loaded_may_be_changed(reopen):
    for _ in range(2):
        state = NodeStore(reopen()).load(MODEL, DIMENSION)
        state.model_q24[:] += 1
        state.residual[:] += 1.0
    assert state.model_q24.sum() != 0


def test_settings_of_the_host_survive_another_model(reopen):
    store = NodeStore(reopen())
    store.load(MODEL, DIMENSION)
    assert store.settings() == (0, ())
    for event in (SettingsTaken(3, (2, 0, 0, 0)), SettingsTaken(4, (0, 61, 0, 0))):
        store.record(event)
    store.commit()
    store = NodeStore(reopen())
    store.load(OTHER_MODEL, DIMENSION)
    assert store.settings() == (4, (0, 61, 0, 0))
