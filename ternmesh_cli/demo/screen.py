"""The live picture of the demo in a terminal (rich)."""

from collections.abc import Mapping

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ternmesh_cli.demo.record import BOARD_HEADS, DemoRecord
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
    return f"{sum(sizes) / len(sizes):,.0f}" if sizes else ""
