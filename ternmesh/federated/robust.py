"""Robust aggregation on the host: what a member of the fleet can do to a round is bounded.

Before any rule: the declared sample count of a node is capped at the fleet's median, or at twice
the median once the node is proven; and the norm of its update at what this round's other updates
and the rounds before make plausible. After it: no round moves the global adapter further than a
multiple of the recent steps.

A node's weight is also multiplied by its reputation (`reputation`).

A host with samples of its own trains on them, too. Its update is no longer than the usual one, and
is a quarter of the step: it pulls back whatever the nodes do. It then sends no probes: where nodes
have different data, these exclude honest nodes, and who lies in reports gains by them.

Rules that compare updates get the memory of each node (`memory`). Probes are made of it, too.

Where a rule cannot be used, the weighted mean takes its place for the round, and `remark` says why.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import cbor2
import numpy as np
from numpy.typing import NDArray

from ternmesh.codec.encoder import Hypervector, scatter
from ternmesh.codec.permutation import order
from ternmesh.codec.scale import UNIT, to_vector
from ternmesh.errors import RuleError
from ternmesh.exact import cosine, norm
from ternmesh.federated.aggregation import encode_update, scattered
from ternmesh.federated.evaluation import NOT_EVALUATED, Evaluation
from ternmesh.federated.memory import FIRST, Memory
from ternmesh.federated.reputation import PROBE_FIRST, REPORTS_MIN, Reputations, restored
from ternmesh.federated.rules import AggregationSettings, Context, Weights, check_count
from ternmesh.generator import derive_key, words
from ternmesh.plan import Plan
from ternmesh.types import Places, Vector
from ternmesh.wire.control import read_plain

SAMPLES_RATIO = 2.0  # the largest weight of a node, in medians; 1 until it is proven
NORM_RATIO = 1.1  # the largest norm of an update, in medians of the round
ADAM_RATIO = (
    1.0  # the largest norm ever, of what Adam changes: each number by the rate, in each step
)
FIRST_NORM = 0.5  # the usual norm before any round, of what Adam can change; it was 0.3
HISTORY_RATIO = 4.0  # ... and in medians of the rounds before
STEP_RATIO = 4.0  # the longest step, in medians of the rounds before
HISTORY = 16  # rounds
ROWS_MAX = 256  # updates that a rule compares; more of them are averaged in groups at random
MEANS = ("mean", "weighted_mean")
INSTEAD = "the weighted mean is taken"


@dataclass(frozen=True, slots=True)
class Update:
    """What one node, or one gateway, adds to a round."""

    address: int  # of the node, or of the first contributor
    samples: int  # as declared
    vector: Hypervector
    members: int = 1  # how many nodes it stands for
    evaluation: Evaluation = NOT_EVALUATED  # of the global adapter before
    bodies: tuple[bytes, ...] = ()  # of the chunks that came


@dataclass(frozen=True, slots=True)
class Influence:
    """How an update counted in its round."""

    share: float  # of the round's weight
    norm: float  # of the update, as sent
    clipped: float  # the factor by which it was made shorter; 1 if it was not


@dataclass(frozen=True, slots=True)
class Weighted:
    """The updates of a round, their weights, and the factors that clip them."""

    updates: Sequence[Update] = ()
    weights: Weights = field(default_factory=lambda: np.zeros(0))
    factors: Weights = field(default_factory=lambda: np.zeros(0))

    def rows(self) -> Iterator[tuple[Update, float, float]]:
        """Update, weight and factor of each node."""
        yield from zip(self.updates, self.weights, self.factors, strict=True)


class RobustAggregation:
    """Makes a step of each round's updates, and keeps what bounds the next rounds.

    `stored` are the bytes that `stored()` has returned before.
    """

    def __init__(
        self,
        plan: Plan,
        model_hash: bytes,
        settings: AggregationSettings,
        run: bytes,
        stored: bytes = b"",
    ) -> None:
        self.influence: dict[int, Influence] = {}  # of the newest round, by address
        self.sent = Weighted()  # in the newest round
        self.remark = ""  # what failed in the newest round
        self.reputations, norms, steps, probe = _restored(stored)
        self._plan = plan
        self._model_hash = model_hash
        self._settings = settings
        self._run = run
        self._norm_max = norm_max(plan)
        self._memory = Memory(plan.dimension, settings.memory) if settings.memory else None
        self.has_probes = bool(settings.memory) and settings.probes
        if not self.has_probes:
            self.reputations.forget_probes()
        self._norms: deque[float] = deque(norms, maxlen=HISTORY)
        self._steps: deque[float] = deque(steps, maxlen=HISTORY)
        self.before: Vector | None = None  # the newest step
        self._probe = probe  # its version, and the address of the node

    def combine(
        self,
        updates: Sequence[Update],
        round_number: int,
        silent: Iterable[int] = (),
        adapter: Vector | None = None,
    ) -> Vector:
        """Return the step of a round (float32 [D]); zeros if nobody sent an update.

        `adapter` (float32 [D]) is the global one: a run may begin with what another has learned.
        """
        self.remark = ""
        self.influence = {}
        self.sent = Weighted()
        if not self.reputations.standings:
            self.reputations.is_carried = adapter is not None and bool(adapter.any())
        updates = sorted(updates, key=lambda item: (item.address, item.members))
        self._read_reports(updates, round_number)
        if not updates:
            self.before = None
            return np.zeros(self._plan.dimension, np.float32)
        # Without reputations all may weigh more than the median.
        may_all = self._memory is None
        proven = [may_all or self.reputations.is_proven(item.address) for item in updates]
        weights, norms, factors = bound(updates, list(self._norms), proven, self._norm_max)
        if self._settings.name == "mean":
            weights = np.array([float(item.members) for item in updates])
        weights = weights / [math.sqrt(1 + item.evaluation.staleness) for item in updates]
        if self._memory is not None:
            trust = np.array([self.reputations.weight(item.address) for item in updates])
            # What had to be cut also weighs less: its direction is as doubtful as its length.
            weights = weights * trust * factors
        self._norms.append(_stored(lower_median(norms)))
        for item, share, length, factor in zip(
            updates, weights / (math.fsum(weights) or 1.0), norms, factors, strict=True
        ):
            self.influence[item.address] = Influence(float(share), float(length), float(factor))
        self.sent = Weighted(updates, weights, factors)
        mean = mean_of(self.sent)
        places = order(self._model_hash, round_number, self._plan.dimension)
        rows = self._rows(updates, factors, mean, places)
        step = scatter(mean, places)
        if self._settings.name not in MEANS:
            step = self._by_rule(rows, weights, step, round_number)
        elif self._memory is not None:
            deque(rows, maxlen=0)  # they are remembered; the mean needs no matrix of all updates
        self._note_round([item.address for item in updates], silent, round_number + 1)
        return self._limit_step(self._with_momentum(step))

    def probe(self, version: int, seed: bytes) -> tuple[bytes, ...]:
        """The chunks of the probe for the global update to `version`; empty if none is due.

        `seed` is the hash of the newest certified global update, which nobody knew before.

        It is as long as the usual memory of a node: at half of that the effect of wrong labels is
        hardly seen (six boards, 16 rounds: 0.25 in place of 1).
        """
        if self._memory is None or not self.has_probes:
            return ()
        known = [
            address
            for address in self.influence
            if self._memory.rounds(address)
            >= (1 if address in self.reputations.asked else PROBE_FIRST)
        ]
        due = self.reputations.due(known, version, seed)
        if due is None:
            return ()
        self._probe = version, due
        lengths = [self._memory.norm(address) for address in self.influence]
        vector = self._memory.total(due)
        _, carried = encode_update(vector, self._model_hash, version, self._plan)
        sent = to_vector(scattered(carried, self._model_hash, version))
        usual = lower_median(np.array(lengths))
        factor = usual / max(UNIT, norm(sent))
        usual_vector = vector * np.float32(factor)
        return encode_update(usual_vector, self._model_hash, version, self._plan)[0]

    def remember(self, version: int, sent: Weighted) -> None:
        """Add the updates of an earlier round to the memories, after a restart."""
        if self._memory is not None:
            places = order(self._model_hash, version, self._plan.dimension)
            deque(self._rows(sent.updates, sent.factors, mean_of(sent), places), maxlen=0)
            self._memory.turned([item.address for item in sent.updates])

    def stored(self) -> bytes:
        """What must be on disk, with norms in whole units of 2**-24."""
        norms, steps = ([round(norm / UNIT) for norm in of] for of in (self._norms, self._steps))
        return cbor2.dumps([self.reputations.stored(), norms, steps, self._probe])

    def digest(self) -> bytes:
        """A hash of all that the next round depends on."""
        newest = self.before if self._settings.momentum else None
        parts = (
            self.stored(),
            self.reputations.digest(),
            b"" if self._memory is None else self._memory.digest(),
            b"" if newest is None else newest.astype("<f4").tobytes(),
        )
        return sha256(b"".join(sha256(part).digest() for part in parts)).digest()

    def _read_reports(self, updates: Sequence[Update], version: int) -> None:
        reports = [item.evaluation for item in updates]
        losses = sorted(item.loss for item in reports if item.loss is not None)
        if self.reputations.first_loss is None and len(losses) >= REPORTS_MIN:
            # Of the first version alone: after it a loss may be of an adapter that was spoiled.
            self.reputations.first_loss = losses[len(losses) // 4] if version == 0 else 0.0
        if self._probe is not None and self._probe[0] == version:
            rises = {
                item.address: item.evaluation.probe
                for item in updates
                if item.evaluation.probe is not None
            }
            self.reputations.probed(self._probe[1], version, rises)
            self._probe = None

    def _note_round(self, counted: Sequence[int], silent: Iterable[int], version: int) -> None:
        """Compare each node's memory with the sum of the others', and tell the reputations."""
        cosines = dict.fromkeys(counted, 0.0)
        turned: Collection[int] = ()
        opposed: Collection[int] | None = None
        if self._memory is not None and len(counted) > 2:
            weights = {a: np.float32(self.reputations.weight(a)) for a in counted}
            whole = np.zeros(self._plan.dimension, np.float32)
            for address, weight in weights.items():
                whole += weight * self._memory.total(address)
            for address, weight in weights.items():
                own = self._memory.total(address)
                cosines[address] = cosine(own, whole - weight * own)
                if not self._memory.rounds(address):  # there was no room for one
                    cosines[address] = self.reputations.usual_agreement
            excluded = {address for address in counted if self.reputations.is_excluded(address)}
            is_first = version <= FIRST and not self.reputations.is_carried
            found = self._memory.compare(counted, excluded, is_first=is_first)
            self.reputations.copies, opposed = found.copies, found.opposed
            turned = self._memory.turned(counted)
        self.reputations.counted(cosines, silent, version, turned=turned, opposed=opposed)

    def _rows(
        self, updates: Sequence[Update], factors: Weights, mean: Vector, places: Places
    ) -> Iterator[Vector]:
        """What a rule compares of each node: its memory, or without one its update."""
        for item, factor in zip(updates, factors, strict=True):
            own = clipped(item.vector, factor)
            if not item.vector.present.all():
                own = np.where(item.vector.slicing.spread(item.vector.present), own, mean)
            row = scatter(own, places)
            yield row if self._memory is None else self._memory.add(item.address, row)

    def _by_rule(
        self, rows: Iterable[Vector], weights: Weights, mean: Vector, round_number: int
    ) -> Vector:
        """The step by the rule, without excluded nodes; the weighted mean where the rule fails."""
        groups = self._groups(np.flatnonzero(weights).size, round_number)
        sums = np.bincount(groups, weights[weights > 0]).astype(np.float64)
        grouped = np.zeros((sums.size, mean.size), np.float32)
        numbers = iter(groups)
        for row, weight in zip(rows, weights, strict=True):
            if weight:
                group = next(numbers)
                grouped[group] += np.float32(weight / sums[group]) * row
        settings = self._settings
        context = Context(settings.byzantine, self.before)
        try:
            check_count(settings.name, len(grouped), settings.byzantine)
            return _checked(settings.rule(grouped, sums, context), mean.size)
        except RuleError as error:
            self.remark = f"{error}: {INSTEAD}"
        except Exception as error:  # noqa: BLE001  (a rule may be the owner's own code)
            self.remark = f"{settings.name} failed: {type(error).__name__}: {error}: {INSTEAD}"
        return mean

    def _groups(self, count: int, round_number: int) -> NDArray[np.int64]:
        """The group of each update: one of its own, or one of `ROWS_MAX` at random."""
        if count <= ROWS_MAX:
            return np.arange(count, dtype=np.int64)
        key = derive_key("groups", self._run, round_number.to_bytes(4, "little"))
        return np.argsort(words(key, count), kind="stable") % ROWS_MAX

    def _limit_step(self, step: Vector) -> Vector:
        length = norm(step)
        if self._steps:
            limit = STEP_RATIO * float(np.median(self._steps))
            if length > limit:
                step = step * np.float32(limit / length)
                length = limit
        if length := _stored(length):
            self._steps.append(length)
        self.before = step
        return step

    def _with_momentum(self, step: Vector) -> Vector:
        """The step with a part of the steps before it: as much as the nodes agree (FedAvgM).

        Hsu et al., "Measuring the effects of non-identical data distribution", 2019.
        """
        if not self._settings.momentum or self.before is None:
            return step
        cosines = list(self.reputations.cosines.values())
        share = self._settings.momentum * max(0.0, math.fsum(cosines) / len(cosines))
        return step + np.float32(share) * self.before


Probe = tuple[int, int] | None  # a version, and the address of a node


def _restored(data: bytes) -> tuple[Reputations, list[float], list[float], Probe]:
    """What `RobustAggregation.stored` has returned; no bytes, or damaged ones, begin anew."""
    try:
        standings, norms, steps, *rest = read_plain(data)  # at first without a probe
        probe = None
        if rest and rest[0]:
            version, address = rest[0]
            probe = int(version), int(address)
        known = restored(standings)
        return known, [UNIT * int(n) for n in norms], [UNIT * int(n) for n in steps], probe
    except (ValueError, TypeError, cbor2.CBORDecodeError):
        return Reputations(), [], [], None


def _stored(norm: float) -> float:
    """A norm as it is stored: in whole units of 2**-24."""
    return round(norm / UNIT) * UNIT


def bound(
    updates: Sequence[Update],
    norms_before: Sequence[float],
    proven: Sequence[bool] = (),
    norm_max: float = math.inf,
) -> tuple[Weights, ...]:
    """Return weights, norms, and the factors that clip the updates of a round.

    `proven`: which of them may weigh more than the median; by default all.
    `norms_before` are the usual norms of the rounds before, newest last; none in a first round.
    `norm_max` needs no round before.
    """
    members = np.array([item.members for item in updates], np.float64)
    samples = np.array([item.samples for item in updates]) / members
    ratios = np.where(proven or True, SAMPLES_RATIO, 1.0)
    weights = members * np.minimum(samples, ratios * lower_median(samples))
    norms = np.array([_norm(item.vector) for item in updates])
    usual = lower_median(norms)
    if norms_before:
        # A board with news may send more than those without, up to what they sent with news.
        past = float(np.median(norms_before))
        usual = max(past, min(usual, HISTORY_RATIO * past))
    else:
        usual = min(usual, FIRST_NORM * norm_max)
    limit = min(norm_max, NORM_RATIO * usual)
    return weights, norms, np.minimum(1.0, limit / np.maximum(norms, UNIT))


def norm_max(plan: Plan) -> float:
    """The norm that no update of this plan can have, whatever its board has learned."""
    number_max = ADAM_RATIO * plan.learning_rate(0) * plan.local_steps
    return number_max * math.sqrt(plan.dimension)


def lower_median(values: NDArray[np.float64]) -> float:
    """The median; of two in the middle the smaller, so that one of two nodes cannot raise it."""
    return float(np.sort(values)[(values.size - 1) // 2])


def mean_of(sent: Weighted) -> Vector:
    """The weighted mean (float32 [D], in the order of the round) of at least one update.

    It is made for each chunk over those that delivered it; zero where nobody did.
    """
    slicing = sent.updates[0].vector.slicing
    total = np.zeros(slicing.dimension)
    weight = np.zeros(slicing.count)
    for item, own, factor in sent.rows():
        total += item.vector.trits * slicing.spread(item.vector.scales * (own * factor * UNIT))
        weight += own * item.vector.present
    weight[weight == 0] = 1.0
    return (total / slicing.spread(weight)).astype(np.float32)


def _norm(vector: Hypervector) -> float:
    """The norm that the whole update would have, by the chunks that came."""
    slicing = vector.slicing
    starts = np.arange(0, slicing.dimension, slicing.span)
    squares = np.add.reduceat(np.square(vector.trits, dtype=np.int32), starts).tolist()
    energy = sum(n * scale**2 for n, scale in zip(squares, vector.scales.tolist(), strict=True))
    return math.sqrt(energy * slicing.count / max(1, int(vector.present.sum()))) * UNIT


def clipped(vector: Hypervector, factor: float) -> Vector:
    """An update times a factor, as float32 [D] in the order of its round."""
    scales = (vector.scales * (factor * UNIT)).astype(np.float32)
    return vector.trits * vector.slicing.spread(scales)


def _checked(step: Vector, dimension: int) -> Vector:
    """A rule's answer as float32 [D]; RuleError for anything else."""
    array = np.asarray(step)
    if array.shape != (dimension,) or array.dtype.kind != "f":
        raise RuleError(
            f"the rule returned {array.dtype} {array.shape}, and a step is float32 ({dimension},)"
        )
    if not np.isfinite(array).all():
        raise RuleError("the rule returned NaN or infinity")
    return array.astype(np.float32, copy=False)
