"""`ternmesh ble emulate`: Bluetooth controllers on a simulated medium, until told to stop."""

import argparse
import json
import random
import sys

from ternmesh.config import ConfigError
from ternmesh_cli import process
from ternmesh_cli.arguments import number, real

CONTROLLERS_MAX = 100
SIMULATED = "These controllers are simulated: there is no hardware, and nothing is transmitted."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ternmesh ble emulate`."""
    parser.add_argument(
        "--controllers",
        type=number(1, CONTROLLERS_MAX),
        default=2,
        help="how many: one for each board and one for each bridge (default: 2)",
    )
    parser.add_argument(
        "--port",
        type=number(0, 65_535),
        default=0,
        help="TCP port of the first, the others follow (default: any that are free)",
    )
    parser.add_argument(
        "--loss",
        type=real(0, 1),
        default=0.0,
        help="share of values that are lost, as in full buffers (default: 0)",
    )
    parser.add_argument("--seed", type=number(0, 2**32 - 1), default=0, help="of losses")
    parser.add_argument("--json", action="store_true", help="one JSON object with all names")


def run(arguments: argparse.Namespace) -> int:
    """Print what to write as `hci`, and emulate; returns the exit code."""
    from transports.ble.controllers import VirtualControllers  # only where the extra is

    stop = process.stop_on_signals()
    rng = random.Random(arguments.seed)
    count, port = arguments.controllers, arguments.port
    try:
        with VirtualControllers(count, loss=arguments.loss, rng=rng, port=port) as virtual:
            _tell(virtual.names, as_json=arguments.json)
            stop.wait()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot emulate controllers: {error}") from error
    return 0


def _tell(names: list[str], *, as_json: bool) -> None:
    print(SIMULATED, file=sys.stderr)
    print(
        json.dumps({"simulated": True, "hci": names}) if as_json else "\n".join(names), flush=True
    )
