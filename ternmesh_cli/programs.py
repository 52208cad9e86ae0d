"""`ternmesh host`, `node` and `gateway`: the programs of a fleet. Each runs until a signal."""

import argparse
import cProfile
import pstats
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ternmesh.config import ConfigError
from ternmesh.extras import installed
from ternmesh_cli import keys, process
from ternmesh_service import commands
from ternmesh_service.control_socket import RETURN, ControlError

if TYPE_CHECKING:
    from host.config import HostKnowledgeConfig
    from host.knowledge import Predictions


PROFILE_ROWS = 100


def add_node_arguments(parser: argparse.ArgumentParser) -> None:
    _add_arguments(parser, "node")


def add_gateway_arguments(parser: argparse.ArgumentParser) -> None:
    _add_arguments(parser, "gateway")


def add_host_arguments(parser: argparse.ArgumentParser) -> None:
    _add_arguments(parser, "host")
    what = "exit when the run is over and the boards have had time to fetch the last update"
    parser.add_argument("--until-finished", action="store_true", help=what)
    which = parser.add_mutually_exclusive_group()
    what = (
        "discard a stored run of another model or another [run], or one with a damaged file, and "
        "begin from nothing; a run of the same model and [run] continues"
    )
    which.add_argument("--new-run", action="store_true", help=what)
    what = "if the stored run is finished, begin another with what it has learned"
    which.add_argument("--continue", dest="after_end", action="store_true", help=what)
    what = "tell the running host to go back to an older global adapter, and exit"
    which.add_argument("--return-to", type=int, metavar="VERSION", help=what)


def read_program(kind: str, path: Path) -> Any:
    """The settings of a "host", "node" or "gateway", by its own reader; ConfigError."""
    if (other := commands.kind_of(str(path))) not in ("", kind):
        given, needed = (name.replace("node", "board") for name in (other, kind))
        raise ConfigError(f"{path} is of a {given}: give that of a {needed} (a host has no name)")
    match kind:
        case "host":
            from host.config import read_host_config

            return read_host_config(path)
        case "gateway":
            from edge.gateway.service import read_gateway_config

            return read_gateway_config(path)
        case _:
            from edge.config import read_node_config

            return read_node_config(path)


def _add_arguments(parser: argparse.ArgumentParser, kind: str) -> None:
    parser.set_defaults(run=_run, kind=kind)
    process.add_config(parser)
    process.add_insecure(parser)
    what = "write a table of what took how long to FILE when the program ends"
    parser.add_argument("--profile", type=process.path, metavar="FILE", help=what)


@contextmanager
def profiled(path: Path | None) -> Iterator[None]:
    """Write the calls of this thread, the longest first, where there is a `path`."""
    if path is None:
        yield
        return
    with cProfile.Profile() as profiler, path.open("w") as file:  # refused before, not after
        try:
            yield
        finally:
            profiler.disable()
            statistics = pstats.Stats(profiler, stream=file)
            statistics.sort_stats(pstats.SortKey.CUMULATIVE).print_stats(PROFILE_ROWS)


def _open_predictions(model: Path, config: "HostKnowledgeConfig") -> "Predictions":
    """What a group's model says of the probe set; ConfigError, also without onnxruntime."""
    with installed("edge", "run.groups needs onnxruntime", ConfigError):
        from edge.data.sources import NpzSettings
        from edge.knowledge import open_probe_predictions
    settings = NpzSettings(config.arrays, config.where, config.divide_by)
    return open_probe_predictions(model, Path(str(config.path)), settings, config.identity)


def _return(path: Path, version: int) -> int:
    answer = keys.read(path).ask({RETURN: version})
    if answer is None:
        raise ControlError("the host does not run: start it first")
    if "said" not in answer:
        raise ControlError("the host that answers has an older ternmesh: it goes back nowhere")
    print(answer["said"])
    return 0


def _run(arguments: argparse.Namespace) -> int:
    config = read_program(arguments.kind, arguments.config)
    if getattr(arguments, "return_to", None) is not None:
        return _return(arguments.config, arguments.return_to)
    stop = process.start(config.log_level)
    with profiled(arguments.profile):
        _serve(arguments, config, stop)
    if arguments.profile and arguments.kind == "node":
        from edge.export import model_in_use
        from edge.onnx.session import load_model, operator_times

        with arguments.profile.open("a") as file:
            settings, loaded = config.training, load_model(model_in_use(config))
            file.write(operator_times(loaded, settings.threads, settings.provider))
    return 0


def _serve(arguments: argparse.Namespace, config: Any, stop: threading.Event) -> None:
    match arguments.kind:
        case "host":
            from host.groups import run_groups
            from host.service import run_host

            options = {
                "until_finished": arguments.until_finished,
                "new_run": arguments.new_run,
                "after_end": arguments.after_end,
                "insecure": arguments.insecure,
            }
            if config.run.groups:
                run_groups(config, stop, _open_predictions, **options)
            else:
                run_host(config, stop, **options)
        case "gateway":
            from edge.gateway.service import run_gateway

            run_gateway(config, stop, insecure=arguments.insecure)
        case _:
            from edge.service import run_node

            run_node(config, stop, insecure=arguments.insecure)
