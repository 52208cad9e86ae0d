"""The host's guard: after updates that spoiled the global adapter, it goes back to an older one.

Each board reports the loss of the global adapter on its own samples. The guard compares a board's
report only with what the same board reported of an older version. Where the median of these rises
is large, the host goes back to the best version that it has kept. It adds what the boards sent
since then once more, without the boards that are doubted by now. If none of these had counted,
nobody is blamed: what was sent since is dropped, and all boards are probed (`reputation`).

A rise that the return does not undo is no fault of a board: the data have changed, and the losses
after the return are the new measure. The guard's memory is that of the process: after a restart it
begins anew.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ternmesh.codec.encoder import scatter
from ternmesh.codec.permutation import order
from ternmesh.federated.reputation import Reputations
from ternmesh.federated.robust import Weighted, clipped, lower_median, mean_of
from ternmesh.plan import Plan
from ternmesh.types import Vector

KEPT_MAX = 16  # rounds
LOSS_MIN = 1.0  # what the loss at the beginning counts at least
BYTES_MAX = 64_000_000  # of all updates that are kept; the oldest rounds are forgotten first
REPORTS_MIN = 2  # boards that have reported both times; of two, the smaller rise counts


@dataclass(frozen=True, slots=True)
class KeptRound:
    """One round: its version, what the boards reported of it, and what they sent."""

    version: int
    losses: Mapping[int, float]  # by address
    residual: Vector  # of the host, before this round
    sent: Weighted
    step: Vector | None  # of a rule that is no mean: it stands for what was sent

    def size(self) -> int:
        """Bytes in memory."""
        step = 0 if self.step is None else self.step.nbytes
        trits = sum(item.vector.trits.nbytes for item in self.sent.updates)
        return self.residual.nbytes + step + trits


@dataclass(frozen=True, slots=True)
class Rollback:
    """The version to go back to, and the residual with which the host goes on there."""

    version: int
    residual: Vector
    rise: float  # of the boards' loss since that version
    excluded: frozenset[int]  # boards whose updates are not added once more; none: nobody's are


class Guard:
    """Keeps the newest rounds. `limit` is in losses at the beginning of the run; 0: it is off.

    `keeps_steps`: the rule is no mean, so its steps are added once more, not the boards' updates.
    """

    def __init__(
        self, plan: Plan, model_hash: bytes, limit: float, *, keeps_steps: bool = False
    ) -> None:
        self._plan = plan
        self._model_hash = model_hash
        self._limit = limit
        self._keeps_steps = keeps_steps
        self._rounds: deque[KeptRound] = deque(maxlen=KEPT_MAX)

    def check(
        self,
        *,
        version: int,
        residual: Vector,
        sent: Weighted,
        step: Vector,
        reputations: Reputations,
        oldest: int = 0,
    ) -> Rollback | None:
        """Keep a round that is to be closed. Return where to go back to, if it is spoiled.

        `step` is what the rule made of the round, `oldest` the oldest version to go back to.
        """
        if not self._limit or not sent.updates:
            return None
        losses = {
            u.address: u.evaluation.loss for u in sent.updates if u.evaluation.loss is not None
        }
        kept_step = step if self._keeps_steps else None
        self._rounds.append(KeptRound(version, losses, residual, sent, kept_step))
        while sum(kept.size() for kept in self._rounds) > BYTES_MAX:
            self._rounds.popleft()
        rises = [(rise(k.losses, losses), k.version) for k in self._rounds if k.version >= oldest]
        highest, best = max(rises, default=(-np.inf, 0))
        if highest <= self._limit * loss_scale(reputations):
            return None
        since = [kept for kept in self._rounds if kept.version >= best]
        counted = {item.address for kept in since for item, weight, _ in kept.sent.rows() if weight}
        excluded = frozenset(address for address in counted if reputations.is_doubted(address))
        residual = since[0].residual
        if excluded:
            residual = sum((self._replayed(kept, excluded) for kept in since), residual)
        return Rollback(best, residual, highest, excluded)

    def reset(self) -> None:
        """Forget all rounds: what comes next does not follow from them."""
        self._rounds.clear()

    def forget(self, address: int, residual: Vector) -> Vector:
        """The host's residual without what a node that is revoked may still have in it.

        The residual does not tell whose it is: each number loses what the node has sent in the
        kept rounds, at most down to zero. These rounds are forgotten.
        """
        own = self._of(self._rounds, address)
        self.reset()
        left: Vector = residual - np.clip(own, np.minimum(residual, 0), np.maximum(residual, 0))
        return left

    def _replayed(self, kept: KeptRound, excluded: frozenset[int]) -> Vector:
        """The weighted mean of a round without some nodes, in the order of the adapter."""
        if kept.step is not None:
            return kept.step
        counts = np.array([item.address not in excluded for item in kept.sent.updates])
        return self._placed(kept, mean_of(replace(kept.sent, weights=kept.sent.weights * counts)))

    def _of(self, rounds: Iterable[KeptRound], address: int) -> Vector:
        """The part of one node in the steps of these rounds."""
        total = np.zeros(self._plan.dimension, np.float32)
        for kept in rounds:
            for item, weight, factor in kept.sent.rows():
                if item.address == address:
                    share = weight / (kept.sent.weights.sum() or 1.0)
                    total += self._placed(kept, clipped(item.vector, float(share * factor)))
        return total

    def _placed(self, kept: KeptRound, vector: Vector) -> Vector:
        return scatter(vector, order(self._model_hash, kept.version, self._plan.dimension))


def rise(before: Mapping[int, float], now: Mapping[int, float]) -> float:
    """The median rise of the loss over the nodes that reported both times; of two, the smaller.

    Minus infinity with fewer than `REPORTS_MIN` of them.
    """
    both = [now[address] - before[address] for address in before.keys() & now.keys()]
    return lower_median(np.array(both)) if len(both) >= REPORTS_MIN else -np.inf


def loss_scale(reputations: Reputations) -> float:
    """The loss at the beginning of the run, by which rises are measured."""
    return max(LOSS_MIN, reputations.first_loss or 0.0)
