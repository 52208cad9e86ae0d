"""The demo's report: one HTML file with inline plots."""

import html
from typing import TYPE_CHECKING

from ternmesh_cli.demo.record import BOARD_HEADS, DUTY_CYCLE, RADIO_HEADS, DemoRecord, radio_rows
from ternmesh_cli.html_report import COLOURS, note, page, svg, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_report(record: DemoRecord) -> str:
    last = record.rounds[-1].version
    before = record.mean_accuracy(0)
    after = record.mean_accuracy(last)
    parts = [
        f"<h1>Three boards learned three voices: {before:.0%} to {after:.0%}</h1>",
        f"<p>{len(record.rounds)} rounds in {record.seconds:.0f} s over "
        f"{html.escape(record.bearer)}. Each board used clips of one speaker only and sent "
        f"{record.bytes_up:,.0f} bytes a round; {record.bytes_down:,.0f} bytes came back, for all "
        f"boards together. As float32 one update is {record.raw_bytes:,} bytes.</p>",
        "<h2>Accuracy of each board</h2>",
        note(
            "On 50 clips of its own speaker that it never trained on. The base model was trained "
            "on none of the three speakers."
        ),
        svg(lambda axes: _plot_accuracy(axes, record), "round", "accuracy", "lower right"),
        table(BOARD_HEADS, record.board_rows()),
        "<h2>Bytes per round</h2>",
        note(
            "Whole messages with seal, tag and signature, but without the headers of MQTT and TCP "
            "and the frames that a radio's link adds: see the airtime."
        ),
        svg(lambda axes: _plot_bytes(axes, record), "round", "bytes", "center right"),
        *_airtime_spent(record),
        "<h2>The same bytes on a LoRa radio</h2>",
        note(
            "Time on air of one board's update of one round, and the time that it takes at a duty "
            f"cycle of {DUTY_CYCLE:.0%}. Computed, not sent: 125 kHz, 4/5, 8 symbols of preamble; "
            f"ours in frames of {record.frame_mtu} bytes, without repeats."
        ),
        table(RADIO_HEADS, radio_rows(record)),
        _missing(record),
    ]
    return page("ternmesh demo", parts)


def _plot_accuracy(axes: "Axes", record: DemoRecord) -> None:
    for board, colour in zip(record.boards, COLOURS, strict=False):
        points = dict(sorted(record.accuracy[board].items()))
        axes.plot(list(points), list(points.values()), color=colour, marker="o", ms=3, label=board)
    axes.set_ylim(0, 1.02)


def _plot_bytes(axes: "Axes", record: DemoRecord) -> None:
    versions = [item.version for item in record.rounds]
    up = [sum(item.bytes_up.values()) / max(1, len(item.bytes_up)) for item in record.rounds]
    down = [item.bytes_down for item in record.rounds]
    raw = [record.raw_bytes] * len(versions)
    axes.plot(versions, raw, ":", color=COLOURS[0], label="one update as float32")
    axes.plot(versions, up, "-", color=COLOURS[1], label="up, a board")
    axes.plot(versions, down, "--", color=COLOURS[2], label="down")
    axes.set_yscale("log")
    axes.set_ylim(100, 3 * record.raw_bytes)


def _airtime_spent(record: DemoRecord) -> list[str]:
    """The section about the radios of this run, if there were any."""
    if record.airtime_s is None:
        return []
    rows = [(name, f"{airtime_s:.1f} s") for name, airtime_s in record.airtime_s.items()]
    return [
        "<h2>Airtime of this run</h2>",
        note(
            "All frames of the run: updates, global updates, repairs, status, receipts. The radios "
            "are emulated; their time on air is that of LoRa frames of the same length."
        ),
        table(("radio", "on air"), rows),
    ]


def _missing(record: DemoRecord) -> str:
    late = [f"round {r.version}: {', '.join(r.missing)}" for r in record.rounds if r.missing]
    text = "; ".join(late) or "none: every board was counted in every round"
    return note(f"Late or lost boards: {text}.")
