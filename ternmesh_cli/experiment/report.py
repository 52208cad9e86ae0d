"""The experiment's report: one HTML file, plots as inline SVG (matplotlib)."""

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ternmesh_cli.experiment.published import SOURCE, comparisons
from ternmesh_cli.experiment.result import FLOAT_BYTES, ArmResult
from ternmesh_cli.experiment.settings import CURVE_EVERY, CURVE_PAIRS, Experiment
from ternmesh_cli.experiment.table import NOTES, cells, titles
from ternmesh_cli.page import COLOURS, page, svg, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEFT = "td { vertical-align: top } .text td { text-align: left }"


def write_report(
    experiment: Experiment, results: Mapping[str, ArmResult], broker: str | None
) -> str:
    """The whole page. `broker` is None where nothing had to be run any more."""
    arms = list(results.values())
    over = f" over {html.escape(broker)}" if broker else ""
    parts = [
        "<h1>M3: two nodes learn together</h1>",
        f"<p>Encoder {html.escape(experiment.encoder)}, SNLI, {experiment.rounds} rounds of "
        f"{experiment.steps} steps on each of two nodes, seed {experiment.seed}{over}. Node "
        "processes and a host process, all bytes over MQTT.</p>",
        table(("", *(arm.name for arm in arms)), _rows(arms)),
        *(f"<p class=note>{html.escape(note)}</p>" for note in NOTES),
        "<h2>Accuracy over the rounds</h2>",
        f"<p class=note>Every {CURVE_EVERY} rounds, on {CURVE_PAIRS} pairs: coarse.</p>",
        svg(lambda axes: _accuracy(axes, arms)),
        "<h2>Bytes of one round</h2>",
        svg(lambda axes: _bytes(axes, arms)),
        "<h2>What was published, and what was measured here</h2>",
        f"<p class=note>{html.escape(SOURCE)}. The measured column is of this run.</p>",
        table(
            ("", "published", "what it counts", "measured"),
            [(c.figure, c.published, c.meaning, c.measured) for c in comparisons(results)],
            "text",
        ),
    ]
    return page("ternmesh experiment m3", parts, LEFT)


def _rows(arms: Sequence[ArmResult]) -> list[tuple[str, ...]]:
    columns = [titles(arms), *(cells(arm, arms) for arm in arms)]
    return list(zip(*columns, strict=True))


def _accuracy(axes: "Axes", arms: Sequence[ArmResult]) -> None:
    for arm, colour in zip(arms, COLOURS, strict=False):
        versions, values = [v for v, _ in arm.curve], [a for _, a in arm.curve]
        axes.plot(versions, values, color=colour, marker="o", ms=3, label=arm.title)
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy")
    axes.legend(loc="lower right")


def _bytes(axes: "Axes", arms: Sequence[ArmResult]) -> None:
    for arm, colour in zip(arms, COLOURS, strict=False):
        versions = [item.version for item in arm.rounds]
        up = [sum(r.bytes_up.values()) / max(1, len(r.bytes_up)) for r in arm.rounds]
        axes.plot(versions, up, color=colour, label=f"{arm.name}, up, a node")
        down = [item.bytes_down for item in arm.rounds]
        axes.plot(versions, down, ":", color=colour, label=f"{arm.name}, down")
    if arms:
        plain = FLOAT_BYTES * max(arm.dimension for arm in arms)
        axes.axhline(plain, color="#777777", ls="--", label="float32")
    axes.set_yscale("log")
    axes.set_xlabel("round")
    axes.set_ylabel("bytes")
    axes.legend(loc="center right", fontsize="small")
