"""The experiment's report without plots, as Markdown: for a page that is kept."""

from collections.abc import Mapping, Sequence
from datetime import date

from ternmesh_cli.experiment.published import SOURCE, comparisons
from ternmesh_cli.experiment.result import ArmResult
from ternmesh_cli.experiment.settings import Experiment
from ternmesh_cli.experiment.table import NOTES, cells, titles


def write_markdown(
    experiment: Experiment, results: Mapping[str, ArmResult], broker: str | None, today: date
) -> str:
    """The whole page."""
    arms = list(results.values())
    columns = [titles(arms), *(cells(arm, arms) for arm in arms)]
    parts = [
        "# M3: two nodes learn together",
        f"{today.isoformat()}. Encoder {experiment.encoder}, SNLI, {experiment.rounds} rounds of "
        f"{experiment.steps} steps on each of two nodes, seed {experiment.seed}"
        f"{f', over {broker}' if broker else ''}. Node processes and a host process, all bytes "
        "over MQTT. One seed: differences of a point are noise; `python -m bench m3` has eight.",
        _table(("", *(arm.name for arm in arms)), list(zip(*columns, strict=True))),
        *NOTES,
        "## What was published, and what was measured here",
        f"{SOURCE}. The measured column is of this run.",
        _table(
            ("", "published", "what it counts", "measured"),
            [(c.figure, c.published, c.meaning, c.measured) for c in comparisons(results)],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
