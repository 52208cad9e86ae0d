"""`ternmesh pipeline`: train a model in stages, on this machine's ranks; plan; identities."""

import argparse
import socket
from contextlib import suppress
from pathlib import Path

from host.pipeline.config import PipelineError, read_pipeline_config
from host.pipeline.launch import Ranks
from host.pipeline.plan import describe, plan
from host.pipeline.report import PROGRESS, line, parse
from ternmesh.security.identity import Role, identity_text
from ternmesh_cli import process
from ternmesh_service.identity_file import make_identity_file, read_identity_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    summary = "train, or continue from the last checkpoint"
    commands = process.Subcommands(parser)
    train = commands.add("train", summary, _train)
    process.add_config(train, is_found=False)
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
        micro_batch_ms = _measured_ms(config.folder / PROGRESS)
    print(describe(config, plan(config, arguments.mbit, arguments.rtt_ms, micro_batch_ms)))
    return 0


def _measured_ms(progress: Path) -> float:
    """What the slowest stage computes on a micro-batch, by the last report; PipelineError."""
    with suppress(FileNotFoundError):
        for text in reversed(progress.read_bytes().splitlines()):
            if (report := parse(text)) is not None and "micro_batch_ms" in report:
                return float(max(report["micro_batch_ms"]))
    raise PipelineError("nothing was trained here yet: give --micro-batch-ms")


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
        for report in ranks.reports(stop):
            print(line(report), flush=True)
    finally:
        ranks.stop()
    return 0
