"""Drift: a node's recent hypervectors against its own past and against its neighbours'.

One hypervector says nothing: what was sent has left the residual, so those of consecutive rounds
share almost no coordinate. So those of `WINDOW` rounds are bundled in the adapter's order, and the
bundles are compared, packed. A node drifts while either similarity lies below the fleet's median by
`DEVIATIONS` deviations (1.4826 times the median absolute one) and by `MARGIN_MIN`; below
`FLEET_MIN` nodes there is no flag. Only the fleet can say what is low: as a run converges, boards
pull against each other, and the similarities of all fall.

Measured on the keyword model, six boards: healthy ones 0.18 to 0.45 to their past and -0.18 to 0.32
to the others; with labels or mel bands shifted at most 0.05 and -0.26, flagged three rounds later.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ternmesh.hypervector.algebra import PackedMatrix, bind, bundle, pack, votes, weights
from ternmesh.hypervector.permutation import order
from ternmesh.plan import Plan
from ternmesh.swarm.step import read_shares
from ternmesh.wire import share

WINDOW = 4  # rounds in a bundle
PACKETS_MIN = 3  # hypervectors that a bundle is made of
FLEET_MIN = 4
DEVIATIONS = 2.5
MARGIN_MIN = 0.15
NODES_MAX = 256
BYTES_MAX = 32 << 20  # and as much again while it judges


@dataclass(frozen=True, slots=True)
class Drift:
    """What is known of a node: two cosines, and whether either is low. None: not known (yet)."""

    similarity_own: float | None = None
    similarity_others: float | None = None
    drifting: bool | None = None


@dataclass(frozen=True, slots=True)
class Windows:
    """A node's hypervectors of the last rounds, and of the rounds before those."""

    recent: PackedMatrix
    past: PackedMatrix


class DriftWatch:
    """Follows the nodes of a run; `found` has what the last closed round said, by context.

    It keeps two windows and the open round at two bits a trit, of as many nodes as `BYTES_MAX`
    holds and at most `NODES_MAX`; others are let go by. One that is gone for two windows makes
    room.
    """

    def __init__(self, plan: Plan, model_hash: bytes) -> None:
        self.found: dict[int, Drift] = {}
        self._plan = plan
        self._model_hash = model_hash
        self._bodies: dict[int, list[bytes]] = {}
        self._kept: dict[int, deque[tuple[int, PackedMatrix]]] = {}

    def accept(self, context: int, body: bytes) -> None:
        """Take a body of the open round, as the coordinator has accepted it."""
        if body[0] == share.KIND and (context in self._kept or len(self._kept) < self._room):
            self._kept.setdefault(context, deque(maxlen=2 * WINDOW))
            self._bodies.setdefault(context, []).append(body)

    def forget(self, context: int) -> None:
        """Let go of a packet that the coordinator has forgotten."""
        self._bodies.pop(context, None)

    def close(self, round_number: int, counted: Iterable[int]) -> None:
        """End a round that counted the packets of these contexts, and judge."""
        places = order(self._model_hash, round_number, self._plan.dimension)
        for context in counted:
            if context in self._bodies:
                self._kept[context].append((round_number, self._hypervector(context, places)))
        self._bodies.clear()
        windows = {c: self._windows(kept, round_number) for c, kept in self._kept.items()}
        for context, kept in list(self._kept.items()):
            if not kept or kept[-1][0] <= round_number - 2 * WINDOW:
                del self._kept[context], windows[context]
        self.found = judge(windows)

    @property
    def _room(self) -> int:
        per_node = (2 * WINDOW + 1) * -(-self._plan.dimension // 4)
        return min(NODES_MAX, BYTES_MAX // per_node)

    def _hypervector(self, context: int, places: NDArray[np.int64]) -> PackedMatrix:
        shares = map(share.read_share, self._bodies[context])
        trits = np.empty((1, self._plan.dimension), dtype=np.int8)
        trits[0, places] = read_shares(shares, self._plan.up).trits
        return pack(trits)

    def _windows(self, kept: Iterable[tuple[int, PackedMatrix]], round_number: int) -> Windows:
        ages = [(round_number - number, row) for number, row in kept]
        recent = [row for age, row in ages if age < WINDOW]
        past = [row for age, row in ages if WINDOW <= age < 2 * WINDOW]
        return Windows(*(_stack(rows, self._plan.dimension) for rows in (recent, past)))


def judge(windows: Mapping[int, Windows]) -> dict[int, Drift]:
    """What the windows of all nodes say of each."""
    known = {c: w for c, w in windows.items() if len(w.recent) >= PACKETS_MIN}
    pairs = {c: (w.recent, w.past) for c, w in known.items() if len(w.past) >= PACKETS_MIN}
    own = {c: _cosine(bundle(recent), bundle(past)) for c, (recent, past) in pairs.items()}
    others = _to_others({context: w.recent for context, w in known.items()})
    is_low: dict[int, bool] = {}
    for similarities in (own, others):
        for context, low in low_ones(similarities).items():
            is_low[context] = low or is_low.get(context, False)
    return {c: Drift(own.get(c), others.get(c), is_low.get(c)) for c in known}


def low_ones(values: Mapping[int, float]) -> dict[int, bool]:
    """Which of a fleet's values are low against its median; empty for too small a fleet."""
    if len(values) < FLEET_MIN:
        return {}
    median = np.median(list(values.values()))
    deviation = np.median(np.abs(np.array(list(values.values())) - median))
    limit = median - max(MARGIN_MIN, DEVIATIONS * 1.4826 * deviation)
    return {context: bool(value < limit) for context, value in values.items()}


def _to_others(recent: Mapping[int, PackedMatrix]) -> dict[int, float]:
    """The similarity of each node's bundle to that of all the others together."""
    if len(recent) < 2:
        return {}
    total = sum(map(votes, recent.values()), start=np.int32(0))
    return {c: _cosine(bundle(rows), _majority(total - votes(rows))) for c, rows in recent.items()}


def _majority(sums: NDArray[np.int32]) -> PackedMatrix:
    return pack(np.sign(sums).astype(np.int8)[None])


def _cosine(a: PackedMatrix, b: PackedMatrix) -> float:
    """The similarity of two vectors; for a single pair 100 times faster than the matrix of all."""
    product = bind(a, b)
    inner = weights(product)[0] - 2 * np.bitwise_count(product.negative).sum(dtype=np.int64)
    return float(inner / np.sqrt(max(1, weights(a)[0] * weights(b)[0])))


def _stack(rows: list[PackedMatrix], dimension: int) -> PackedMatrix:
    empty = np.empty((0, -(-dimension // 8)), dtype=np.uint8)
    nonzero = np.concatenate([empty, *(row.nonzero for row in rows)])
    negative = np.concatenate([empty, *(row.negative for row in rows)])
    return PackedMatrix(dimension, nonzero, negative)
