"""Drift detection: a node's recent hypervectors compared with its past and with other nodes'.

A single hypervector is not enough: values that were sent leave the residual, so hypervectors of
consecutive rounds share almost no coordinates. The hypervectors of `WINDOW` rounds are therefore
bundled in the adapter's order, and the packed bundles are compared. A node drifts while one of its
two similarities is below the fleet's median by `DEVIATIONS` deviations (1.4826 times the median
absolute deviation) and by `MARGIN_MIN`. With less than `FLEET_MIN` nodes there is no flag. A fixed
limit would not work: as a run converges, the similarities of all nodes fall.

Measured on the keyword model with six boards: healthy boards have 0.18 to 0.45 to their past and
-0.18 to 0.32 to the others; boards with shifted labels or mel bands have at most 0.05 and -0.26,
and are flagged after three rounds.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ternmesh.codec.algebra import PackedMatrix, bind, bundle, pack, votes, weights
from ternmesh.codec.permutation import order
from ternmesh.federated.aggregation import read_chunks
from ternmesh.plan import Plan
from ternmesh.wire.update import CHUNK_KIND, read_chunk

WINDOW = 4  # rounds in a bundle
UPDATES_MIN = 3  # hypervectors in a bundle
FLEET_MIN = 4  # nodes
DEVIATIONS = 2.5
MARGIN_MIN = 0.15
NODES_MAX = 256
BYTES_MAX = 32 << 20  # memory of the windows; `judge` needs twice that


@dataclass(frozen=True, slots=True)
class Drift:
    """The result for one node. A field is None while its value is unknown."""

    similarity_own: float | None = None  # cosine to the node's own past
    similarity_others: float | None = None  # cosine to the sum of the other nodes
    drifting: bool | None = None  # whether one of the similarities is low
    empty: bool = False  # its update in the last round held zeros alone


@dataclass(frozen=True, slots=True)
class Windows:
    """A node's hypervectors of two consecutive windows."""

    recent: PackedMatrix
    past: PackedMatrix


class DriftWatch:
    """Compares the hypervectors of the nodes of a run, round by round.

    The watch stores two windows and the open round, two bits per trit, for as many nodes as fit in
    `BYTES_MAX`, at most `NODES_MAX`, and ignores the other nodes. A node that has sent nothing for
    two windows is dropped.
    """

    def __init__(self, plan: Plan, model_hash: bytes) -> None:
        self.found: dict[int, Drift] = {}  # the result of the last closed round, by address
        self._plan = plan
        self._model_hash = model_hash
        self._bodies: dict[int, list[bytes]] = {}  # of the open round
        self._kept: dict[int, deque[tuple[int, PackedMatrix]]] = {}  # with their rounds

    def accept(self, address: int, body: bytes) -> None:
        """Store a body of the open round that the coordinator has accepted."""
        if body[0] == CHUNK_KIND and (address in self._kept or len(self._kept) < self._room):
            self._kept.setdefault(address, deque(maxlen=2 * WINDOW))
            self._bodies.setdefault(address, []).append(body)

    def forget(self, address: int) -> None:
        """Drop an update that the coordinator has dropped."""
        self._bodies.pop(address, None)

    def close(self, round_number: int, counted: Iterable[int]) -> None:
        """End a round that counted the updates of these addresses, and compare all nodes."""
        places = order(self._model_hash, round_number, self._plan.dimension)
        empty = []
        for address in counted:
            if address in self._bodies:
                row = self._hypervector(address, places)
                self._kept[address].append((round_number, row))
                empty += [] if row.nonzero.any() else [address]
        self._bodies.clear()
        windows = {c: self._windows(kept, round_number) for c, kept in self._kept.items()}
        for address, kept in list(self._kept.items()):
            if not kept or kept[-1][0] <= round_number - 2 * WINDOW:
                del self._kept[address], windows[address]
        self.found = judge(windows)
        for address in empty:
            self.found[address] = replace(self.found.get(address, Drift()), empty=True)

    @property
    def _room(self) -> int:
        per_node = (2 * WINDOW + 1) * -(-self._plan.dimension // 4)
        return min(NODES_MAX, BYTES_MAX // per_node)

    def _hypervector(self, address: int, places: NDArray[np.int64]) -> PackedMatrix:
        chunks = map(read_chunk, self._bodies[address])
        trits = np.empty((1, self._plan.dimension), dtype=np.int8)
        trits[0, places] = read_chunks(chunks, self._plan.up).trits
        return pack(trits)

    def _windows(self, kept: Iterable[tuple[int, PackedMatrix]], round_number: int) -> Windows:
        ages = [(round_number - number, row) for number, row in kept]
        recent = [row for age, row in ages if age < WINDOW]
        past = [row for age, row in ages if WINDOW <= age < 2 * WINDOW]
        return Windows(*(_stack(rows, self._plan.dimension) for rows in (recent, past)))


def judge(windows: Mapping[int, Windows]) -> dict[int, Drift]:
    """Return the result for each node, from the windows of all nodes."""
    known = {node: item for node, item in windows.items() if len(item.recent) >= UPDATES_MIN}
    own = {
        node: _cosine(bundle(item.recent), bundle(item.past))
        for node, item in known.items()
        if len(item.past) >= UPDATES_MIN
    }
    others = _to_others({node: item.recent for node, item in known.items()})
    is_low: dict[int, bool] = {}
    for similarities in (own, others):
        for address, low in low_ones(similarities).items():
            is_low[address] = low or is_low.get(address, False)
    return {node: Drift(own.get(node), others.get(node), is_low.get(node)) for node in known}


def low_ones(values: Mapping[int, float]) -> dict[int, bool]:
    """Return which values are low compared with the median; empty for too small a fleet."""
    if len(values) < FLEET_MIN:
        return {}
    median = np.median(list(values.values()))
    deviation = np.median(np.abs(np.array(list(values.values())) - median))
    limit = median - max(MARGIN_MIN, DEVIATIONS * 1.4826 * deviation)
    return {address: bool(value < limit) for address, value in values.items()}


def _to_others(recent: Mapping[int, PackedMatrix]) -> dict[int, float]:
    """Return the similarity of each node's bundle to the bundle of all other nodes."""
    if len(recent) < 2:
        return {}
    total = sum(map(votes, recent.values()), start=np.int32(0))
    others = {c: np.sign(total - votes(rows)).astype(np.int8) for c, rows in recent.items()}
    return {c: _cosine(bundle(rows), pack(others[c][None])) for c, rows in recent.items()}


def _cosine(a: PackedMatrix, b: PackedMatrix) -> float:
    """Return the cosine of one pair, for which `algebra.inner_products` is 100 times slower."""
    product = bind(a, b)
    inner = weights(product)[0] - 2 * np.bitwise_count(product.negative).sum(dtype=np.int64)
    return float(inner / np.sqrt(max(1, weights(a)[0] * weights(b)[0])))


def _stack(rows: list[PackedMatrix], dimension: int) -> PackedMatrix:
    empty = np.empty((0, -(-dimension // 8)), dtype=np.uint8)
    nonzero = np.concatenate([empty, *(row.nonzero for row in rows)])
    negative = np.concatenate([empty, *(row.negative for row in rows)])
    return PackedMatrix(dimension, nonzero, negative)
