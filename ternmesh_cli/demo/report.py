"""The demo's report: one HTML file with everything in it, plots as inline SVG (matplotlib)."""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ternmesh_cli.demo.record import DUTY_CYCLE, DemoRecord, RadioCost, radio_costs
from ternmesh_cli.page import COLOURS, page, svg, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_report(record: DemoRecord) -> str:
    """The whole page."""
    last = record.rounds[-1].version
    before, after = record.mean_accuracy(0), record.mean_accuracy(last)
    parts = [
        f"<h1>Three boards learned three voices: {before:.0%} to {after:.0%}</h1>",
        f"<p>{len(record.rounds)} rounds in {record.seconds:.0f} s over "
        f"{html.escape(record.bearer)}. Each board heard only its own speaker and sent "
        f"{record.bytes_up:,.0f} bytes a round; {record.bytes_down:,.0f} bytes came back, for all "
        f"boards together. As float32 one update is {record.raw_bytes:,} bytes.</p>",
        "<h2>Accuracy of each board</h2>",
        "<p class=note>On 50 clips of its own speaker that it never trained on. The base model has "
        "heard none of the three speakers.</p>",
        _accuracy_plot(record),
        _boards_table(record),
        "<h2>Bytes per round</h2>",
        "<p class=note>Whole messages: seal, tag and signature bytes included; the headers of "
        "MQTT and TCP are not, nor what a radio's link adds: see the airtime.</p>",
        _bytes_plot(record),
        *_airtime_spent(record),
        "<h2>The same bytes on a LoRa radio</h2>",
        f"<p class=note>Time on air of one board's update of one round, and the time that it takes "
        f"at a duty cycle of {DUTY_CYCLE:.0%}. Computed, not sent: 125 kHz, 4/5, 8 symbols of "
        f"preamble; ours in frames of {record.frame_mtu} bytes, without repeats.</p>",
        _radio_table(radio_costs(record)),
        _missing(record),
    ]
    return page("ternmesh demo", parts)


def _accuracy_plot(record: DemoRecord) -> str:
    def draw(axes: "Axes") -> None:
        for board, colour in zip(record.boards, COLOURS, strict=False):
            points = dict(sorted(record.accuracy[board].items()))
            versions, values = list(points), list(points.values())
            axes.plot(versions, values, color=colour, marker="o", ms=3, label=board)
        axes.set_xlabel("round")
        axes.set_ylabel("accuracy")
        axes.set_ylim(0, 1.02)
        axes.legend(loc="lower right")

    return svg(draw)


def _bytes_plot(record: DemoRecord) -> str:
    def draw(axes: "Axes") -> None:
        versions = [item.version for item in record.rounds]
        up = [sum(item.bytes_up.values()) / max(1, len(item.bytes_up)) for item in record.rounds]
        down = [float(item.bytes_down) for item in record.rounds]
        raw = [float(record.raw_bytes)] * len(versions)
        lines: Sequence[tuple[list[float], str, str]] = (
            (raw, "one update as float32", ":"),
            (up, "up, a board", "-"),
            (down, "down", "--"),
        )
        for (values, label, style), colour in zip(lines, COLOURS, strict=False):
            axes.plot(versions, values, style, color=colour, label=label)
        axes.set_yscale("log")
        axes.set_ylim(100, 3 * record.raw_bytes)
        axes.set_xlabel("round")
        axes.set_ylabel("bytes")
        axes.legend(loc="center right")

    return svg(draw)


def _boards_table(record: DemoRecord) -> str:
    last = record.rounds[-1].version
    rows = [
        (
            board,
            f"{record.accuracy[board][0]:.0%}",
            f"{record.accuracy[board][last]:.0%}",
            f"{sum(item.bytes_up.get(board, 0) for item in record.rounds):,}",
            str(sum(board in item.missing for item in record.rounds)),
        )
        for board in record.boards
    ]
    return table(("board", "before", "after", "bytes sent in all", "rounds missed"), rows)


def _airtime_spent(record: DemoRecord) -> list[str]:
    """What the radios of this run had on the air, where there were any."""
    if record.airtime_s is None:
        return []
    rows = [(name, f"{airtime_s:.1f} s") for name, airtime_s in record.airtime_s.items()]
    note = (
        "All frames of the run: packets, references, repairs, status, receipts. The radios are "
        "emulated; their time on air is that of LoRa frames of the same length."
    )
    return [
        "<h2>Airtime of this run</h2>",
        f"<p class=note>{note}</p>",
        table(("radio", "on air"), rows),
    ]


def _radio_table(costs: Sequence[RadioCost]) -> str:
    rows = [
        (
            f"SF{cost.setting.spreading_factor}",
            f"{cost.airtime_s:.1f} s",
            _hours(cost.hours),
            f"{cost.raw_airtime_s:.0f} s",
            _hours(cost.raw_hours),
        )
        for cost in costs
    ]
    return table(("radio", "on air", "at 1 % duty", "float32 on air", "float32 at 1 %"), rows)


def _hours(hours: float) -> str:
    return f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.1f} h"


def _missing(record: DemoRecord) -> str:
    late = [f"round {r.version}: {', '.join(r.missing)}" for r in record.rounds if r.missing]
    text = "; ".join(late) or "none: every board was counted in every round"
    return f"<p class=note>Late or lost boards: {html.escape(text)}.</p>"
