"""`ternmesh pipeline`: train a model in stages, on this machine's ranks; plan; identities."""

import argparse
import importlib.util
import json
import socket
import sys
import time
from typing import Any

from host.pipeline.config import PipelineConfig, PipelineError, read_pipeline_config
from host.pipeline.launch import Ranks
from host.pipeline.plan import describe, plan
from host.pipeline.report import PROGRESS, line
from ternmesh.security.identity import Role, identity_text
from ternmesh_cli import process
from ternmesh_cli.pipeline_report import TrainingHistory, write_report
from ternmesh_service.identity_file import make_identity_file, read_identity_file
from ternmesh_store.files import replace_file

PAGE = "report.html"
PAGE_S = 60.0  # between two pages: to draw one costs a core a second of training


def add_arguments(parser: argparse.ArgumentParser) -> None:
    summary = "train, or continue from the last checkpoint"
    commands = process.Subcommands(parser)
    train = commands.add("train", summary, _train)
    process.add_config(train, is_found=False)
    process.add_json(train, "print reports as lines of JSON")
    train.add_argument("--host", help="which host in `addresses` this machine is")
    train.add_argument("--insecure", action="store_true", help="no TLS between machines")

    planning = commands.add("plan", "say which compression a link needs, and what it costs", _plan)
    process.add_config(planning, is_found=False)
    mbit = process.real(0.001, 1e6, "Mbit/s")
    planning.add_argument("--mbit", type=mbit, required=True, help="what a machine can send")
    planning.add_argument("--rtt-ms", type=process.real(0, 1e5, "ms"), required=True)
    planning.add_argument(
        "--micro-batch-ms",
        type=process.real(0.001, 1e7, "ms"),
        help="computing of the slowest stage (default: as the last report says)",
    )
    summary = "print the line for `identities`; make this machine's identity if it has none"
    process.add_config(commands.add("identity", summary, _identity), is_found=False)


def _plan(arguments: argparse.Namespace) -> int:
    config = read_pipeline_config(arguments.config)
    micro_batch_ms = arguments.micro_batch_ms
    if micro_batch_ms is None:
        history = TrainingHistory()
        history.read(config.folder / PROGRESS)
        measured = [row for row in history.steps() if "micro_batch_ms" in row]
        if not measured:
            raise PipelineError("nothing was trained here yet: give --micro-batch-ms")
        micro_batch_ms = max(measured[-1]["micro_batch_ms"])
    print(describe(config, plan(config, arguments.mbit, arguments.rtt_ms, micro_batch_ms)))
    return 0


def _identity(arguments: argparse.Namespace) -> int:
    path = read_pipeline_config(arguments.config).identity_path
    if path.exists():
        identity = read_identity_file(path)
    else:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        identity = make_identity_file(path, socket.gethostname()[:32], Role.HOST)
    print(identity_text(identity.public))
    return 0


def _train(arguments: argparse.Namespace) -> int:
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

    def __init__(self, config: PipelineConfig) -> None:
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
            content = write_report(self._config, self._history, state)
            replace_file(self._config.folder / PAGE, content.encode())
