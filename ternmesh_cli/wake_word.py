"""`ternmesh wake-word`: a board's keyword model for Home Assistant and Wyoming satellites."""

import argparse
import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from ternmesh_cli import process
from ternmesh_cli.process import ExitCode, add_option, real

if TYPE_CHECKING:
    from edge.config import NodeConfig

LISTEN = "tcp://127.0.0.1:10400"
THRESHOLD = 0.8
LOOK_S = 30.0  # between two looks at which model the board has


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
    """Serve until a signal, and after a release its model. ConfigError, ModelError, DataError."""
    from edge.config import read_node_config
    from edge.errors import DataError
    from edge.wake_word import check_address

    check_address(arguments.listen, in_lan=arguments.in_lan)
    config = read_node_config(arguments.config)
    process.set_up_logging(config.log_level)
    try:
        while True:
            asyncio.run(_serve(arguments, config))
    except asyncio.CancelledError:
        return ExitCode.DONE
    except OSError as error:
        raise DataError(f"cannot listen on {arguments.listen}: {error.strerror}") from error


async def _serve(arguments: argparse.Namespace, config: "NodeConfig") -> None:
    """Serve until the board has learned with another model."""
    from edge.errors import ModelError
    from edge.export import learned_on, model_in_use
    from edge.predict.predictor import Predictor
    from edge.wake_word import WakeWordService
    from ternmesh_service.config_file import control_path

    folder = model_in_use(config)
    predictor = Predictor(learned_on(config)[0], config.adapter_path)
    board = control_path(config.state_dir, config.control_socket)
    service = WakeWordService(predictor, arguments.word, arguments.threshold, board)
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    serving = asyncio.ensure_future(service.serve(arguments.listen))
    while not serving.done():
        await asyncio.wait({serving}, timeout=LOOK_S)
        with suppress(ModelError):  # no adapter of the new model yet
            if model_in_use(config) != folder and learned_on(config):
                return
    await serving
