"""The parts of a report: one HTML page, its tables, and plots as inline SVG."""

import html
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 58rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .3rem .9rem; text-align: right }
th { border-bottom: 2px solid #444 }
td { border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left } svg { max-width: 100%; height: auto }
.note { color: #555; font-size: .9rem }
"""
LegendPlace = Literal["upper right", "lower right", "center right"]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # Okabe and Ito: safe for colour-blind eyes


def page(title: str, parts: Sequence[str], style: str = "") -> str:
    """The whole page. `parts` are HTML, and `style` is added to STYLE."""
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title>"
        f"<style>{STYLE}{style}</style><body>{body}</body></html>\n"
    )


def svg(
    draw: "Callable[[Axes], None]",
    x_label: str = "",
    y_label: str = "",
    legend: "LegendPlace | None" = None,
) -> str:
    """The plot that `draw` draws, as inline SVG. `legend` is its place."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.grid(visible=True, alpha=0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    draw(axes)
    if x_label:
        axes.set_xlabel(x_label)
    if y_label:
        axes.set_ylabel(y_label)
    if legend:
        axes.legend(loc=legend)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()[out.getvalue().index("<svg") :]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table of texts; `kind` is its CSS class."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<table class="{kind}"><tr>{top}</tr>{body}</table>'
