"""What a bundling gateway finds again, also after it was killed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ternmesh.plan import make_plan
from ternmesh.swarm.bundle_records import (
    BundleMade,
    BundlerState,
    BundleSettled,
    RunFollowed,
    VersionReached,
)
from ternmesh.swarm.bundling import make_bundle
from ternmesh.swarm.events import CountersReserved
from ternmesh.swarm.intake import Intake
from ternmesh.swarm.packet import make_packet
from ternmesh_store.gateway_store import GatewayStore

MODEL, DIMENSION = bytes(range(32)), 300
PLAN = make_plan(DIMENSION, rounds=3, local_steps=1, learning_rate=0.1)
RESIDUAL = np.arange(DIMENSION, dtype=np.float32)


def bundle() -> object:
    chosen = {}
    for context in (2, 3):
        vector = np.random.default_rng(context).normal(size=DIMENSION).astype(np.float32)
        chosen[context] = Intake(PLAN, MODEL[:8], 1)
        for body in make_packet(vector, MODEL, 1, 10, PLAN).bodies:
            chosen[context].add(body)
    return make_bundle(chosen, RESIDUAL, MODEL, 1, PLAN, "ada")


def load(path: Path, model: bytes = MODEL) -> BundlerState:
    store = GatewayStore(path)
    store.open()
    try:
        return store.load(model, DIMENSION)
    finally:
        store.close()


def work(path: Path, *, settle: bool = False, commit: bool = True) -> None:
    store = GatewayStore(path)
    store.open()
    store.load(MODEL, DIMENSION)
    store.record(CountersReserved(4096))
    store.record(RunFollowed(b"run-id-8", PLAN))
    store.record(VersionReached(1))
    store.record(BundleMade(bundle()))  # type: ignore[arg-type]
    if settle:
        store.record(BundleSettled(RESIDUAL, is_counted=True))
        store.record(VersionReached(2))
    if commit:
        store.commit()
    if settle:
        store.close()


def test_a_new_file_is_empty(tmp_path: Path) -> None:
    state = load(tmp_path / "bundle.db")
    assert (state.plan, state.pending, state.version, state.counter) == (None, None, 0, 0)
    assert not state.residual.any()
    assert state.residual.size == DIMENSION


def test_a_bundle_of_unknown_fate_survives_a_kill(
    tmp_path: Path, in_killed_process: Callable[[Callable[[], None]], None]
) -> None:
    in_killed_process(lambda: work(tmp_path / "bundle.db"))
    state = load(tmp_path / "bundle.db")
    made = bundle()
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
    in_killed_process(lambda: work(tmp_path / "bundle.db", commit=False))
    assert load(tmp_path / "bundle.db").pending is None


def test_a_settled_bundle_leaves_its_residual(tmp_path: Path) -> None:
    work(tmp_path / "bundle.db", settle=True)
    state = load(tmp_path / "bundle.db")
    assert (state.pending, state.version) == (None, 2)
    assert np.array_equal(state.residual, RESIDUAL)


def test_another_run_or_model_begins_with_nothing_but_the_counter(tmp_path: Path) -> None:
    path = tmp_path / "bundle.db"
    work(path, settle=True)
    store = GatewayStore(path)
    store.open()
    store.load(MODEL, DIMENSION)
    store.record(RunFollowed(b"another!", PLAN))
    store.commit()
    store.close()
    state = load(path)
    assert (state.run, state.version, state.counter) == (b"another!", 0, 4096)
    assert not state.residual.any()
    work(path, settle=True)
    state = load(path, model=bytes(32))
    assert (state.plan, state.pending, state.counter) == (None, None, 4096)
