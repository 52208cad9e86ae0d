"""What every report is made of: one HTML page, its tables, and plots as inline SVG (matplotlib)."""

import html
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

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
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # Okabe and Ito: safe for colour-blind eyes


def page(title: str, parts: Sequence[str], style: str = "", refresh_s: int = 0) -> str:
    """The whole page; `parts` are HTML, and `style` is added to the usual one.

    Where `refresh_s` is not 0, a browser loads it again so often.
    """
    body = "\n".join(parts)
    refresh = f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else ""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width">{refresh}'
        f"<title>{html.escape(title)}</title>"
        f"<style>{STYLE}{style}</style><body>{body}</body></html>\n"
    )


def svg(draw: "Callable[[Axes], None]") -> str:
    """What `draw` draws."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.grid(visible=True, alpha=0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    draw(axes)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()[out.getvalue().index("<svg") :]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """Texts as a table; `kind` is its class."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<table class="{kind}"><tr>{top}</tr>{body}</table>'
