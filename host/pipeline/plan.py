"""The least compression that keeps stages busy over a link, and what it costs in learning.

The costs were measured on an H100 (docs/pipeline.md): width 512, 8 layers in 4 stages, 16.4 million
tokens (each window drawn four times), Muon, against the uncompressed run. They fall with width, and
two layers alone, without any pipeline, cost 0.28 there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from host.pipeline.config import PipelineConfig, host_and_port

WIDTH = 512  # of the model that the costs were measured on
STEP_BITS = 16  # of the step size of each token where its numbers are integers
ALONE = 0.28  # nats: what a machine of four loses that trains its part of the layers alone


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings of [boundary], bits of a channel forward and back, and nats that they cost."""

    settings: str
    forward: float
    back: float
    cost: float


CHOICES = (
    Choice('method = "none"', 16, 16, 0.0),
    Choice('method = "int8"', 8, 8, 0.004),
    Choice('method = "resbm", latent = width / 4', 8 / 4, 4 / 4, 0.022),
    Choice('method = "resbm" (an eighth, the default)', 8 / 8, 4 / 8, 0.073),
    Choice('method = "resbm", latent = width / 32', 8 / 32, 4 / 32, 0.359),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A choice over a link: what of the time stages compute, and how many tokens a second."""

    choice: Choice
    busy: float
    tokens_per_s: float


def plan(
    config: PipelineConfig, mbit: float, rtt_ms: float, micro_batch_ms: float
) -> Sequence[Row]:
    """Each choice for links of `mbit` out of each machine; a middle stage sends forward and back.

    Only what leaves a machine takes time: by `addresses`; without them each stage has its own.
    `micro_batch_ms` is what the slowest stage computes on a micro-batch, a third of it forward. No
    step begins before the gradients' norm has come to the first stage, and an activation back.

    >>> from host.pipeline.plan import plan
    >>> from host.pipeline.config import PipelineConfig
    >>> rows = plan(PipelineConfig("state", stages=4, micro_batches=32), 80.0, 50.0, 200.0)
    >>> [round(row.busy, 2) for row in rows][:2]
    [0.94, 0.94]
    """
    tokens = config.micro_batch * config.model.length
    count, hops = config.micro_batches, config.stages - 1
    machines = [host_and_port(each)[0] for each in config.addresses] or [*map(str, range(hops + 1))]
    links = [(near, far) for near, far in pairwise(machines[: hops + 1]) if near != far]
    rows = []
    for choice in CHOICES:
        forward_ms, back_ms = (
            (bits * config.model.width + STEP_BITS * (bits < 16)) * tokens / (1000 * mbit)
            for bits in (choice.forward, choice.back)
        )
        sent_ms = max(
            sum(forward_ms * (near == each) + back_ms * (far == each) for near, far in links)
            for each in machines
        )
        turn_ms = max(micro_batch_ms, sent_ms)
        once_ms = len(links) * (rtt_ms + forward_ms + back_ms) + hops * micro_batch_ms / 3
        step_ms = count * turn_ms + once_ms
        busy = count * micro_batch_ms / step_ms
        rows.append(Row(choice, busy, 1000 * count * tokens / step_ms))
    return rows


def least(rows: Sequence[Row]) -> Row:
    """The first row within a tenth of the busiest, among those that cost less than no pipeline."""
    worth = [row for row in rows if row.choice.cost < ALONE]
    best = max(row.busy for row in worth)
    return next(row for row in worth if row.busy >= 0.9 * best)


def describe(config: PipelineConfig, rows: Sequence[Row]) -> str:
    """A table for people, and what to choose."""
    chosen = least(rows)
    lines = ["busy  tokens/s  nats  [boundary]"]
    for row in rows:
        mark = "  <- the least that keeps stages busy" if row is chosen else ""
        lines.append(
            f"{row.busy:4.0%}  {row.tokens_per_s:8.0f}  {row.choice.cost:4.2f}  "
            f"{row.choice.settings}{mark}"
        )
    lines.append(
        f"nats: loss above the uncompressed run, measured at width {WIDTH} (more width: less). A "
        f"machine that trains its part of the layers alone lost {ALONE}."
    )
    if chosen.busy < 0.8:
        lines.append(
            f"Stages wait {1 - chosen.busy:.0%} of the time: raise micro_batches (now "
            f"{config.micro_batches}), or micro_batch."
        )
    return "\n".join(lines)
