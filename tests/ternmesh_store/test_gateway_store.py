"""What a bundling gateway finds again, also after it was killed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ternmesh.federated.events import CountersReserved
from ternmesh.federated.gateway.partial_aggregate import (
    GatewayState,
    PartialAggregateMade,
    PartialAggregateSettled,
    RunFollowed,
    VersionReached,
    make_partial_aggregate,
)
from ternmesh.federated.local_update import make_update
from ternmesh.federated.open_round import UpdateReassembler
from ternmesh.plan import make_plan
from ternmesh_store.gateway_store import GatewayStore
from ternmesh_store.state_file import StateFile

MODEL, DIMENSION = bytes(range(32)), 300
PLAN = make_plan(DIMENSION, rounds=3, local_steps=1, learning_rate=0.1)
RESIDUAL = np.arange(DIMENSION, dtype=np.float32)


def partial_aggregate() -> object:
    chosen = {}
    for address in (2, 3):
        vector = np.random.default_rng(address).normal(size=DIMENSION).astype(np.float32)
        chosen[address] = UpdateReassembler(PLAN, MODEL[:8], 1)
        for body in make_update(vector, MODEL, 1, 10, PLAN).bodies:
            chosen[address].add(body)
    return make_partial_aggregate(chosen, RESIDUAL, MODEL, 1, PLAN, "ada")


def opened(path: Path) -> GatewayStore:
    file = StateFile(path)
    file.open()
    return GatewayStore(file)


def load(path: Path, model: bytes = MODEL) -> GatewayState:
    store = opened(path)
    try:
        return store.load(model, DIMENSION)
    finally:
        store._database.close()


def work(path: Path, *, settle: bool = False, commit: bool = True) -> None:
    store = opened(path)
    store.load(MODEL, DIMENSION)
    store.record(CountersReserved(4096))
    store.record(RunFollowed(b"run-id-8", PLAN))
    store.record(VersionReached(1))
    store.record(PartialAggregateMade(partial_aggregate()))  # type: ignore[arg-type]
    if settle:
        store.record(PartialAggregateSettled(RESIDUAL, is_counted=True))
        store.record(VersionReached(2))
    if commit:
        store.commit()
    if settle:
        store._database.close()


def test_a_new_file_is_empty(tmp_path: Path) -> None:
    state = load(tmp_path / "state")
    assert (state.plan, state.pending, state.version, state.counter) == (None, None, 0, 0)
    assert not state.residual.any()
    assert state.residual.size == DIMENSION


def test_a_bundle_of_unknown_fate_survives_a_kill(
    tmp_path: Path, in_killed_process: Callable[[Callable[[], None]], None]
) -> None:
    in_killed_process(lambda: work(tmp_path / "state"))
    state = load(tmp_path / "state")
    made = partial_aggregate()
    assert state.pending is not None
    assert state.pending.bodies == made.bodies  # type: ignore[attr-defined]
    assert np.array_equal(state.pending.wanted, made.wanted)  # type: ignore[attr-defined]
    assert (state.pending.round, state.pending.board) == (1, "ada")
    assert list(state.pending.rows) == [2, 3]
    assert (state.run, state.plan, state.version) == (b"run-id-8", PLAN, 1)
    assert state.counter == 4096


def test_what_was_not_committed_is_gone(
    tmp_path: Path, in_killed_process: Callable[[Callable[[], None]], None]
) -> None:
    in_killed_process(lambda: work(tmp_path / "state", commit=False))
    assert load(tmp_path / "state").pending is None


def test_a_settled_bundle_leaves_its_residual(tmp_path: Path) -> None:
    work(tmp_path / "state", settle=True)
    state = load(tmp_path / "state")
    assert (state.pending, state.version) == (None, 2)
    assert np.array_equal(state.residual, RESIDUAL)


def test_another_run_or_model_begins_with_nothing_but_the_counter(tmp_path: Path) -> None:
    path = tmp_path / "state"
    work(path, settle=True)
    store = opened(path)
    store.load(MODEL, DIMENSION)
    store.record(RunFollowed(b"another!", PLAN))
    store.commit()
    store._database.close()
    state = load(path)
    assert (state.run, state.version, state.counter) == (b"another!", 0, 4096)
    assert not state.residual.any()
    work(path, settle=True)
    state = load(path, model=bytes(32))
    assert (state.plan, state.pending, state.counter) == (None, None, 4096)
