"""`ternmesh pipeline train`: train a model in stages, on this machine's ranks."""

import argparse
import importlib.util
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from ternmesh_cli import process
from ternmesh_store.files import replace_file

if TYPE_CHECKING:
    from host.pipeline.config import PipelineConfig

PAGE = "report.html"
PAGE_S = 60.0  # between two pages: to draw one costs a core a second of training


def add_arguments(parser: argparse.ArgumentParser) -> None:
    summary = "train, or continue from the last checkpoint"
    train = process.Subcommands(parser).add("train", summary, _train)
    process.add_config(train, is_found=False)
    process.add_json(train, "print reports as lines of JSON")
    train.add_argument("--host", help="which host in `addresses` this machine is")
    train.add_argument("--insecure", action="store_true", help="no TLS between machines")


def _train(arguments: argparse.Namespace) -> int:
    from host.pipeline.config import read_pipeline_config
    from host.pipeline.launch import Ranks
    from host.pipeline.report import line

    config = read_pipeline_config(arguments.config)
    ranks = Ranks(config, arguments.config.resolve(), arguments.host, arguments.insecure)
    stop = process.stop_on_signals()
    ranks.start()
    try:
        page = ReportFile(config)
        try:
            for report in ranks.reports(stop):
                print(json.dumps(report) if arguments.json else line(report), flush=True)
                page.add(report, time.monotonic())
        finally:
            page.end()
    finally:
        ranks.stop()
    return 0


class ReportFile:
    """The HTML report in the state folder, rewritten from time to time."""

    def __init__(self, config: "PipelineConfig") -> None:
        from host.pipeline.report import PROGRESS
        from ternmesh_cli.pipeline_report import TrainingHistory

        self._config = config
        self._history = TrainingHistory()
        self._history.read(config.folder / PROGRESS)
        self._due = 0.0  # monotonic seconds of the next page
        self._can_draw = importlib.util.find_spec("matplotlib") is not None
        if not self._can_draw:
            print("no report: pip install matplotlib", file=sys.stderr)

    def add(self, report: dict[str, Any], now: float) -> None:
        """Add a report, and write the page if it is due."""
        self._history.add(report)
        if now >= self._due and self._history.steps():
            self._write("running")
            self._due = now + PAGE_S

    def end(self) -> None:
        """Write the page for the last time."""
        if steps := self._history.steps():
            is_done = steps[-1]["step"] == steps[-1]["steps"]
            self._write("finished" if is_done else "stopped")

    def _write(self, state: str) -> None:
        if self._can_draw:
            from ternmesh_cli.pipeline_report import write_report

            content = write_report(self._config, self._history, state)
            replace_file(self._config.folder / PAGE, content.encode())
