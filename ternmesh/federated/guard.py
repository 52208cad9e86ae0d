"""The host's guard: after updates that spoiled the global adapter, it goes back to an older one.

Each board reports the loss of the global adapter on its own samples. The guard compares a board's
report only with what the same board reported of an older version. Where the median of these rises
is large, the host goes back to the best version that it has kept. It adds what the boards sent
since then once more, without the boards that are doubted by now. If none of these had counted,
nobody is blamed: what was sent since is dropped, and all boards are probed (`reputation`).

A rise that the return does not undo is no fault of a board: the data have changed, and the losses
after the return are the new measure.

A round is kept as the chunks that were received, in memory and on disk alike.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

import cbor2
import numpy as np

from ternmesh.codec.encoder import Hypervector, scatter
from ternmesh.codec.permutation import order
from ternmesh.errors import WireError
from ternmesh.federated.aggregation import read_chunks
from ternmesh.federated.reputation import Reputations
from ternmesh.federated.robust import Update, Weighted, clipped, lower_median, mean_of
from ternmesh.plan import Plan
from ternmesh.types import Vector
from ternmesh.wire.control import read_plain
from ternmesh.wire.update import read_chunk

KEPT_MAX = 16  # rounds
LOSS_MIN = 1.0  # what the loss at the beginning counts at least
BYTES_MAX = 64_000_000  # of all updates that are kept; the oldest rounds are forgotten first
REPORTS_MIN = 2  # boards that have reported both times; of two, the smaller rise counts


@dataclass(frozen=True, slots=True)
class KeptUpdate:
    """What one node, or one gateway, has added to a round."""

    address: int
    loss: float | None  # of the global adapter before, as reported
    weight: float
    factor: float  # that clips it
    bodies: tuple[bytes, ...]  # of its chunks


@dataclass(frozen=True, slots=True)
class KeptRound:
    """One round: its version, and what was sent."""

    version: int
    residual: bytes  # of the host, before this round: float32 [D]
    updates: tuple[KeptUpdate, ...]
    step: bytes  # of a rule that is no mean: it stands for what was sent

    @property
    def losses(self) -> Mapping[int, float]:
        """What the nodes reported, by address."""
        return {item.address: item.loss for item in self.updates if item.loss is not None}

    def size(self) -> int:
        """Bytes in memory."""
        return len(self.residual) + len(self.step) + sum(map(_size, self.updates))

    def stored(self, oldest: int) -> bytes:
        """Return what must be on disk; `oldest` is the version from which rounds are kept."""
        rows = [[u.address, u.loss, u.weight, u.factor, u.bodies] for u in self.updates]
        return cbor2.dumps([oldest, self.version, self.residual, self.step, rows])


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
        self._digests: dict[int, bytes] = {}  # by version

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
        rows = tuple(
            KeptUpdate(u.address, u.evaluation.loss, float(weight), float(factor), u.bodies)
            for u, weight, factor in sent.rows()
        )
        kept_step = _written(step) if self._keeps_steps else b""
        newest = KeptRound(version, _written(residual), rows, kept_step)
        self._rounds.append(newest)
        self._trim()
        losses = newest.losses
        rises = [
            (rise(kept.losses, losses), kept.version)
            for kept in self._rounds
            if kept.version >= oldest
        ]
        highest, best = max(rises, default=(-np.inf, 0))
        if highest <= self._limit * max(LOSS_MIN, reputations.first_loss or 0.0):
            return None
        since = [kept for kept in self._rounds if kept.version >= best]
        counted = {item.address for kept in since for item in kept.updates if item.weight}
        excluded = frozenset(address for address in counted if reputations.is_doubted(address))
        residual = _read(since[0].residual)
        if excluded:
            residual = sum((self._replayed(kept, excluded) for kept in since), residual)
        return Rollback(best, residual, highest, excluded)

    def stored(self, version: int) -> bytes:
        """Return what must be on disk of the round of `version`; nothing where the guard is off."""
        if not self._limit:
            return b""
        last = self._rounds[-1] if self._rounds else None
        if last is None or last.version != version:
            last = KeptRound(version, b"", (), b"")
        return last.stored(self._rounds[0].version if self._rounds else version + 1)

    def digest(self) -> bytes:
        """A hash of the kept rounds; each round is hashed once."""
        self._digests = {
            kept.version: self._digests.get(kept.version) or sha256(kept.stored(0)).digest()
            for kept in self._rounds
        }
        return b"".join(self._digests.values())

    def load(self, stored: Iterable[bytes]) -> Iterator[tuple[int, Weighted]]:
        """Take up what `stored` has returned; yield version and updates of each round that counts.

        One round after the other is decoded: all together are many times as large as their chunks.
        Damaged rounds begin anew.
        """
        try:
            found = sorted((_read_round(data) for data in stored), key=lambda kept: kept[1].version)
            oldest = found[-1][0] if found else 0
            known = [kept for _, kept in found if kept.version >= oldest and kept.updates]
            if any(len(kept.residual) != 4 * self._plan.dimension for kept in known):
                raise ValueError("a residual of another length")
        except (ValueError, TypeError, cbor2.CBORDecodeError):
            return
        if self._limit:
            self._rounds.extend(known)
            self._trim()
        try:
            yield from ((kept.version, self._sent(kept)) for kept in known)
        except WireError:
            self.reset()

    def reset(self) -> None:
        """Forget all rounds: what comes next does not follow from them."""
        self._rounds.clear()
        self._digests.clear()

    def forget(self, address: int, residual: Vector) -> Vector:
        """The host's residual without what a node that is revoked may still have in it.

        The residual does not tell whose it is: each number loses what the node has sent in the
        kept rounds, at most down to zero. These rounds are forgotten.
        """
        own = self._of(self._rounds, address)
        if not own.any():  # it was revoked long ago, and the host has started again
            return residual
        self.reset()
        return residual - np.clip(own, np.minimum(residual, 0), np.maximum(residual, 0))

    def _replayed(self, kept: KeptRound, excluded: frozenset[int]) -> Vector:
        """The weighted mean of a round without some nodes, in the order of the adapter."""
        if kept.step:
            return _read(kept.step)
        sent = self._sent(kept)
        counts = np.array([item.address not in excluded for item in kept.updates])
        return self._placed(kept, mean_of(replace(sent, weights=sent.weights * counts)))

    def _of(self, rounds: Iterable[KeptRound], address: int) -> Vector:
        """The part of one node in the steps of these rounds."""
        total = np.zeros(self._plan.dimension, np.float32)
        for kept in rounds:
            whole = sum(item.weight for item in kept.updates) or 1.0
            for item in kept.updates:
                if item.address == address:
                    part = clipped(self._vector(item), item.weight / whole * item.factor)
                    total += self._placed(kept, part)
        return total

    def _sent(self, kept: KeptRound) -> Weighted:
        """What was sent in a round; samples are not kept."""
        return Weighted(
            [Update(item.address, 0, self._vector(item)) for item in kept.updates],
            np.array([item.weight for item in kept.updates]),
            np.array([item.factor for item in kept.updates]),
        )

    def _vector(self, item: KeptUpdate) -> Hypervector:
        return read_chunks(map(read_chunk, item.bodies), self._plan.up)

    def _trim(self) -> None:
        while sum(kept.size() for kept in self._rounds) > BYTES_MAX:
            self._rounds.popleft()

    def _placed(self, kept: KeptRound, vector: Vector) -> Vector:
        return scatter(vector, order(self._model_hash, kept.version, self._plan.dimension))


def rise(before: Mapping[int, float], now: Mapping[int, float]) -> float:
    """The median rise of the loss over the nodes that reported both times; of two, the smaller.

    Minus infinity with fewer than `REPORTS_MIN` of them.
    """
    both = [now[address] - before[address] for address in before.keys() & now.keys()]
    return lower_median(np.array(both)) if len(both) >= REPORTS_MIN else -np.inf


def _size(item: KeptUpdate) -> int:
    return sum(map(len, item.bodies))


def _written(vector: Vector) -> bytes:
    return vector.astype("<f4").tobytes()


def _read(data: bytes) -> Vector:
    return np.frombuffer(data, "<f4").astype(np.float32)


def newest_rounds(stored: Iterable[bytes]) -> list[bytes]:
    """The newest `KEPT_MAX` of stored rounds, in their order; of one version, the last given."""
    by_version = {_read_round(data)[1].version: data for data in stored}
    return [by_version[version] for version in sorted(by_version)[-KEPT_MAX:]]


def _read_round(data: bytes) -> tuple[int, KeptRound]:
    """The oldest version that counts, and the round; ValueError or TypeError."""
    oldest, version, residual, step, rows = read_plain(data)
    updates = tuple(
        KeptUpdate(address, loss, weight, factor, tuple(bodies))
        for address, loss, weight, factor, bodies in rows
    )
    return int(oldest), KeptRound(int(version), residual, updates, step)
