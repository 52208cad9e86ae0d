"""The personal part of a board's adapter: tensors that the board trains and never submits.

Their numbers stand in place of the global ones wherever the board uses its adapter. They begin at
the global adapter, and follow nothing but the board's own training from then on.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from edge.evaluation import write_best
from ternmesh.codec.scale import Q24_MAX, UNIT, add_q24, to_vector
from ternmesh.config import ConfigError
from ternmesh.errors import CodecError
from ternmesh.federated.aggregation import update_delta_q24
from ternmesh.federated.events import (
    FellSilent,
    NodeEvent,
    Pending,
    ResidualChanged,
    UpdateMade,
    UpdateReceived,
    WorkReady,
)
from ternmesh.federated.local_update import make_update
from ternmesh.federated.state import NodeState
from ternmesh.model_package import ModelPackage
from ternmesh.types import ModelQ24, Vector
from ternmesh.wire.update import read_manifest
from ternmesh_store.node_store import NodeStore

KEY = "personal"  # of the value in the store: a bit for each number, then the personal numbers

Places = NDArray[np.bool_]

_log = logging.getLogger(__name__)


class Personal:
    """The personal numbers: at `places` (bool [D]), `values_q24` (int32) in their order.

    Like the global adapter they are relative to the initial one, in units of 2**-24.
    """

    def __init__(self, places: Places, values_q24: ModelQ24) -> None:
        self._places = places
        self._values_q24 = values_q24

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._places.any())

    def own(self, model_q24: ModelQ24) -> ModelQ24:
        """A global adapter (int32 [D]) as this board uses it."""
        own = model_q24.copy()
        own[self._places] = self._values_q24
        return own

    def shared(self, vector: Vector) -> Vector:
        """A delta or residual (float32 [D]) without personal numbers: zero there.

        CodecError if one of them is NaN or infinity, as for the others when they are submitted.
        """
        if not np.isfinite(vector[self._places]).all():
            raise CodecError("the personal part holds NaN or infinity: training has diverged")
        shared = vector.copy()
        shared[self._places] = 0.0
        return shared

    def learn(self, delta: Vector) -> None:
        """Add the personal part of a round's delta (float32 [D]).

        It is durable together with the event of the part that was submitted: see `record`.
        """
        units = np.rint(delta[self._places].astype(np.float64) / UNIT)
        limit = 2.0 * Q24_MAX  # `add_q24` saturates
        change = np.clip(units, -limit, limit).astype(np.int64)
        self._values_q24 = add_q24(self._values_q24, change)

    def record(self, event: NodeEvent, store: NodeStore) -> None:
        """Store what an event of the protocol makes of it, in the event's transaction."""
        match event:
            case WorkReady(round=0):  # the run takes no adapter along
                self._values_q24 = np.zeros_like(self._values_q24)
            case UpdateMade() | ResidualChanged() | FellSilent():
                pass  # after `learn`
            case _:
                return
        if self:
            store.put(KEY, self.stored())

    def stored(self) -> bytes:
        """What an earlier process has left for `take_up`."""
        return np.packbits(self._places).tobytes() + self._values_q24.astype("<i4").tobytes()


def find_places(package: ModelPackage, wanted: Sequence[str]) -> Places:
    """Where in the adapter the tensors are whose names or patterns are `wanted` (bool [D]).

    ConfigError for one that no tensor matches, or if no tensor is left to share.
    """
    names = [tensor.name for tensor in package.adapter]
    for pattern in wanted:
        if not any(_is_meant(name, pattern) for name in names):
            raise ConfigError(
                f"training.personal names {pattern!r}, and {package.name} has no such tensor in "
                f"its adapter: it has {', '.join(names)}"
            )
    found = {name for name in names if any(_is_meant(name, pattern) for pattern in wanted)}
    if len(found) == len(names):
        raise ConfigError(
            "training.personal names the whole adapter, and nothing is left to share: leave out at "
            f"least one of {', '.join(names)}"
        )
    marks = np.zeros(package.dimension, np.float32)
    for name, tensor in package.split(marks).items():
        tensor[...] = name in found
    return marks > 0


def _is_meant(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def take_up(
    package: ModelPackage, wanted: Sequence[str], store: NodeStore, state: NodeState
) -> tuple[Personal, NodeState]:
    """The personal part as an earlier process has left it, and the state to continue with.

    A tensor that has become personal begins at the global adapter; the state is without what was
    learned of it before and has not left yet. One that is personal no more has the global numbers
    again: its personal ones are dropped. ConfigError for wrong names.
    """
    places = find_places(package, wanted)
    before, values_q24 = _read(store.get(KEY) or b"", package.dimension)
    adapter_q24 = (state.before or state).model_q24.copy()
    adapter_q24[before] = values_q24
    personal = Personal(places, adapter_q24[places])
    if state.before is not None:  # at each start: nothing writes it before it is in use
        residual = personal.shared(state.before.residual)
        state = replace(state, before=replace(state.before, residual=residual))
    if personal:
        _log.info("%d of %d numbers of the adapter stay here", places.sum(), places.size)
    if not np.array_equal(before, places):
        state = _cleared(state, places & ~before, package.model_hash(), store)
        store.put(KEY, personal.stored())
        write_best(store, None)  # it has the personal numbers of then
        store.commit()
    return personal, state


def _cleared(state: NodeState, places: Places, model_hash: bytes, store: NodeStore) -> NodeState:
    """The state without what the residual and an update on its way have at `places`, recorded."""
    state = replace(state, residual=np.where(places, np.float32(0), state.residual))
    store.record(ResidualChanged(state.residual))
    if state.pending is not None:
        pending = _cleared_update(state, state.pending, places, model_hash)
        state = replace(state, pending=pending)
        store.record(UpdateMade(pending))
        if state.received:
            store.record(UpdateReceived(pending.round))
    return state


def _cleared_update(
    state: NodeState, pending: Pending, places: Places, model_hash: bytes
) -> Pending:
    plan = state.plan
    assert plan is not None
    if state.received:
        # All of it has left already. Once it is counted, nothing of `places` is in the residual.
        sent_q24 = update_delta_q24(pending.bodies[1:], model_hash, pending.round, plan)
        corrected = np.where(places, to_vector(sent_q24), pending.corrected)
        return replace(pending, corrected=corrected)
    corrected = np.where(places, np.float32(0), pending.corrected)
    head = read_manifest(pending.bodies[0])
    rest = head.samples, plan
    return make_update(corrected, model_hash, pending.round, *rest, evaluation=head.evaluation)


def _read(data: bytes, dimension: int) -> tuple[Places, ModelQ24]:
    """What `Personal.stored` gave; no places if there is nothing, or it is damaged."""
    size = -(-dimension // 8)
    bits = np.frombuffer(data[:size].ljust(size, b"\0"), np.uint8)
    places = np.unpackbits(bits, count=dimension) > 0
    if len(data) != size + 4 * int(places.sum()):
        return np.zeros(dimension, np.bool_), np.zeros(0, np.int32)
    return places, np.frombuffer(data, "<i4", offset=size).astype(np.int32)
