"""`ternmesh radio estimate`: what an object costs on a channel, or why the channel is refused."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from ternmesh.link.airtime import BANDWIDTHS_KHZ, CODING_RATES, SPREADING_FACTORS, LoraSetting
from ternmesh.link.estimate import Estimate, estimate
from ternmesh.link.ledger import Entry, Ledger
from ternmesh.link.regions import REGIONS, Channel, SubBand, check, longest_frame
from ternmesh_cli.arguments import number, real

BYTES_MAX = (1 << 24) - 1
LOSS_MAX = 0.9
PREAMBLE_MAX = 1000
FREQUENCY_MAX_MHZ = 3000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ternmesh radio estimate`."""
    parser.add_argument("--bytes", type=number(1, BYTES_MAX), required=True, help="of the object")
    parser.add_argument(
        "--region", choices=tuple(REGIONS), required=True, help="whose law must be kept"
    )
    parser.add_argument(
        "--frequency",
        type=real(0, FREQUENCY_MAX_MHZ),
        required=True,
        metavar="MHZ",
        help="the middle of the channel",
    )
    parser.add_argument("--sf", type=int, choices=SPREADING_FACTORS, default=7, help="default: 7")
    parser.add_argument(
        "--bandwidth", type=int, choices=BANDWIDTHS_KHZ, default=125, help="kHz (default: 125)"
    )
    parser.add_argument(
        "--coding-rate", type=int, choices=CODING_RATES, default=1, help="1 is 4/5 (default: 1)"
    )
    parser.add_argument(
        "--preamble", type=number(6, PREAMBLE_MAX), default=8, help="symbols (default: 8)"
    )
    parser.add_argument("--power", type=real(-30, 60), default=14.0, help="dBm (default: 14)")
    parser.add_argument(
        "--hopping", action="store_true", help="the radio hops over at least 50 channels"
    )
    parser.add_argument(
        "--loss", type=real(0, LOSS_MAX), default=0.0, help="share of frames lost (default: 0)"
    )
    parser.add_argument(
        "--spent",
        type=real(0, 3600),
        default=0.0,
        metavar="SECONDS",
        help="airtime used just before (default: 0)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Estimate and print; returns the exit code. ChannelError where the law forbids the channel."""
    setting = LoraSetting(
        arguments.sf, arguments.bandwidth, arguments.coding_rate, arguments.preamble
    )
    channel = Channel(round(arguments.frequency * 1e6), setting, arguments.power, arguments.hopping)
    band = check(REGIONS[arguments.region], channel)
    cost = estimate(
        arguments.bytes,
        setting,
        longest_frame(band, setting),
        arguments.loss,
        _ledger(band, arguments.spent),
    )
    if arguments.json:
        print(json.dumps(_summary(arguments.bytes, arguments.region, band, cost)))
    else:
        print("\n".join(_text(arguments.bytes, arguments.region, band, setting, cost)))
    return 0


def _ledger(band: SubBand, spent_s: float) -> Ledger | None:
    if band.budget_us is None:
        return None
    return Ledger(band.budget_us, [Entry(0.0, round(spent_s * 1e6))])


def _summary(size: int, region: str, band: SubBand, cost: Estimate) -> dict[str, object]:
    figures = asdict(cost)
    airtime_s = {"airtime_s": figures.pop("airtime_us") / 1e6}
    airtime_s["reply_airtime_s"] = figures.pop("reply_airtime_us") / 1e6
    figures["wall_s"] = round(cost.wall_s, 6)
    where = {"region": region, "sub_band": band.name, "duty_cycle": band.duty_cycle}
    return {"bytes": size, **where, **figures, **airtime_s}


def _text(
    size: int, region: str, band: SubBand, setting: LoraSetting, cost: Estimate
) -> Iterator[str]:
    duty = "no duty cycle" if band.budget_us is None else f"duty cycle {100 * band.duty_cycle:g} %"
    yield (
        f"{size:,} bytes, {region} {band.name} ({duty}), "
        f"SF{setting.spreading_factor} at {setting.bandwidth_khz} kHz"
    )
    yield (
        f"frames     {cost.frames:,} of {cost.frame_bytes} bytes "
        f"({cost.symbols:,} symbols, {cost.frames - cost.symbols:,} repairs), "
        f"{cost.offers} to offer, {cost.statuses} in reply"
    )
    sent, replies = _duration(cost.airtime_us / 1e6), _duration(cost.reply_airtime_us / 1e6)
    yield f"airtime    {sent}, and {replies} of replies"
    yield f"wall time  {_duration(cost.wall_s)}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min {rest} s" if hours else f"{minutes} min {rest} s"
