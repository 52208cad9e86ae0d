"""Aggregation rules: how the host turns the updates of a round into one step. Pure functions.

A rule takes updates (float32 [n, D]), weights (float64 [n], above 0) and a `Context`, and returns
a step (float32 [D]). Names are joined by "+": pre-steps, then one rule ("nnm+median"). `RuleError`
says why a rule cannot work with what it was given.

n updates come from n members, of which at most f ("byzantine") may lie. Rules that compare whole
updates do it with one matrix of inner products, so their cost is that of one matrix product.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import RuleError
from ternmesh.exact import inner_products_int8, to_int8, wholes
from ternmesh.types import Vector

Updates = NDArray[np.float32]
Weights = NDArray[np.float64]
Square = NDArray[np.float64]  # [n, n]

SORT_BLOCK = 1 << 12  # coordinates that are sorted at once


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may know besides the updates."""

    byzantine: int = 0  # f: how many members may lie
    before: Vector | None = None  # the step of the round before (float32 [D])


Rule = Callable[[Updates, Weights, Context], Vector]
PreStep = Callable[[Updates, Weights, Context], tuple[Updates, Weights]]


# Rules


def mean(updates: Updates, weights: Weights, context: Context) -> Vector:
    """The mean, whatever the weights."""
    return _combine(updates, np.ones(len(updates)))


def weighted_mean(updates: Updates, weights: Weights, context: Context) -> Vector:
    """The mean weighted by samples (FedAvg; McMahan et al., AISTATS 2017)."""
    return _combine(updates, weights)


def median(updates: Updates, weights: Weights, context: Context) -> Vector:
    """The median of each coordinate (Yin et al., ICML 2018)."""
    return _by_coordinate(updates, _middle)


def trimmed_mean(updates: Updates, weights: Weights, context: Context) -> Vector:
    """The mean of each coordinate without its f largest and f smallest (Yin et al., ICML 2018)."""
    f, n = context.byzantine, len(updates)

    def trim(values: Updates) -> Updates:
        return _sum(values.T[f : n - f]) / np.float32(n - 2 * f)

    return _by_coordinate(updates, trim)


def krum(updates: Updates, weights: Weights, context: Context) -> Vector:
    """The update with the least summed distance to its n - f - 1 nearest (Blanchard et al., 2017).

    Counted as in ByzFL: the paper has n - f - 2.
    """
    best: Vector = updates[np.argmin(_krum_scores(_squares(updates), context.byzantine))]
    return best


def multi_krum(updates: Updates, weights: Weights, context: Context) -> Vector:
    """The mean of the n - f updates with the best scores of Krum (Blanchard et al., 2017)."""
    f = context.byzantine
    scores = _krum_scores(_squares(updates), f)
    chosen = np.zeros(len(updates))
    chosen[np.argsort(scores, kind="stable")[: len(updates) - f]] = 1.0
    return _combine(updates, chosen)


# Pre-steps


def nnm(updates: Updates, weights: Weights, context: Context) -> tuple[Updates, Weights]:
    """Replace each update by the mean of its n - f nearest (Allouah et al., AISTATS 2023)."""
    n, kept = len(updates), len(updates) - context.byzantine
    nearest = np.argsort(_squares(updates), axis=1, kind="stable")[:, :kept]
    mixing = np.zeros((n, n), np.float32)
    mixing[np.arange(n)[:, None], nearest] = 1
    numbers, unit = wholes(updates, 24 - n.bit_length())  # their sums are exact in float32
    return mixing @ numbers.astype(np.float32) * np.float32(unit / kept), np.ones(n)


@dataclass(frozen=True, slots=True)
class AggregationSettings:
    """Which rule makes a step of a round's updates, and against how many liars.

    `memory` is the decay of the nodes' memory; 0: rules get the updates of the round, and nobody
    has a reputation. `probes`: whether global updates carry probes. `fixed`: by the name of a
    node, the factor of its weight that the owner has set.
    `guard`: the rise of the boards' loss, in losses at the beginning, from which on the host goes
    back to an older version; 0 for never. `momentum`: of the steps, where all nodes agree.
    """

    name: str = "weighted_mean"
    rule: Rule = weighted_mean
    byzantine: int = 0
    memory: float = 0.9
    probes: bool = True
    fixed: Mapping[str, float] = field(default_factory=dict)
    guard: float = 0.5
    momentum: float = 0.0


