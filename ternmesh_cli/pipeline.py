"""`ternmesh pipeline train`: train a model in stages on this machine's ranks."""

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ternmesh_cli import process
from ternmesh_store.files import replace_file

if TYPE_CHECKING:
    from host.pipeline.config import PipelineConfig

PAGE = "report.html"
PAGE_S = 60.0  # drawing takes a second of a core that trains


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ternmesh pipeline`."""
    rows = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    train = rows.add_parser("train", help="train, or go on from the last checkpoint")
    process.add_arguments(train)
    train.add_argument("--json", action="store_true", help="reports as lines of JSON")


def run(arguments: argparse.Namespace) -> int:
    """Train; returns the exit code."""
    from host.pipeline.config import read_pipeline_config
    from host.pipeline.launch import Ranks
    from host.pipeline.report import line

    config = read_pipeline_config(arguments.config)
    ranks = Ranks(config, arguments.config.resolve())
    stop = process.stop_on_signals()
    ranks.start()
    try:
        page = Page(config)
        try:
            for report in ranks.reports(stop):
                print(json.dumps(report) if arguments.json else line(report), flush=True)
                page.add(report, time.monotonic())
        finally:
            page.end()
    finally:
        ranks.stop()
    return 0


class Page:
    """The report in the state folder, written anew from time to time."""

    def __init__(self, config: "PipelineConfig") -> None:
        from host.pipeline.report import PROGRESS
        from ternmesh_cli.pipeline_report import History

        self._config, self._history = config, History()
        self._history.read(config.folder / PROGRESS)
        self._due = 0.0
        self._can_draw = importlib.util.find_spec("matplotlib") is not None
        if not self._can_draw:
            print("no report: pip install matplotlib", file=sys.stderr)

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._config.folder / PAGE

    def add(self, report: dict[str, Any], now: float) -> None:
        """Take a report, and write the page if it is time."""
        self._history.add(report)
        if now >= self._due and self._history.steps():
            self._write("running")
            self._due = now + PAGE_S

    def end(self) -> None:
        """Write it for the last time."""
        if steps := self._history.steps():
            is_done = steps[-1]["step"] == steps[-1]["steps"]
            self._write("finished" if is_done else "stopped")

    def _write(self, state: str) -> None:
        if self._can_draw:
            from ternmesh_cli.pipeline_report import write_report

            content = write_report(self._config, self._history, state)
            replace_file(self.path, content.encode())
