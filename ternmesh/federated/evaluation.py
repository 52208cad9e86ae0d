"""How good a global adapter is on the boards' own samples: what a manifest reports of it.

A node evaluates the global adapter from which its round starts. The host takes the median of the
nodes, which a minority that lies cannot move beyond what honest nodes report. Where the global
update had a probe (`reputation`), a node also reports the effect of it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import median

LOSS, ACCURACY, PROBE, STALENESS = 1, 2, 3, 4  # keys on the wire; unknown keys are ignored
LOSS_UNIT, ACCURACY_UNIT, PROBE_UNIT = 1e-3, 1e-4, 1e-4
VALUE_MAX = 0xFFFF
PROBE_ZERO = 0x8000  # the value of an effect of zero

Values = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean loss and share of hits on a node's samples, or the medians of a fleet's nodes."""

    loss: float | None = None
    accuracy: float | None = None
    nodes: int = 1  # how many have reported
    probe: float | None = None  # the effect of the probe: half of error(+) - error(-), -1 to 1
    staleness: int = 0  # rounds since the one for which the training began


NOT_EVALUATED = Evaluation(nodes=0)


def write_values(evaluation: Evaluation) -> Values:
    """The keys and values for a manifest; a larger loss becomes the largest that fits."""
    values = []
    for key, value, unit in (
        (LOSS, evaluation.loss, LOSS_UNIT),
        (ACCURACY, evaluation.accuracy, ACCURACY_UNIT),
    ):
        if value is not None:
            values.append((key, min(VALUE_MAX, max(0, round(value / unit)))))
    if evaluation.probe is not None:
        effect = PROBE_ZERO + round(evaluation.probe / PROBE_UNIT)
        values.append((PROBE, min(VALUE_MAX, max(0, effect))))
    return tuple(values)


def with_staleness(values: Values, rounds: int) -> Values:
    """The values for the manifest of an update whose training began so many rounds ago."""
    return (*values, (STALENESS, min(VALUE_MAX, rounds))) if rounds else values


def read_values(values: Iterable[tuple[int, int]]) -> Evaluation:
    """What a manifest reports."""
    known = dict(values)

    def value(key: int, unit: float, zero: int = 0) -> float | None:
        return (known[key] - zero) * unit if key in known else None

    accuracy = value(ACCURACY, ACCURACY_UNIT)
    return Evaluation(
        value(LOSS, LOSS_UNIT),
        None if accuracy is None else min(1.0, accuracy),
        1 if known.keys() - {STALENESS} else 0,
        value(PROBE, PROBE_UNIT, PROBE_ZERO),
        known.get(STALENESS, 0),
    )


def of_fleet(evaluations: Collection[Evaluation]) -> Evaluation:
    """The medians of what nodes have reported."""
    losses = [item.loss for item in evaluations if item.loss is not None]
    accuracies = [item.accuracy for item in evaluations if item.accuracy is not None]
    return Evaluation(
        median(losses) if losses else None,
        median(accuracies) if accuracies else None,
        max(len(losses), len(accuracies)),
    )
