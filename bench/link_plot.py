"""The plot of the link's efficiency over the loss, beside its peers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

LABELS = {
    "ternmesh": "ternmesh",
    "schc": "SCHC ACK-on-Error",
    "lorawan_ts004": "LoRaWAN TS004, 99 %",
    "coap_block1": "CoAP Block1",
    "meshtastic": "Meshtastic, 3 sends",
    "meshtastic_five_sends": "Meshtastic, 5 sends",
    "meshtastic_app_retry": "Meshtastic, retried by the app",
}


def draw(path: Path, curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> None:
    """One panel for each size; a line ends where fewer than half of the transfers complete."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(curves), sharey=True)
    for panel, (size, rows) in zip(panels, curves.items(), strict=True):
        for name, points in rows.items():
            alive = [point for point in points if point[1] > 0]
            width = 2.6 if name == "ternmesh" else 1.2
            panel.plot(
                [100 * loss for loss, _ in alive],
                [efficiency for _, efficiency in alive],
                marker=".",
                linewidth=width,
                label=LABELS[name],
            )
        losses = [loss for loss, _ in rows["ternmesh"]]
        panel.plot([100 * p for p in losses], [1 - p for p in losses], "k:", label="1 - p")
        panel.set_title(f"an object of {size}")
        panel.set_xlabel("frames lost, both directions, %")
        panel.grid(visible=True, alpha=0.3)
        panel.set_ylim(0, 1)
    panels[0].set_ylabel("useful bytes / bytes on the air")
    panels[0].legend(fontsize=7, loc="lower left")
    figure.suptitle("Simulated channel, 255-byte LoRa frames; peers are models")
    figure.savefig(path, metadata={"Software": None})
