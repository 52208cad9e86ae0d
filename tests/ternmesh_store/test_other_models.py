"""What the state of a board and a split training is where another model or run begins.

tests/sim/test_stores.py shows what each event leaves.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ternmesh.federated import events
from ternmesh.federated.local_update import make_update
from ternmesh.federated.state import NO_RUN
from ternmesh.link.events import FrameArrived, LinkRefused
from ternmesh.plan import make_plan
from ternmesh_store.host_store import HostStore
from ternmesh_store.link_store import LinkStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.split_store import Checkpoint, SplitStore

MODEL, OTHER_MODEL = bytes(range(32)), bytes(32)
DIMENSION, RUN = 50, b"run-0001"
PLAN = make_plan(DIMENSION, rounds=5, local_steps=1, learning_rate=0.1)
VECTOR = np.arange(DIMENSION, dtype=np.float32)
PENDING = make_update(VECTOR, MODEL, 3, 9, PLAN)
LEARNED = (
    events.Joined(RUN, 7, PLAN),
    events.CountersReserved(8192),
    events.Advanced(3, b"adapter-hash-v3", np.arange(DIMENSION, dtype=np.int32), VECTOR, False),
    events.UpdateMade(PENDING),
)
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
def test_another_model_keeps_what_its_adapter_can_take(reopen, key, other, is_kept) -> None:
    store = NodeStore(reopen())
    store.load(MODEL, DIMENSION, key)
    for event in (*LEARNED, events.SettingsTaken(4, (0, 61, 0, 0))):
        store.record(event)
    store.put("moments", b"of the first model")
    store.commit()
    for model, its_key in ((OTHER_MODEL, other), (OTHER_MODEL, other), (MODEL, key)):
        state = store.load(model, DIMENSION, its_key)
        assert (state.run, state.version, state.pending, state.counter) == (NO_RUN, 0, None, 8192)
        assert not state.residual.any()
        assert (state.before is not None) == is_kept
        if state.before is not None:
            assert state.before.model_q24.tolist() == list(range(DIMENSION))
            assert np.array_equal(state.before.residual, PENDING.corrected)
        assert store.get("moments") is None
        store = NodeStore(reopen())
        assert store.settings() == (4, (0, 61, 0, 0)), "they are of the board, not of the model"


def test_another_plan_is_another_run(reopen) -> None:
    store = NodeStore(reopen())
    store.load(MODEL, DIMENSION)
    for plan, version in ((PLAN, 3), (replace(PLAN, rounds=6), 0)):
        for event in LEARNED if version else ():
            store.record(event)
        store.record(events.Joined(RUN, 9, plan))
        assert store.load(MODEL, DIMENSION).version == version


@pytest.mark.parametrize(
    ("make", "event"),
    [
        (NodeStore, events.Refused("host", "seal")),
        (NodeStore, events.WorkReady(0)),
        (HostStore, events.Refused("ada", "seal")),
        (HostStore, events.RoundExtended(0, 60.0)),
        (LinkStore, FrameArrived("n1", b"frame")),
        (LinkStore, LinkRefused("n1", "seal")),
    ],
)
def test_what_needs_no_disk_is_not_written(reopen, make: Any, event: Any) -> None:
    store = make(reopen())
    store.record(event)
    assert not store.changed


def test_the_checkpoint_of_a_split_training_is_kept_from_its_commit_on(reopen) -> None:
    store = SplitStore(reopen())
    assert (store.counter(), store.boards(), store.load(("weights",))) == (0, (), None)
    store.reserve(4096)
    store.add_board(2, "theo")
    store.add_board(1, "nicolas")
    first = Checkpoint(MODEL, RUN, {"theo": 20}, {"weights": b"abc"}, {"lost": 2})
    store.save(first)
    store.commit()
    store.save(Checkpoint(MODEL, RUN, {"theo": 40}, {"weights": b"later"}))
    store.reserve(8192)
    store = SplitStore(reopen())
    assert store.counter() == 4096
    assert store.boards() == ((1, "nicolas"), (2, "theo"))
    assert store.load(("weights", "others")) == first
    store.forget()
    assert (store.counter(), store.boards(), store.load(())) == (4096, (), None)
