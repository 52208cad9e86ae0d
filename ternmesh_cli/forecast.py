"""`ternmesh forecast`: what a fleet on radios learns of one's own data, hour by hour, simulated.

Training and codec are the real ones; links, keys and the order of frames are not there: the hours
follow from the airtime of a round, as `ternmesh radio estimate` counts it.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil, log, sqrt

import numpy as np

from edge.config import read_node_config
from host.config import RunConfig, plan_of, read_host_config
from ternmesh.codec.encoder import zero_residual
from ternmesh.config import ConfigError
from ternmesh.extras import installed
from ternmesh.federated.aggregation import encode_update, make_step
from ternmesh.link.estimate import OFFER_FRAME, STATUS_FRAME, dry_run_s, estimate
from ternmesh.link.ledger import HOUR_S
from ternmesh.plan import COUNTED_ENTRY, GLOBAL_UPDATE_HEAD, LENGTH_PREFIX, Plan
from ternmesh.wire.frame import FRAME_OVERHEAD
from ternmesh.wire.update import MANIFEST_SIZE_MIN
from ternmesh_cli import process
from ternmesh_cli.process import add_option, number
from ternmesh_cli.radio import RadioPath, add_channel, read_channel
from ternmesh_cli.status_text import table
from transports.base import BearerProfile
from transports.factory import LINK_FRAME_MTU

NOTICE, NOTICES = 110, 2  # bytes of what else host and board say to each other in a round
WELCOMES = 6  # frames to each board before the first round: keys twice in each layer, and two more
BOARDS_MAX = 250
REPEATS = 10  # rounds of which the airtime ledger is tried


@dataclass(frozen=True, slots=True)
class Round:
    """A round of the forecast: the share of held-out samples that is right after it."""

    number: int
    hours: float  # since the begin
    accuracy: float | None
    loss: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a round costs, all repeats of lost frames included. Seconds on the air of one end."""

    bytes_up: int
    bytes_down: int
    board_s: float
    host_s: float
    hours: float  # from one global update to the next
    before_h: float  # until all boards have joined


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    what = "settings of a board, for its model and data; of several whose data differ"
    parser.add_argument(
        "--config", type=process.path, nargs="+", required=True, metavar="FILE", help=what
    )
    what = "settings of the host, for [run] (default: those of a new host)"
    parser.add_argument("--host-config", type=process.path, metavar="FILE", help=what)
    add_option(parser, "--boards", number(1, BOARDS_MAX), 6, "those of a file share its data")
    add_channel(parser)
    process.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    configs = list(map(read_node_config, arguments.config))
    if arguments.boards < len(configs):
        raise ConfigError(f"{len(configs)} settings files need as many boards: raise --boards")
    host = arguments.host_config
    wanted = read_host_config(host).run if host else RunConfig()
    with installed("edge", "a forecast needs onnxruntime", ConfigError):
        from edge.export import model_in_use
        from edge.onnx.session import load_model
        from edge.simulation import learn
    loaded = load_model(model_in_use(configs[0]))
    profile = BearerProfile(LINK_FRAME_MTU)
    plan = plan_of(wanted, loaded.package.dimension, profile)
    if not plan.rounds:
        raise ConfigError("a forecast needs a run with an end: give [run] rounds")
    channel, boards = read_channel(arguments), arguments.boards
    cost = traffic(channel, plan, loaded.package.model_hash(), boards)
    if wanted.deadline_s < (least_s := ceil(cost.hours * HOUR_S)) and wanted.min_peers < boards:
        print(
            f"with [run] deadline_s = {wanted.deadline_s:g} the host ends rounds with as few as "
            f"{wanted.min_peers} boards; this forecast is for all: set it to at least {least_s}",
            file=sys.stderr,
        )
    rounds = []
    for number_, (accuracy, loss) in enumerate(learn(configs, loaded, plan, boards), 1):
        rounds.append(Round(number_, cost.before_h + number_ * cost.hours, accuracy, loss))
        print(f"\rround {number_} of {plan.rounds} ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if arguments.json:
        print(json.dumps({"traffic": asdict(cost), "rounds": [asdict(row) for row in rounds]}))
    else:
        print("\n".join(text(channel, cost, rounds)))
    return 0


def text(channel: RadioPath, cost: Traffic, rounds: list[Round]) -> Iterator[str]:
    """What a person reads."""
    shown = [
        (str(row.number), f"{row.hours / 24:.3g}", _share(row.accuracy), f"{row.loss:.3g}")
        for row in rounds
    ]
    yield from table(("round", "days on air", "right", "loss"), shown)
    yield (
        f"a round: {cost.bytes_up:,} bytes up, {cost.bytes_down:,} down, {cost.board_s:.3g} s on "
        f"the air of a board and {cost.host_s:.3g} s of the host, {cost.hours:.3g} hours; one end "
        f"may send for {channel.band.duty_cycle:.2%} of an hour"
    )
    yield "simulated: no radio was there; a mesh that others use is slower"


def _share(accuracy: float | None) -> str:
    return "-" if accuracy is None else f"{accuracy:.1%}"


def traffic(channel: RadioPath, plan: Plan, model_hash: bytes, boards: int) -> Traffic:
    """The cost of a round; a broadcast is repeated until the last board has it."""
    noise = np.random.default_rng(0).standard_normal(plan.dimension).astype(np.float32)
    up, down = (
        sum(len(chunk) + LENGTH_PREFIX for chunk in chunks)
        for chunks in (
            encode_update(noise, model_hash, 1, plan)[0],
            make_step(noise, zero_residual(plan.dimension), model_hash, 1, plan)[0],
        )
    )
    manifest = LENGTH_PREFIX + FRAME_OVERHEAD + MANIFEST_SIZE_MIN
    up += FRAME_OVERHEAD * plan.up.count + manifest
    down += GLOBAL_UPDATE_HEAD + COUNTED_ENTRY * boards
    loss, frame_us = channel.loss, channel.airtime_us
    sent, told = (estimate(size, frame_us, channel.frame_max, loss) for size in (up, down))
    late = sqrt(2 * log(boards) * told.symbols * loss) / (1 - loss) if boards > 1 else 0.0
    offer_us, status_us = frame_us(OFFER_FRAME), frame_us(STATUS_FRAME)
    notice_us = frame_us(min(NOTICE, channel.frame_max))
    board = sent.offers * [offer_us] + sent.frames * [frame_us(sent.frame_bytes)]
    board += told.statuses * [status_us] + NOTICES * [notice_us]
    host = told.offers * [offer_us] + (told.frames + ceil(late)) * [frame_us(told.frame_bytes)]
    host += boards * (sent.statuses * [status_us] + NOTICES * [notice_us])
    shared_s = (sum(host) + boards * sum(board)) * (1 + channel.hops) / 1e6
    hours = max(_pace_s(channel, board), _pace_s(channel, host), shared_s) / HOUR_S
    before_h = _pace_s(channel, boards * WELCOMES * [notice_us]) / HOUR_S
    return Traffic(up, down, sum(board) / 1e6, sum(host) / 1e6, hours, before_h)


def _pace_s(channel: RadioPath, frames_us: list[int]) -> float:
    """How long frames take that are sent again and again: each waits until it fits as a whole."""
    budget_us, hold_s = channel.band.budget_us, channel.hold_s
    first_s, last_s = (dry_run_s(n * frames_us, budget_us, hold_s) for n in (1, 1 + REPEATS))
    return (last_s - first_s) / REPEATS
