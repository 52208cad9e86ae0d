"""`ternmesh radio emulate`: radio modems on pseudo-terminals, until told to stop."""

import argparse
import json
import sys
from pathlib import Path

from ternmesh.config import ConfigError
from ternmesh.link.airtime import BANDWIDTHS_KHZ, CODING_RATES, SPREADING_FACTORS, LoraSetting
from ternmesh_cli import process
from ternmesh_cli.arguments import number, real
from transports.serial_lora.emulator.radios import LONG_FAST, EmulatedRadios, new_modem
from transports.serial_lora.settings import DIALECTS

MODEMS_MAX = 100
SPEED_MAX = 1000.0
SIMULATED = "These modems are simulated: there is no hardware, and nothing is transmitted."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ternmesh radio emulate`."""
    parser.add_argument(
        "--modems", type=number(1, MODEMS_MAX), default=3, help="how many (default: 3)"
    )
    parser.add_argument(
        "--dialect", choices=DIALECTS, default="reyax", help="what they speak (default: reyax)"
    )
    parser.add_argument(
        "--loss", type=real(0, 1), default=0.0, help="share of frames each one loses (default: 0)"
    )
    parser.add_argument(
        "--collisions", action="store_true", help="frames that overlap on the air are lost"
    )
    parser.add_argument(
        "--speed",
        type=real(0.01, SPEED_MAX),
        default=1.0,
        help="radio seconds in a second; hosts need the same `speed` (default: 1)",
    )
    parser.add_argument("--seed", type=number(0, 2**32 - 1), default=0, help="of losses")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where the paths are (default: a new folder)"
    )
    parser.add_argument(
        "--text-only", action="store_true", help="reyax: modems that do not carry every byte"
    )
    parser.add_argument(
        "--air-rate", type=number(300, 62_500), default=2400, help="ebyte: bit/s (default: 2400)"
    )
    radio = parser.add_argument_group("meshtastic: what its own tools have set (default: LongFast)")
    factor, bandwidth = LONG_FAST.spreading_factor, LONG_FAST.bandwidth_khz
    radio.add_argument("--sf", type=int, choices=SPREADING_FACTORS, default=factor)
    radio.add_argument("--bandwidth", type=int, choices=BANDWIDTHS_KHZ, default=bandwidth)
    radio.add_argument("--coding-rate", type=int, choices=CODING_RATES, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object with all paths")


def run(arguments: argparse.Namespace) -> int:
    """Print the paths and emulate; returns the exit code."""
    stop = process.stop_on_signals()
    try:
        if arguments.folder:
            arguments.folder.mkdir(parents=True, exist_ok=True)
        radios = _radios(arguments)
        try:
            radios.start()
            _tell(radios, arguments)
            stop.wait()
        finally:
            radios.close()
    except OSError as error:
        raise ConfigError(f"cannot make pseudo-terminals: {error}") from error
    return 0


def _tell(radios: EmulatedRadios, arguments: argparse.Namespace) -> None:
    print(SIMULATED, file=sys.stderr)
    if arguments.json:
        told = {"simulated": True, "dialect": arguments.dialect, "speed": radios.speed}
        print(json.dumps(told | {"ports": radios.paths}), flush=True)
    else:
        print("\n".join(radios.paths), flush=True)


def _radios(arguments: argparse.Namespace) -> EmulatedRadios:
    setting = LoraSetting(
        arguments.sf, arguments.bandwidth, arguments.coding_rate, LONG_FAST.preamble_symbols
    )
    modems = [
        new_modem(
            arguments.dialect,
            index,
            radio=setting,
            air_rate_bps=arguments.air_rate,
            binary_safe=not arguments.text_only,
        )
        for index in range(arguments.modems)
    ]
    return EmulatedRadios(
        modems,
        speed=arguments.speed,
        loss=arguments.loss,
        collisions=arguments.collisions,
        seed=arguments.seed,
        folder=arguments.folder,
    )
