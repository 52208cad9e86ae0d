"""`ternmesh ble emulate`: Bluetooth controllers on a simulated medium, until a signal."""

import argparse
import json
import random
import sys

from ternmesh.config import ConfigError
from ternmesh_cli import process
from ternmesh_cli.process import add_option, number, real

CONTROLLERS_MAX = 100
SIMULATED = "These controllers are simulated: there is no hardware, and nothing is transmitted."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    summary = "Bluetooth controllers over TCP, to try BLE without hardware"
    emulate = process.Subcommands(parser).add("emulate", summary, _emulate)
    what = "how many: one for each board and one for each bridge"
    add_option(emulate, "--controllers", number(1, CONTROLLERS_MAX), 2, what)
    emulate.add_argument(
        "--port",
        type=number(0, 65_535),
        default=0,
        help="TCP port of the first; the others follow (default: free ports)",
    )
    what = "fraction of values that are lost, as when buffers are full"
    add_option(emulate, "--loss", real(0, 1), 0.0, what)
    process.add_seed(emulate)
    process.add_json(emulate)


def _emulate(arguments: argparse.Namespace) -> int:
    """Print what to write as `hci` in a configuration, and emulate."""
    from transports.ble.simulated import VirtualControllers  # needs an optional package

    stop = process.stop_on_signals()
    try:
        with VirtualControllers(
            arguments.controllers,
            loss=arguments.loss,
            rng=random.Random(arguments.seed),
            port=arguments.port,
        ) as virtual:
            print(SIMULATED, file=sys.stderr)
            answer = json.dumps({"simulated": True, "hci": virtual.names})
            print(answer if arguments.json else "\n".join(virtual.names), flush=True)
            stop.wait()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot emulate controllers: {error}") from error
    return 0
