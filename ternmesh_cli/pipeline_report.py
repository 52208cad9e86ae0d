"""The report of a pipeline training: one HTML file that grows during the training."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from host.pipeline.report import parse
from ternmesh_cli.html_report import COLOURS, note, page, svg, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from host.pipeline.config import PipelineConfig

Row = Mapping[str, Any]
ROWS_MAX = 4000  # beyond it, every second row is dropped
REFRESH_S = 60


class TrainingHistory:
    """The reports of a run in the order of their steps; thinned out beyond ROWS_MAX."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, row: Row) -> None:
        """Add a report. A step that is repeated after a restart replaces the old one."""
        # The validation of a step follows the report of that step.
        last = row["step"] - 1 if "loss" in row else row["step"]
        while self.rows and self.rows[-1]["step"] > last:
            self.rows.pop()
        self.rows.append(row)
        if len(self.rows) > ROWS_MAX:
            self.rows = [*self.rows[:-1:2], self.rows[-1]]

    def read(self, path: Path) -> None:
        """Add all complete reports of a file, if it exists."""
        if path.exists():
            with path.open("rb") as file:
                for line in file:
                    if (row := parse(line)) is not None:
                        self.add(row)

    def steps(self) -> list[Row]:
        return [row for row in self.rows if "loss" in row]

    def validations(self) -> list[Row]:
        return [row for row in self.rows if "validation_loss" in row]


def write_report(config: "PipelineConfig", history: TrainingHistory, state: str) -> str:
    """The whole page. `state` is `running`, `finished` or `stopped`; a running page reloads itself.

    The history must hold at least one step.
    """
    steps = history.steps()
    validations = history.validations()
    last = steps[-1]
    judged = f", on held-out text {validations[-1]['validation_loss']:.4f}" if validations else ""
    parts = [
        f"<h1>Step {last['step']:,} of {last['steps']:,}: loss {last['loss']:.4f}{judged}</h1>",
        f"<p>{html.escape(_summary(config, last, state))}</p>",
        "<h2>Loss</h2>",
        svg(
            lambda axes: _plot_losses(axes, steps, validations),
            "step",
            "nats a token",
            "upper right",
        ),
        "<h2>Tokens a second</h2>",
        svg(lambda axes: _plot_steps(axes, steps, "tokens_per_s"), "step", "tokens/s"),
        "<h2>Bytes that cross a boundary</h2>",
        table(("", "forward", "back", "both", "of float32"), _boundaries(config, last)),
        note(f"Payload bytes of a token.{_replicas(config, last)}"),
        "<h2>Idle time</h2>",
        note(
            "The fraction of time in which a stage computes nothing: the pipeline's bubble, and "
            "waiting for links and for the machine."
        ),
        svg(lambda axes: _plot_bubbles(axes, steps), "step", "fraction"),
        "<h2>Configuration</h2>",
        table(("setting", "value"), [(k, str(v)) for k, v in config.shared().items()]),
    ]
    return page("ternmesh pipeline", parts, refresh_s=REFRESH_S if state == "running" else 0)


def _summary(config: "PipelineConfig", last: Row, state: str) -> str:
    model = config.model
    count = config.replicas.count
    replicas = f", {count} replicas" if count > 1 else ""
    left = f" {_time(last['left_s'])} left." if state == "running" else ""
    return (
        f"{state.capitalize()}.{left} {last['tokens_per_s']:,.0f} tokens/s. Width {model.width}, "
        f"{model.layers} layers in {config.stages} stages ({config.schedule}){replicas}; "
        f"boundaries: {config.boundary.method}."
    )


def _time(seconds: float) -> str:
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def _boundaries(config: "PipelineConfig", last: Row) -> list[tuple[str, ...]]:
    size = last["boundary_bytes_per_token"]
    whole = 2 * 4 * config.model.width  # float32, forward and back
    both = size["forward"] + size["back"]
    cells = tuple(f"{value:.4g}" for value in (size["forward"], size["back"], both))
    names = [f"stage {place} to {place + 1}" for place in range(config.stages - 1)]
    return [(name, *cells, f"{both / whole:.2%}") for name in names]


def _replicas(config: "PipelineConfig", last: Row) -> str:
    if "replica_bytes_per_token" not in last:
        return ""
    return (
        f" A replica sends each other one {last['replica_bytes_per_token']:.4g} bytes a token "
        f"(every {config.replicas.every_steps} steps)."
    )


def _plot_losses(axes: "Axes", steps: Sequence[Row], validations: Sequence[Row]) -> None:
    _plot_steps(axes, steps, "loss", "training")
    if validations:
        x, y = zip(*((row["step"], row["validation_loss"]) for row in validations), strict=True)
        axes.plot(x, y, color=COLOURS[1], marker="o", ms=3, label="held-out text")


def _plot_bubbles(axes: "Axes", steps: Sequence[Row]) -> None:
    for stage in range(len(steps[-1]["bubble"])):
        idle = [row["bubble"][stage] for row in steps]
        axes.plot([row["step"] for row in steps], idle, label=f"stage {stage}")
    axes.set_ylim(0, 1)
    axes.legend(loc="upper right", ncols=4, fontsize="small")


def _plot_steps(axes: "Axes", steps: Sequence[Row], key: str, label: str = "") -> None:
    values = [row[key] for row in steps]
    axes.plot([row["step"] for row in steps], values, color=COLOURS[0], label=label)
