"""What each node has sent so far, and what can be seen in that without any report.

The updates of different nodes share few coordinates, and so do a node's of consecutive rounds. So
nodes are compared by a memory of each: the exponential mean of its updates, in int8.

- Nodes that send nearly the same are copies of each other.
- A node whose update opposes its own memory has turned: honest training goes on in the direction in
  which it went. Its memory begins anew. It has turned back once that agrees with the former one.
  Where more than a minority turns, what they learn from has changed, and nobody is to blame.
- In the first rounds all honest nodes learn what they have in common, and their memories agree a
  little. Later they only pull to and fro, and a rarer kind of data opposes the others. A node that
  opposes a majority whose members agree in these rounds learns the opposite of what they learn.
"""

import math
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from ternmesh.codec.scale import UNIT
from ternmesh.exact import cosine, inner_products_int8, norm, to_int8
from ternmesh.federated.rules import Weights
from ternmesh.types import Vector

MEMORY_MAX = 200_000_000  # bytes of all nodes' memories; nodes beyond that have none
COMPARED_MAX = 256  # nodes that are compared with each other
COPY = 0.9  # the cosine from which on two nodes' recent updates are the same
COUNT_MAX = 1 << 16  # updates of a node from which on one more changes no mean
KNOWN = 2  # updates of a node before it is compared
TURNED = -0.05  # cosine of an update to the node's memory; of honest ones it was 0.03 to 0.2
FIRST, FEW = 8, 5  # the first rounds; and nodes that are few
# Cosines, in 1 / sqrt(D), which vectors with nothing in common have by accident: below which nodes
# oppose each other (where they are few, too), and from which on a majority agrees
OPPOSED, OPPOSED_FEW, AGREED = 4.0, 7.0, 1.5


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the memories of some nodes have in common."""

    copies: dict[int, int]  # by node, how many nodes send nearly the same, itself too
    opposed: frozenset[int] | None  # nodes that oppose the others; None where that is not known


class Memory:
    """The exponential mean of each node's updates: int8 [D] and a scale a node."""

    def __init__(self, dimension: int, decay: float) -> None:
        self.former: dict[int, Vector] = {}  # the memories of nodes that have turned since
        # Memory and newest update of nodes that have turned in this round
        self._turning: dict[int, tuple[Vector, Vector]] = {}
        self._decay = decay
        self._rows: dict[int, tuple[NDArray[np.int8], float, int]] = {}
        self._new = np.zeros(dimension, np.int8), 0.0, 0

    def add(self, address: int, update: Vector) -> Vector:
        """Take in a node's update; return the mean of its updates, without a bias at the start."""
        self._note_turn(address, update)
        row, scale, count = self._rows.get(address, self._new)
        kept, scale = to_int8(row * np.float32(scale * self._decay) + update)
        if address in self._rows or (len(self._rows) + 1) * kept.size <= MEMORY_MAX:
            self._rows[address] = kept, scale, count + 1
        return kept * np.float32(scale / _weights(self._decay, count + 1))

    def rounds(self, address: int) -> int:
        """How many updates of a node are in its memory."""
        return self._rows.get(address, self._new)[2]

    def total(self, address: int) -> Vector:
        """The sum of a node's updates, each worth less by the decay for each later one."""
        row, scale, _ = self._rows.get(address, self._new)
        return row * np.float32(scale)

    def norm(self, address: int) -> float:
        """The norm of `total`."""
        row, scale, _ = self._rows.get(address, self._new)
        return norm(row.astype(np.float32)) * scale

    def digest(self) -> bytes:
        """A hash of all memories."""
        digest = sha256()
        for address, (row, scale, count) in sorted(self._rows.items()):
            digest.update(struct.pack("<IdI", address, scale, count) + row.tobytes())
        for vectors in (self.former.items(), self._turning.items()):
            digest.update(b"turned")
            for address, found in sorted(vectors, key=itemgetter(0)):
                digest.update(struct.pack("<I", address) + np.array(found, "<f4").tobytes())
        return digest.digest()

    def turned(self, nodes: Sequence[int]) -> frozenset[int]:
        """Which of these nodes, whose updates were added, have turned: a minority at most."""
        turning, self._turning = self._turning, {}
        if len((turning.keys() | self.former.keys()) & set(nodes)) > (len(nodes) - 1) // 2:
            self.former.clear()
            return frozenset()
        for address, (before, update) in turning.items():
            self.former[address] = before
            self._rows[address] = *to_int8(update), 1
        return frozenset(self.former)

    def compare(
        self, nodes: Sequence[int], excluded: Collection[int], *, is_first: bool
    ) -> Comparison:
        """Compare nodes with each other; where they are too many, nothing is found.

        Those that are `excluded` are no part of a majority, and oppose nobody. `is_first`: one of
        the first rounds in which anything was learned.
        """
        if len(nodes) > COMPARED_MAX:
            return Comparison({}, None)
        rows = np.stack([self._rows.get(address, self._new)[0] for address in nodes])
        products = inner_products_int8(rows)
        norms = np.sqrt(np.maximum(1.0, products.diagonal()))
        cosines = products / (norms[:, None] * norms)
        counts = np.maximum(1, (cosines > COPY).sum(axis=1))
        copies = {address: int(count) for address, count in zip(nodes, counts, strict=True)}
        known = [
            at
            for at, address in enumerate(nodes)
            if self.rounds(address) >= KNOWN and address not in excluded
        ]
        if len(known) < 3 or not is_first:
            return Comparison(copies, None)  # what was known of them stays
        unit = 1 / math.sqrt(rows.shape[1])
        limit = (OPPOSED_FEW if len(known) < FEW else OPPOSED) * unit
        # Two honest nodes of three may have nothing in common, with quite different data.
        agreed = (-OPPOSED if len(known) == 3 else AGREED) * unit
        found = opposed(cosines[np.ix_(known, known)], 1 / counts[known], limit, agreed)
        nodes_found = None if found is None else frozenset(nodes[known[at]] for at in found)
        return Comparison(copies, nodes_found)

    def _note_turn(self, address: int, update: Vector) -> None:
        total = self.total(address)
        if address in self.former:
            if cosine(total + update, self.former[address]) > 0:
                del self.former[address]
        elif self.rounds(address) >= KNOWN and cosine(update, total) < TURNED:
            self._turning[address] = total, update


