"""`ternmesh wake-word`: a board's keyword model for Home Assistant and Wyoming satellites."""

import argparse
import asyncio
import signal
from contextlib import suppress
from functools import partial

from ternmesh_cli import process
from ternmesh_cli.process import ExitCode, add_option, real

LISTEN = "tcp://127.0.0.1:10400"
THRESHOLD = 0.8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    process.add_config(parser, "node.toml of a board that has run")
    what = f"where it listens (default: {LISTEN})"
    parser.add_argument("--listen", default=LISTEN, metavar="URI", help=what)
    what = "allow an address that others reach: the protocol has no password"
    parser.add_argument("--in-lan", action="store_true", help=what)
    what = "a word of the model; may be repeated (default: all of them)"
    parser.add_argument("--word", action="append", default=[], help=what)
    add_option(parser, "--threshold", real(0, 1), THRESHOLD, "least probability of a word")


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal. ConfigError, ModelError, DataError."""
    from edge.config import read_node_config
    from edge.export import learned_on, model_in_use
    from edge.predict.predictor import Predictor
    from edge.wake_word import WakeWordService, check_address, serve_newest
    from ternmesh_service.config_file import control_path

    check_address(arguments.listen, in_lan=arguments.in_lan)
    config = read_node_config(arguments.config)
    board = control_path(config.state_dir, config.control_socket)
    process.set_up_logging(config.log_level)

    def make() -> WakeWordService:
        predictor = Predictor(learned_on(config)[0], config.adapter_path)
        return WakeWordService(predictor, arguments.word, arguments.threshold, board)

    async def serve() -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await serve_newest(make, partial(model_in_use, config), arguments.listen)

    with suppress(asyncio.CancelledError):
        asyncio.run(serve())
    return ExitCode.DONE
