"""300 kB over a BLE link that loses a value in twenty and breaks three times: intact, at what cost.

Two `BleTransport`, a board's and a bridge's, over bumble's host stack in this process. The link is
simulated: no radio, no airtime. Bytes are those handed to the link layer, L2CAP and ATT included.
"""

import logging
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.result import Figure, Result, mean_figure
from tests.virtual_ble import VirtualBle
from transports.base import HOST, Busy, NotConnected
from transports.ble.config import BleSettings
from transports.ble.transport import BleTransport

SIZE = 300_000  # bytes
FRAME_MAX = 4096
ATT_MTU = 247  # the largest whose values travel as one link-layer packet
LOSS, BREAKS = 0.05, 3
SEEDS, SEEDS_QUICK = 8, 2
PATIENCE_S = 60.0
PAUSE_S = 0.002  # before a frame is offered again that the link was too busy for
NOTES = (
    f"simulated link, ATT MTU {ATT_MTU}; seconds are those of this machine, with "
    "three pauses of half a second to one before reconnecting, and not those of a radio",
    f"loss {LOSS:.0%} of all values both ways, {BREAKS} disconnects; frames of 1 to "
    f"{FRAME_MAX} bytes; each arrived once and in order",
    "the bleak adapter has not met hardware and is not measured here",
)


@dataclass(frozen=True, slots=True)
class Run:
    """One transfer."""

    intact: bool
    wall_s: float
    bytes_per_byte: float  # link-layer bytes for each byte of the frames
    lost_share: float  # of values
    reconnects: int


def measure(*, quick: bool) -> Result:
    """Bytes and time per seed with loss and breaks, and on a clean link for comparison."""
    logging.getLogger("transports.ble").setLevel(logging.ERROR)  # It warns of each break.
    seeds = range(SEEDS_QUICK if quick else SEEDS)
    arms = {
        "": [_run(seed, LOSS, BREAKS) for seed in seeds],
        "_clean": [_run(seed, 0.0, 0) for seed in seeds],
    }
    broken = arms[""]
    figures = {
        "intact": Figure(sum(run.intact for run in broken) / len(broken), ">=1"),
        "reconnects": Figure(min(run.reconnects for run in broken), f">={BREAKS}"),
        "values_lost_share": mean_figure([run.lost_share for run in arms[""]]),
    }
    for suffix, runs in arms.items():
        limit = None if suffix else "<=1.2"
        per_byte = [run.bytes_per_byte for run in runs]
        figures[f"link_bytes_per_byte{suffix}"] = mean_figure(per_byte, limit)
        figures[f"wall_s{suffix}"] = mean_figure([run.wall_s for run in runs])
    return Result("ble", figures, notes=NOTES, quick=quick)


def _run(seed: int, loss: float, breaks: int) -> Run:
    rng = random.Random(seed)
    frames = _frames(rng)
    arrived: list[bytes] = []
    received = broken = 0
    with VirtualBle(rng, central_mtu=ATT_MTU) as link:
        node = BleTransport(BleSettings("board", HOST), link.central, link.loop, rng)
        host = BleTransport(BleSettings(HOST, "board"), link.bridge, link.loop, rng)
        link.link.loss = loss
        for end in (host, node):
            end.open()
        begun = time.monotonic()
        sending = threading.Thread(target=_send, args=(node, frames, begun + PATIENCE_S))
        sending.start()
        while received < SIZE and time.monotonic() < begun + PATIENCE_S:
            arrival = host.receive(0.05)
            if arrival is not None:
                arrived += arrival.frames
                received += sum(map(len, arrival.frames))
            is_due = broken < breaks and received > SIZE * (broken + 1) / (breaks + 1)
            if is_due and node.connected and host.connected:
                link.break_connection()
                broken += 1
        wall_s = time.monotonic() - begun
        sending.join()
        reconnects = node.status().numbers["reconnects"] or 0
        for end in (node, host):
            end.close()
    counters = link.link.counters
    return Run(
        intact=arrived == frames,
        wall_s=wall_s,
        bytes_per_byte=counters.packet_bytes / SIZE,
        lost_share=counters.values_lost / counters.values,
        reconnects=reconnects,
    )


def _frames(rng: random.Random) -> list[bytes]:
    frames, left = [], SIZE
    while left:
        frames.append(rng.randbytes(min(left, rng.randint(1, FRAME_MAX))))
        left -= len(frames[-1])
    return frames


def _send(node: BleTransport, frames: Sequence[bytes], give_up_at: float) -> None:
    for frame in frames:
        while time.monotonic() < give_up_at:
            try:
                node.send(HOST, [frame])
                break
            except (Busy, NotConnected):
                time.sleep(PAUSE_S)