RULES: Mapping[str, Rule] = {
    rule.__name__: rule for rule in (mean, weighted_mean, median, trimmed_mean, krum, multi_krum)
}
PRE_STEPS: Mapping[str, PreStep] = {nnm.__name__: nnm}

# The least n for f, by name: a * f + b
_LEAST: Mapping[str, tuple[int, int]] = {
    "median": (2, 1),
    "trimmed_mean": (2, 1),
    "krum": (2, 3),
    "multi_krum": (2, 3),
    "nnm": (2, 1),
}


def least_members(name: str, byzantine: int) -> int:
    """The least number of updates with which the rule called `name` withstands `byzantine`."""
    parts = [_LEAST[part] for part in name.split("+") if part in _LEAST]
    return max((a * byzantine + b for a, b in parts), default=1)


def check_count(name: str, members: int, byzantine: int) -> None:
    """Raise RuleError if the rule called `name` cannot withstand `byzantine` of `members`."""
    least = least_members(name, byzantine)
    if members < least:
        raise RuleError(
            f"{name} withstands {byzantine} liars among at least {least} members, and {members} "
            "sent an update"
        )


def compose(name: str, rules: Mapping[str, Rule] = RULES) -> Rule:
    """The rule called `name`; RuleError if there is none."""
    *before, last = name.split("+")
    if last not in rules or not all(part in PRE_STEPS for part in before):
        raise RuleError(
            f"there is no aggregation rule {name!r}: rules are {', '.join(rules)}; before a rule "
            f"and a plus sign may stand {', '.join(PRE_STEPS)}"
        )
    pre_steps, rule = [PRE_STEPS[part] for part in before], rules[last]

    def composed(updates: Updates, weights: Weights, context: Context) -> Vector:
        for step in pre_steps:
            updates, weights = step(updates, weights, context)
        return rule(updates, weights, context)

    return composed if pre_steps else rule


# Arithmetic


def inner_products(updates: Updates) -> Square:
    """The inner products of all pairs, float64 [n, n], of the updates in int8."""
    rows, scales = zip(*map(to_int8, updates), strict=True)
    products: Square = inner_products_int8(np.stack(rows)) * scales * np.array(scales)[:, None]
    return products


def _squares(updates: Updates) -> Square:
    gram = inner_products(updates)
    own = gram.diagonal()
    squares = np.maximum(own[:, None] + own[None, :] - 2 * gram, 0.0)
    np.fill_diagonal(squares, 0.0)
    return squares


def _krum_scores(squares: Square, byzantine: int) -> Weights:
    """The summed squared distance of each update to its n - f - 1 nearest others."""
    kept = max(1, len(squares) - byzantine - 1)
    nearest = np.sort(squares, axis=1)[:, 1 : kept + 1]
    return np.array([math.fsum(row) for row in nearest.tolist()])


def _combine(updates: Updates, weights: Weights) -> Vector:
    total = math.fsum(weights)
    if not math.isfinite(total) or total <= 0:
        raise RuleError("the weights of the updates add up to nothing")
    shares = (weights / total).astype(np.float32)
    return _sum(share * row for share, row in zip(shares, updates, strict=True) if share)


def _sum(rows: Iterable[Vector]) -> Vector:
    """The sum of rows, one after the other."""
    return _narrow(reduce(np.add, rows))


def _by_coordinate(updates: Updates, function: Callable[[Updates], Updates]) -> Vector:
    """Apply `function` to the sorted values of each coordinate (float32 [block, n] to [block]).

    numpy sorts neighbours in memory several times as fast as columns.
    """
    out = np.empty(updates.shape[1], np.float32)
    for at in range(0, out.size, SORT_BLOCK):
        values = np.ascontiguousarray(updates[:, at : at + SORT_BLOCK].T)
        values += 0  # no -0.0: it equals 0.0, and sorts differ in which comes first
        values.sort(axis=1)
        out[at : at + SORT_BLOCK] = function(values)
    return out


def _middle(values: Updates) -> Updates:
    """The median of each row of sorted values."""
    n = values.shape[1]
    return (values[:, (n - 1) // 2] + values[:, n // 2]) / np.float32(2)


def _narrow(vector: NDArray[np.floating]) -> Vector:
    return vector.astype(np.float32, copy=False)
