"""The live picture of the demo in a terminal (rich)."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ternmesh_cli.demo.record import BOARD_HEADS, DemoRecord

Status = Mapping[str, Any]
LATE_S = 15.0  # after so long without a message, a board is late


def picture(
    host: Status | None,
    boards: Mapping[str, Status | None],
    rounds: int,
    seconds: float,
    simulated: str = "",
) -> Group:
    """The state of the fleet: a bar of rounds, a line for each board, and the host's link.

    `simulated` is the name of simulated hardware, empty for none.
    """
    version = host["version"] if host else 0
    head = Table.grid(padding=(0, 1))
    state = host["phase"] if host else "starting"
    head.add_row(
        "round", ProgressBar(rounds, version, width=40), f"{version}/{rounds}",
        f"[dim]{state}, {seconds:.0f} s[/dim]",
    )  # fmt: skip
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for title in ("board", "now", "accuracy", "", "bytes a round"):
        table.add_column(title, justify="left" if title in ("board", "now", "") else "right")
    for name, status in boards.items():
        table.add_row(name, _state(name, host, status), *_accuracy(status), _bytes(name, host))
    return Group(head, table, Text(simulated, "dim"), _link(host), _refused(host))


def summary(record: DemoRecord) -> Table:
    table = Table(title="What the boards learned", header_style="bold")
    for title in BOARD_HEADS:
        table.add_column(title, justify="left" if title == "board" else "right")
    for row in record.board_rows():
        table.add_row(*row)
    before = record.mean_accuracy(0)
    after = record.mean_accuracy(record.rounds[-1].version)
    table.add_section()
    table.add_row("mean", f"{before:.1%}", f"[bold]{after:.1%}[/bold]")
    return table


def _state(name: str, host: Status | None, status: Status | None) -> Text:
    node = next((n for n in host["nodes"] if n["name"] == name), None) if host else None
    if node and host and host["phase"] == "finished":
        return Text("finished", "green")  # it may have left already
    if status is None:
        return Text("not answering" if node else "starting", "red" if node else "dim")
    if node is None:
        return Text("joining", "dim")
    silent_s = node["heard_s_ago"]
    if host and host["phase"] == "open" and silent_s is not None and silent_s > LATE_S:
        return Text(f"late: no message for {silent_s:.0f} s", "yellow")
    if not node["active"]:
        return Text("lost", "red")
    work = status.get("training")
    if work:
        return Text(f"training {work['steps_done']}/{work['steps']}", "cyan")
    return Text("update delivered" if node["delivered"] == "whole" else "up to date", "green")


def _accuracy(status: Status | None) -> tuple[str, str]:
    history: Sequence[Status] = status["history"] if status else ()
    if not history:
        return "", ""
    values = [item["metric"] for item in history]
    blocks = " ▁▂▃▄▅▆▇█"
    return f"{values[-1]:.0%}", "".join(blocks[round(8 * value)] for value in values[-30:])


def _bytes(name: str, host: Status | None) -> str:
    sizes = [r["bytes_up"][name] for r in host["history"] if name in r["bytes_up"]] if host else []
    return f"{sum(sizes) / len(sizes):,.0f}" if sizes else ""


def _link(host: Status | None) -> Text:
    if host is None or host["transport"]["connected"]:
        return Text("")
    return Text(f"the host is not connected: {host['transport']['last_error']}", "yellow")


def _refused(host: Status | None) -> Text:
    refused = host["refused"] if host else {}
    text = ", ".join(f"{count} {reason}" for reason, count in refused.items())
    return Text(f"refused: {text}" if text else "", "dim")
