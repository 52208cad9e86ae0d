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
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ternmesh.codec.scale import UNIT
from ternmesh.federated.rules import Weights, inner_products
from ternmesh.types import Vector

MEMORY_MAX = 200_000_000  # bytes of all nodes' memories; nodes beyond that have none
COMPARED_MAX = 256  # nodes that are compared with each other
COPY = 0.9  # the cosine from which on two nodes' recent updates are the same
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
        total = row * np.float32(scale * self._decay) + update
        if address in self._rows or (len(self._rows) + 1) * total.size <= MEMORY_MAX:
            self._keep(address, total, count + 1)
        weights = (1 - self._decay ** (count + 1)) / (1 - self._decay)  # the sum of all so far
        mean: Vector = total / np.float32(weights)
        return mean

    def rounds(self, address: int) -> int:
        """How many updates of a node are in its memory."""
        return self._rows.get(address, self._new)[2]

    def total(self, address: int) -> Vector:
        """The sum of a node's updates, each worth less by the decay for each later one."""
        row, scale, _ = self._rows.get(address, self._new)
        return row * np.float32(scale)

    def turned(self, nodes: Sequence[int]) -> frozenset[int]:
        """Which of these nodes, whose updates were added, have turned: a minority at most."""
        turning, self._turning = self._turning, {}
        if len((turning.keys() | self.former.keys()) & set(nodes)) > (len(nodes) - 1) // 2:
            self.former.clear()
            return frozenset()
        for address, (before, update) in turning.items():
            self.former[address] = before
            self._keep(address, update, 1)
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
        totals = np.stack([self.total(address) for address in nodes])
        totals /= np.maximum(UNIT, np.linalg.norm(totals, axis=1, keepdims=True))
        cosines = inner_products(totals)
        counts = np.maximum(1, (cosines > COPY).sum(axis=1))
        copies = {address: int(count) for address, count in zip(nodes, counts, strict=True)}
        known = [
            at
            for at, address in enumerate(nodes)
            if self.rounds(address) >= KNOWN and address not in excluded
        ]
        if len(known) < 3 or not is_first:
            return Comparison(copies, None)  # what was known of them stays
        unit = 1 / math.sqrt(totals.shape[1])
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

    def _keep(self, address: int, total: Vector, count: int) -> None:
        scale = float(np.abs(total).max()) / 127 or 1.0
        self._rows[address] = np.rint(total / np.float32(scale)).astype(np.int8), scale, count


def opposed(
    cosines: NDArray[np.float64], weights: Weights, limit: float, agreed: float
) -> list[int] | None:
    """The rows that oppose a majority whose members agree; None without such a majority.

    One after the other, the row that opposes the sum of the others most leaves them, where its
    cosine to that is below -`limit`. Each that is left must then have at least `agreed`.
    `cosines` [n, n] and `weights` [n].
    """
    left = list(range(len(cosines)))

    def toward_others(row: int) -> float:
        others = [other for other in left if other != row]
        part = weights[others]
        square = float(part @ cosines[np.ix_(others, others)] @ part)
        return float(cosines[row, others] @ part) / math.sqrt(max(square, UNIT))

    for _ in range((len(cosines) - 1) // 2):
        worst = min(left, key=toward_others)
        if toward_others(worst) >= -limit:
            break
        left.remove(worst)
    if min(map(toward_others, left)) < agreed:
        return None
    out = [row for row in range(len(cosines)) if row not in left]
    return [row for row in out if toward_others(row) < -limit]


def cosine(a: Vector, b: Vector) -> float:
    """The similarity of two vectors, their cosine; 0 where one is zero."""
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return float(np.dot(a, b)) / norms if norms else 0.0
