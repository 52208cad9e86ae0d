"""What a bundling gateway finds again."""

import numpy as np

from ternmesh.federated.events import CountersReserved
from ternmesh.federated.gateway.partial_aggregate import (
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


def filled(state, *, settle: bool = False) -> GatewayStore:
    store = GatewayStore(state)
    store.load(MODEL, DIMENSION)
    store.record(CountersReserved(4096))
    store.record(RunFollowed(b"run-id-8", PLAN))
    store.record(VersionReached(1))
    store.record(PartialAggregateMade(partial_aggregate()))  # type: ignore[arg-type]
    if settle:
        store.record(PartialAggregateSettled(RESIDUAL, is_counted=True))
        store.record(VersionReached(2))
    return store


def test_a_new_file_is_empty_and_what_was_not_committed_is_lost(reopen) -> None:
    filled(reopen())
    state = GatewayStore(reopen()).load(MODEL, DIMENSION)
    assert (state.plan, state.pending, state.version, state.counter) == (None, None, 0, 0)
    assert not state.residual.any()
    assert state.residual.size == DIMENSION


def test_a_bundle_of_unknown_fate_is_kept(reopen) -> None:
    filled(reopen()).commit()
    state = GatewayStore(reopen()).load(MODEL, DIMENSION)
    made = partial_aggregate()
    assert state.pending is not None
    assert state.pending.bodies == made.bodies  # type: ignore[attr-defined]
    assert np.array_equal(state.pending.wanted, made.wanted)  # type: ignore[attr-defined]
    assert (state.pending.round, state.pending.board) == (1, "ada")
    assert list(state.pending.rows) == [2, 3]
    assert (state.run, state.plan, state.version) == (b"run-id-8", PLAN, 1)
    assert state.counter == 4096


def test_another_run_or_model_begins_with_nothing_but_the_counter(reopen) -> None:
    store = filled(reopen(), settle=True)
    state = store.load(MODEL, DIMENSION)
    assert (state.pending, state.version) == (None, 2)
    assert np.array_equal(state.residual, RESIDUAL), "a settled bundle leaves it"
    store.record(RunFollowed(b"another!", PLAN))
    state = store.load(MODEL, DIMENSION)
    assert (state.run, state.version, state.counter) == (b"another!", 0, 4096)
    assert not state.residual.any()
    state = filled(reopen(), settle=True).load(bytes(32), DIMENSION)
    assert (state.plan, state.pending, state.counter) == (None, None, 4096)
