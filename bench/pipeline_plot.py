"""The plot of the pipeline benchmark: tokens a second over the rate of the links."""

from collections.abc import Mapping
from pathlib import Path

LABELS = {
    "none": "uncompressed",
    "subspace": "subspace, d/k = 100",
    "resbm": "residual bottleneck, d/b = 128",
}


def draw(
    path: Path,
    sweep: Mapping[float, Mapping[str, float]],
    unthrottled: Mapping[str, float],
    home: tuple[float, Mapping[str, float]] | None,
) -> None:
    """Tokens/s of each arm by Mbit/s; dotted where nothing throttles, a star for the home link."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    figure = Figure(figsize=(7.5, 4.4), layout="constrained", dpi=110)
    panel = figure.subplots()
    rates = sorted(sweep)
    for index, (arm, label) in enumerate(LABELS.items()):
        color = f"C{index}"
        speeds = [sweep[rate][arm] for rate in rates]
        panel.plot(rates, speeds, color=color, marker=".", label=label)
        panel.axhline(unthrottled[arm], color=color, linestyle=":", linewidth=1)
        if home is not None:
            panel.plot([home[0]], [home[1][arm]], color=color, marker="*", markersize=11)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.xaxis.set_major_locator(FixedLocator(rates))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    panel.set(xlabel="rate of each link, Mbit/s", ylabel="tokens/s")
    panel.set_title("dotted: links that nothing throttles; stars: with delay and loss", fontsize=9)
    panel.grid(visible=True, alpha=0.3)
    panel.legend(fontsize=8)
    figure.savefig(path, metadata={"Software": None})
