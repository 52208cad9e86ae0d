"""The live picture of the demo in a terminal (rich)."""

from collections.abc import Mapping
from statistics import fmean as mean

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ternmesh_cli.demo.fleet import accuracy
from ternmesh_service.alarms import GOOD, WARN, alarms, board_state, is_over
from ternmesh_service.status import BoardStatus, HostStatus


def picture(
    host: HostStatus | None,
    boards: Mapping[str, BoardStatus | None],
    rounds: int,
    seconds: float,
    simulated: str = "",
) -> Group:
    """The state of the fleet: a bar of rounds, a line for each board, and the host's alarms.

    `simulated` is the name of simulated hardware, empty for none.
    """
    version = host.version if host else 0
    head = Table.grid(padding=(0, 1))
    state = host.phase if host else "starting"
    head.add_row(
        "round", ProgressBar(rounds, version, width=40), f"{version}/{rounds}",
        f"[dim]{state}, {seconds:.0f} s[/dim]",
    )  # fmt: skip
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for title in ("board", "now", "accuracy", "", "bytes a round"):
        table.add_column(title, justify="left" if title in ("board", "now", "") else "right")
    for name, status in boards.items():
        table.add_row(name, _state(name, host, status), *_accuracy(status), _bytes(name, host))
    shown = [Text(alarm.sentence, "yellow") for alarm in alarms(host)] if host else []
    return Group(head, table, Text(simulated, "dim"), *shown)


def summary(host: HostStatus, boards: Mapping[str, BoardStatus]) -> Table:
    table = Table(title="What the boards learned", header_style="bold")
    for title in ("board", "before", "after", "bytes sent in all", "rounds missed"):
        table.add_column(title, justify="left" if title == "board" else "right")
    last = host.history[-1].version
    for name, status in boards.items():
        table.add_row(
            name,
            f"{accuracy(status, 0):.0%}",
            f"{accuracy(status, last):.0%}",
            f"{sum(item.bytes_up.get(name, 0) for item in host.history):,}",
            str(sum(name in item.missing for item in host.history)),
        )
    before, after = (mean(accuracy(one, at) for one in boards.values()) for at in (0, last))
    table.add_section()
    table.add_row("mean", f"{before:.1%}", f"[bold]{after:.1%}[/bold]")
    return table


def _state(name: str, host: HostStatus | None, status: BoardStatus | None) -> Text:
    board = next((one for one in host.nodes if one.name == name), None) if host else None
    if host is None or board is None:
        return Text("starting" if status is None else "joining", "dim")
    level, word = board_state(board, host)
    if level == GOOD and not is_over(host):  # else it may have left already
        if status is None:
            return Text("not answering", "red")
        if work := status.training:
            return Text(f"training {work.steps_done}/{work.steps}", "cyan")
    return Text(word, {GOOD: "green", WARN: "yellow"}.get(level, "red"))


def _accuracy(status: BoardStatus | None) -> tuple[str, str]:
    values = [entry.metric or 0.0 for entry in status.history] if status else []
    if not values:
        return "", ""
    blocks = " ▁▂▃▄▅▆▇█"
    return f"{values[-1]:.0%}", "".join(blocks[round(8 * value)] for value in values[-30:])


def _bytes(name: str, host: HostStatus | None) -> str:
    sizes = [r.bytes_up[name] for r in host.history if name in r.bytes_up] if host else []
    return f"{mean(sizes):,.0f}" if sizes else ""
