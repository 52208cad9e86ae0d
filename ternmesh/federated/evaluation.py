"""How good a global adapter is on the boards' own samples: what a manifest reports of it.

A node evaluates the global adapter from which its round starts. The host takes the median of the
nodes, which a minority that lies cannot move beyond what honest nodes report. Where the global
update had a probe (`reputation`), a node also reports the loss with the probe added.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import median

LOSS, ACCURACY, PROBE_LOSS = 1, 2, 3  # keys on the wire; unknown keys are ignored
LOSS_UNIT, ACCURACY_UNIT = 1e-3, 1e-4
VALUE_MAX = 0xFFFF

Values = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean loss and share of hits on a node's samples, or the medians of a fleet's nodes."""

    loss: float | None = None
    accuracy: float | None = None
    nodes: int = 1  # how many have reported
    probe_loss: float | None = None  # with the probe of the same version


NOT_EVALUATED = Evaluation(nodes=0)


def write_values(evaluation: Evaluation) -> Values:
    """The keys and values for a manifest; a larger loss becomes the largest that fits."""
    values = []
    for key, value, unit in (
        (LOSS, evaluation.loss, LOSS_UNIT),
        (ACCURACY, evaluation.accuracy, ACCURACY_UNIT),
        (PROBE_LOSS, evaluation.probe_loss, LOSS_UNIT),
    ):
        if value is not None:
            values.append((key, min(VALUE_MAX, max(0, round(value / unit)))))
    return tuple(values)


def read_values(values: Iterable[tuple[int, int]]) -> Evaluation:
    """What a manifest reports."""
    known = dict(values)

    def value(key: int, unit: float) -> float | None:
        return known[key] * unit if key in known else None

    return Evaluation(
        value(LOSS, LOSS_UNIT),
        value(ACCURACY, ACCURACY_UNIT),
        1 if known else 0,
        value(PROBE_LOSS, LOSS_UNIT),
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
