"""`ternmesh radio`: estimate what an object costs on a radio channel, and emulate radio modems."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from ternmesh.config import ConfigError
from ternmesh.link.airtime import BANDWIDTHS_KHZ, CODING_RATES, SPREADING_FACTORS, LoraSetting
from ternmesh.link.estimate import Estimate, estimate
from ternmesh.link.regions import REGIONS, RadioChannel, SubBand, check, longest_frame
from ternmesh_cli import process
from ternmesh_cli.process import add_option, number, real
from transports.serial_lora.emulator.radios import EmulatedRadios, new_modem
from transports.serial_lora.settings import DIALECTS, HOPS_MAX

BYTES_MAX = (1 << 24) - 1
LOSS_MAX = 0.9
PREAMBLE_MAX = 1000
FREQUENCY_MAX_MHZ = 3000
MODEMS_MAX = 100
SPEED_MAX = 1000.0
SIMULATED = "These modems are simulated: there is no hardware, and nothing is transmitted."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rows = process.Subcommands(parser)
    summary = "frames, airtime and wall time of an object, before it is sent"
    _add_estimate_arguments(rows.add("estimate", summary, _estimate))
    summary = "radio modems on pseudo-terminals, to try a fleet without radios"
    _add_emulate_arguments(rows.add("emulate", summary, _emulate))


def _add_estimate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bytes", type=number(1, BYTES_MAX), required=True, help="of the object")
    what = "the region whose radio law applies"
    parser.add_argument("--region", choices=tuple(REGIONS), required=True, help=what)
    parser.add_argument(
        "--frequency",
        type=real(0, FREQUENCY_MAX_MHZ, "MHz"),
        required=True,
        metavar="MHZ",
        help="the middle of the channel, in MHz",
    )
    for option, choices, default, unit in (
        ("--sf", SPREADING_FACTORS, 7, "spreading factor"),
        ("--bandwidth", BANDWIDTHS_KHZ, 125, "kHz"),
        ("--coding-rate", CODING_RATES, 1, "1 is 4/5"),
    ):
        what = f"{unit} (default: {default})"
        parser.add_argument(option, type=int, choices=choices, default=default, help=what)
    add_option(parser, "--preamble", number(6, PREAMBLE_MAX), 8, "symbols")
    add_option(parser, "--power", real(-30, 60), 14.0, "dBm")
    add_option(parser, "--loss", real(0, LOSS_MAX), 0.0, "fraction of frames that are lost")
    process.add_json(parser)


def _add_emulate_arguments(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--modems", number(1, MODEMS_MAX), 3, "how many")
    what = "the modems' command language (default: rnode)"
    parser.add_argument("--dialect", choices=DIALECTS, default="rnode", help=what)
    add_option(parser, "--loss", real(0, 1), 0.0, "fraction of frames that each modem loses")
    what = "radio seconds in a second; hosts need the same `speed`"
    add_option(parser, "--speed", real(0.01, SPEED_MAX), 1.0, what)
    add_option(parser, "--hops", number(0, HOPS_MAX), 0, "repeaters between the first and others")
    what = "where the paths of the modems are made (default: a new folder)"
    parser.add_argument("--folder", type=Path, metavar="DIR", help=what)
    process.add_uses(parser, "dialect", {"hops": ("meshcore", "meshtastic")})


def _estimate(arguments: argparse.Namespace) -> int:
    """Estimate and print. ChannelError where the law forbids the channel."""
    setting = LoraSetting(
        arguments.sf, arguments.bandwidth, arguments.coding_rate, arguments.preamble
    )
    channel = RadioChannel(round(arguments.frequency * 1e6), setting, arguments.power)
    band = check(REGIONS[arguments.region], channel)
    frame = longest_frame(band, setting)
    cost = estimate(arguments.bytes, setting, frame, arguments.loss, band.budget_us)
    if arguments.json:
        print(json.dumps(_summary(arguments.bytes, arguments.region, band, cost)))
    else:
        print("\n".join(_text(arguments.bytes, arguments.region, band, setting, cost)))
    return 0


def _summary(size: int, region: str, band: SubBand, cost: Estimate) -> dict[str, object]:
    figures = asdict(cost)
    return {
        "bytes": size,
        "region": region,
        "sub_band": band.name,
        "duty_cycle": band.duty_cycle,
        "airtime_s": figures.pop("airtime_us") / 1e6,
        "reply_airtime_s": figures.pop("reply_airtime_us") / 1e6,
        **figures,
        "wall_s": round(cost.wall_s, 6),
    }


def _text(
    size: int, region: str, band: SubBand, setting: LoraSetting, cost: Estimate
) -> Iterator[str]:
    duty = "no duty cycle" if band.budget_us is None else f"duty cycle {100 * band.duty_cycle:g} %"
    yield (
        f"{size:,} bytes, {region} {band.name} ({duty}), "
        f"SF{setting.spreading_factor} at {setting.bandwidth_khz:g} kHz"
    )
    yield (
        f"frames     {cost.frames:,} of {cost.frame_bytes} bytes "
        f"({cost.symbols:,} symbols, {cost.frames - cost.symbols:,} repairs), "
        f"{cost.offers} to offer, {cost.statuses} in reply"
    )
    sent = _duration(cost.airtime_us / 1e6)
    replies = _duration(cost.reply_airtime_us / 1e6)
    yield f"airtime    {sent}, and {replies} of replies"
    yield f"wall time  {_duration(cost.wall_s)}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, remaining_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min {remaining_s} s" if hours else f"{minutes} min {remaining_s} s"


def _emulate(arguments: argparse.Namespace) -> int:
    """Print the paths of the modems, and emulate them until a signal."""
    stop, folder = process.stop_on_signals(), arguments.folder
    modems = [new_modem(arguments.dialect, index) for index in range(arguments.modems)]
    try:
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        with EmulatedRadios(
            modems, speed=arguments.speed, loss=arguments.loss, hops=arguments.hops, folder=folder
        ) as radios:
            print(SIMULATED, file=sys.stderr)
            print("\n".join(radios.paths), flush=True)
            stop.wait()
    except OSError as error:
        raise ConfigError(f"cannot make pseudo-terminals: {error}") from error
    return 0
