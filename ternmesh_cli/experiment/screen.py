"""An experiment in a terminal (rich): where it stands, and at its end what it has shown."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from ternmesh_cli.experiment.arm import Standing
from ternmesh_cli.experiment.published import comparisons
from ternmesh_cli.experiment.result import ArmResult
from ternmesh_cli.experiment.table import NOTES, cells, titles

REFRESH_PER_S = 2
MINUTE_S, HOUR_S = 60, 3600


@dataclass(slots=True)
class Line:
    """An arm on the screen. `seconds_each` is what a round takes, as far as is known."""

    name: str
    rounds: int
    standing: Standing
    first: int | None = None  # the version at which this process saw it first, and when
    first_at: float = 0.0
    seconds_each: float | None = None

    def update(self, standing: Standing, now: float) -> None:
        """Take note of where the arm is."""
        self.standing = standing
        if standing.state == "learning" and self.first is None:
            self.first, self.first_at = standing.version, now
        if self.first is not None and standing.version > self.first:
            self.seconds_each = (now - self.first_at) / (standing.version - self.first)


class Screen(AbstractContextManager["Screen"]):
    """The live picture; a quiet one shows nothing."""

    def __init__(self, arms: Sequence[str], rounds: int, *, quiet: bool) -> None:
        self._lines = {name: Line(name, rounds, Standing("waiting")) for name in arms}
        self._live = Live(
            console=Console(stderr=True, quiet=quiet), refresh_per_second=REFRESH_PER_S
        )

    def __enter__(self) -> "Screen":
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()

    def teller(self, arm: str) -> Callable[[Standing], None]:
        """What an arm calls to say where it is."""

        def tell(standing: Standing) -> None:
            self._lines[arm].update(standing, time.monotonic())
            self._live.update(picture(list(self._lines.values())))

        return tell


def picture(lines: Sequence[Line]) -> Group:
    """A line for each arm, and how long everything still takes."""
    table = Table.grid(padding=(0, 2))
    for line in lines:
        now = line.standing
        accuracy = "" if now.accuracy is None else f"about {now.accuracy:.0%}"
        bar = ProgressBar(line.rounds, now.version, width=30)
        table.add_row(line.name, bar, f"{now.version}/{line.rounds}", now.state, accuracy)
    left = seconds_left(lines)
    return Group(table, f"about {duration(left)} left" if left else "")


def seconds_left(lines: Sequence[Line]) -> float | None:
    """What is left at the pace so far, None where there is none yet; other arms get the mean."""
    known = [line.seconds_each for line in lines if line.seconds_each is not None]
    if not known:
        return None
    mean = sum(known) / len(known)
    return sum(
        (line.rounds - line.standing.version) * (line.seconds_each or mean) for line in lines
    )


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 2 * MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < 2 * HOUR_S:
        return f"{seconds / MINUTE_S:.0f} min"
    return f"{seconds / HOUR_S:.1f} h"


def show(results: Mapping[str, ArmResult]) -> None:
    """Print the tables of a finished experiment."""
    console = Console()
    table = Table(title="M3: two nodes and a host over MQTT", header_style="bold")
    for title in ("", *(result.name for result in results.values())):
        table.add_column(title, justify="right" if title else "left")
    columns = [cells(result, list(results.values())) for result in results.values()]
    for index, title in enumerate(titles(list(results.values()))):
        table.add_row(title, *(column[index] for column in columns))
    console.print(table)
    for note in NOTES:
        console.print(f"[dim]{note}[/dim]")
    beside = Table(title="Published, and measured here", header_style="bold", show_lines=True)
    for title in ("", "published", "what it counts", "measured"):
        beside.add_column(title)
    for item in comparisons(results):
        beside.add_row(item.figure, item.published, item.meaning, item.measured)
    console.print(beside)
