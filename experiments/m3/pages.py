"""The parts of a report: one HTML page, its tables, and plots as inline SVG."""

import html
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE = (
    "body { font: 16px/1.5 system-ui, sans-serif; max-width: 58rem; margin: 2rem auto } "
    "table { border-collapse: collapse } svg { max-width: 100% } .note { color: #555 } "
    "th, td { padding: .3rem .9rem; text-align: left; border-bottom: 1px solid #ddd }"
)
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # Okabe and Ito: safe for colour-blind eyes


def page(title: str, parts: Sequence[str]) -> str:
    """The whole page; `parts` are HTML."""
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en">{head}<body>' + "\n".join(parts) + "</body></html>\n"


def svg(what: str, draw: "Callable[[Axes], None]") -> str:
    """The plot of `what` by round that `draw` draws, as inline SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot(xlabel="round", ylabel=what)
    axes.grid(visible=True, alpha=0.3)
    draw(axes)
    axes.legend(fontsize="small")
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()[out.getvalue().index("<svg") :]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts."""
    lines = [("th", head), *(("td", row) for row in rows)]
    cells = ("".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) for tag, row in lines)
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"
