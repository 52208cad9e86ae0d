"""`ternmesh radio`: estimate what an object costs on a radio channel, and emulate radio modems."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from ternmesh.config import ConfigError
from ternmesh.link.airtime import (
    BANDWIDTHS_KHZ,
    CODING_RATES,
    SPREADING_FACTORS,
    LoraSetting,
    airtime_us,
)
from ternmesh.link.estimate import Estimate, estimate
from ternmesh.link.regions import (
    REGIONS,
    SHORTEST_FRAME,
    RadioChannel,
    SubBand,
    check,
    frame_limit_us,
    longest_frame,
)
from ternmesh_cli import process
from ternmesh_cli.process import add_option, number, real
from transports.base import HOST
from transports.factory import Radio
from transports.serial_lora.emulator.radios import EmulatedRadios, new_modem
from transports.serial_lora.settings import (
    DIALECTS,
    HOP_SETTINGS,
    HOPS_MAX,
    MESHES,
    SerialLoraSettings,
)
from transports.serial_lora.transport import SerialLoraTransport

BYTES_MAX = (1 << 24) - 1
LOSS_MAX = 0.9
PREAMBLE_MAX = 1000
FREQUENCY_MAX_MHZ = 3000
MODEMS_MAX = 100
SPEED_MAX = 1000.0
SIMULATED = "These modems are simulated: there is no hardware, and nothing is transmitted."


@dataclass(frozen=True, slots=True)
class RadioPath:
    """What one end of a fleet may send where."""

    setting: LoraSetting
    band: SubBand  # with the part of the hour that is left for its own frames
    hops: int  # repeaters, which send each frame again
    loss: float  # of a frame, on its whole way
    frame_max: int  # bytes
    airtime_us: Callable[[int], int]  # of a frame of so many bytes
    hold_s: float = 0.0  # for how long the modem may keep a frame


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rows = process.Subcommands(parser)
    summary = "frames, airtime and wall time of an object, before it is sent"
    row = rows.add("estimate", summary, _estimate)
    row.add_argument("--bytes", type=number(1, BYTES_MAX), required=True, help="of the object")
    add_channel(row)
    process.add_json(row)
    summary = "radio modems on pseudo-terminals, to try a fleet without radios"
    _add_emulate_arguments(rows.add("emulate", summary, _emulate))


def add_channel(parser: argparse.ArgumentParser) -> None:
    """The options that `read_channel` reads."""
    what = "the region whose radio law applies"
    parser.add_argument("--region", choices=tuple(REGIONS), required=True, help=what)
    mhz, what = real(0, FREQUENCY_MAX_MHZ, "MHz"), "the middle of the channel, in MHz"
    parser.add_argument("--frequency", type=mhz, required=True, metavar="MHZ", help=what)
    for option, choices, default, unit in (
        ("--sf", SPREADING_FACTORS, 7, "spreading factor"),
        ("--bandwidth", BANDWIDTHS_KHZ, 125, "kHz"),
        ("--coding-rate", CODING_RATES, 1, "1 is 4/5"),
    ):
        what = f"{unit} (default: {default})"
        kind = float if choices is BANDWIDTHS_KHZ else int
        parser.add_argument(option, type=kind, choices=choices, default=default, help=what)
    add_option(parser, "--preamble", number(6, PREAMBLE_MAX), 8, "symbols")
    add_option(parser, "--power", real(-30, 60), 14.0, "dBm")
    what = "fraction of frames that are lost on their way"
    add_option(parser, "--loss", real(0, LOSS_MAX), 0.0, what)
    what = "what the modem adds to a frame (default: nothing)"
    parser.add_argument("--dialect", choices=DIALECTS, help=what)
    add_option(parser, "--hops", number(0, HOPS_MAX), 0, "repeaters of a mesh on the longest way")
    what = "of the hour, what one end takes of a mesh, all repeats counted; 1: it is nobody else's"
    add_option(parser, "--share", real(1e-4, 1), 0.01, what)
    process.add_uses(parser, "dialect", {"hops": MESHES, "share": MESHES})


def read_channel(arguments: argparse.Namespace) -> RadioPath:
    """The channel of these options. ChannelError where the law forbids it."""
    process.refuse_unused(arguments)
    setting = LoraSetting(
        arguments.sf, arguments.bandwidth, arguments.coding_rate, arguments.preamble
    )
    frequency_hz, loss = round(arguments.frequency * 1e6), arguments.loss
    band = check(REGIONS[arguments.region], RadioChannel(frequency_hz, setting, arguments.power))
    if arguments.dialect is None:
        frame = longest_frame(band, setting)
        return RadioPath(setting, band, 0, loss, frame, partial(airtime_us, setting))
    key = HOP_SETTINGS.get(arguments.dialect)
    settings = SerialLoraSettings(
        "none", arguments.dialect, HOST, {}, setting, frequency_hz, mesh_share=arguments.share,
        **({key: arguments.hops} if key else {}),
    )  # fmt: skip
    radio = Radio(settings, band)
    band = radio.own_band
    modem = SerialLoraTransport(settings, frame_us_max=frame_limit_us(band))
    if modem.mtu < SHORTEST_FRAME:
        raise ConfigError("no frame fits in its airtime of an hour: lower --sf, or raise --share")
    hops, hold_s = arguments.hops, radio.hold_s
    return RadioPath(setting, band, hops, loss, modem.mtu, modem.airtime_us, hold_s)


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
    channel = read_channel(arguments)
    budget_us = channel.band.budget_us
    frame_us, longest, loss = channel.airtime_us, channel.frame_max, channel.loss
    cost = estimate(arguments.bytes, frame_us, longest, loss, budget_us, channel.hold_s)
    if arguments.json:
        print(json.dumps(_summary(arguments.bytes, arguments.region, channel, cost)))
    else:
        print("\n".join(_text(arguments.bytes, arguments.region, channel, cost)))
    return 0


def _summary(size: int, region: str, channel: RadioPath, cost: Estimate) -> dict[str, object]:
    figures, band = asdict(cost), channel.band
    return {
        "bytes": size,
        "region": region,
        "sub_band": band.name,
        "duty_cycle": band.duty_cycle,
        "airtime_s": figures.pop("airtime_us") / 1e6,
        "reply_airtime_s": figures.pop("reply_airtime_us") / 1e6,
        "hops": channel.hops,
        **figures,
        "wall_s": round(cost.wall_s, 6),
    }


def _text(size: int, region: str, channel: RadioPath, cost: Estimate) -> Iterator[str]:
    band, setting = channel.band, channel.setting
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
    again = f"; {channel.hops} repeaters send all of it again" if channel.hops else ""
    yield f"airtime    {sent}, and {replies} of replies{again}"
    yield f"wall time  {_duration(cost.wall_s)}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, remaining_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min {remaining_s} s" if hours else f"{minutes} min {remaining_s} s"


def _emulate(arguments: argparse.Namespace) -> int:
    """Print the paths of the modems, and emulate them until a signal."""
    process.refuse_unused(arguments)
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