@lru_cache(maxsize=4096)
def _weights(decay: float, count: int) -> float:
    """The sum of the weights of so many updates."""
    weights = 0.0
    for _ in range(min(count, COUNT_MAX)):
        weights = 1.0 + decay * weights
    return weights


def opposed(
    cosines: NDArray[np.float64], weights: Weights, limit: float, agreed: float
) -> list[int] | None:
    """The rows that oppose a majority whose members agree; None without such a majority.

    One after the other, the row that opposes the sum of the others most leaves them, where its
    cosine to that is below -`limit`. Each that is left must then have at least `agreed`.
    `cosines` [n, n] and `weights` [n].
    """
    left = list(range(len(cosines)))
    # Weighted cosines in whole numbers of `UNIT`, and their sums over the rows that are left
    parts = np.rint(cosines * weights * weights[:, None] / UNIT).astype(np.int64)
    sums = parts.sum(axis=1)

    def toward_others(row: int) -> float:
        own = int(parts[row, row]) if row in left else 0
        near = int(sums[row])
        square = int(sums[left].sum()) - (2 * near - own if row in left else 0)
        return (near - own) * UNIT / float(weights[row]) / math.sqrt(max(square, 1) * UNIT)

    for _ in range((len(cosines) - 1) // 2):
        worst = min(left, key=toward_others)
        if toward_others(worst) >= -limit:
            break
        left.remove(worst)
        sums -= parts[:, worst]
    if min(map(toward_others, left)) < agreed:
        return None
    out = [row for row in range(len(cosines)) if row not in left]
    return [row for row in out if toward_others(row) < -limit]
