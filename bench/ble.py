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
from transports.base import HOST, Busy, NotConnected
from transports.ble.settings import BleSettings
from transports.ble.transport import BleTransport
from transports.ble.virtual import VirtualBle

SIZE = 300_000  # bytes
FRAME_MAX = 4096
ATT_MTU = 247  # the largest whose values travel as one link-layer packet
LOSS, BREAKS = 0.05, 3
SEEDS, SEEDS_QUICK = 8, 2
PATIENCE_S = 60.0
PAUSE_S = 0.002  # before a frame is offered again that the link was too busy for


@dataclass(frozen=True, slots=True)
class _Run:
    intact: bool
    wall_s: float
    link_bytes: int
    values: int
    values_lost: int
    reconnects: int
    resent: int


def measure(*, quick: bool) -> Result:
    """Bytes and time per seed with loss and breaks, and on a clean link for comparison."""
    logging.getLogger("transports.ble").setLevel(logging.ERROR)  # It warns of each break.
    seeds = range(SEEDS_QUICK if quick else SEEDS)
    clean = [_run(seed, ATT_MTU, loss=0.0, breaks=0) for seed in seeds]
    lossy = [_run(seed, ATT_MTU, loss=LOSS, breaks=BREAKS) for seed in seeds]
    small = [] if quick else [_run(seed, 23, loss=LOSS, breaks=BREAKS) for seed in seeds]
    figures = {
        "intact": Figure(_share_intact([*lossy, *small]), ">=1"),
        "reconnects": Figure(min(run.reconnects for run in [*lossy, *small]), f">={BREAKS}"),
        "values_lost_share": mean_figure([run.values_lost / run.values for run in lossy]),
        "link_bytes_per_byte": mean_figure([run.link_bytes / SIZE for run in lossy], "<=1.2"),
        "link_bytes_per_byte_clean": mean_figure([run.link_bytes / SIZE for run in clean]),
        "wall_s": mean_figure([run.wall_s for run in lossy]),
        "wall_s_clean": mean_figure([run.wall_s for run in clean]),
    }
    if small:
        per_byte = [run.link_bytes / SIZE for run in small]
        figures["link_bytes_per_byte_mtu_23"] = mean_figure(per_byte)
        figures["wall_s_mtu_23"] = mean_figure([run.wall_s for run in small])
    notes = (
        f"simulated link, ATT MTU {ATT_MTU} unless said; seconds are those of this machine, with "
        "three pauses of half a second to one before reconnecting, and not those of a radio",
        f"loss {LOSS:.0%} of all values both ways, {BREAKS} disconnects; frames of 1 to "
        f"{FRAME_MAX} bytes; each arrived once and in order",
        "the bleak adapter has not met hardware and is not measured here",
    )
    details = {"resent": [run.resent for run in lossy], "values": [run.values for run in lossy]}
    return Result("ble", figures, {}, notes, details, quick=quick)


def _share_intact(runs: Sequence[_Run]) -> float:
    return sum(run.intact for run in runs) / len(runs)


def _run(seed: int, att_mtu: int, *, loss: float, breaks: int) -> _Run:
    rng = random.Random(seed)
    frames = _frames(rng)
    with VirtualBle(rng, central_mtu=att_mtu) as link:
        node = BleTransport(BleSettings("board", HOST), link.central, link.loop, rng)
        host = BleTransport(BleSettings(HOST, "board"), link.bridge, link.loop, rng)
        link.set_loss(loss)
        for end in (host, node):
            end.open()
        begun = time.monotonic()
        sending = threading.Thread(target=_send, args=(node, frames, begun + PATIENCE_S))
        sending.start()
        arrived: list[bytes] = []
        received = 0
        while received < SIZE and time.monotonic() < begun + PATIENCE_S:
            arrival = host.receive(0.05)
            if arrival is not None:
                arrived += arrival.frames
                received += sum(map(len, arrival.frames))
            due = received * (BREAKS + 1) > SIZE * (BREAKS + 1 - breaks)
            if breaks and due and node.connected and host.connected:
                link.break_connection()
                breaks -= 1
        wall_s = time.monotonic() - begun
        sending.join()
        status = node.status()
        for end in (node, host):
            end.close()
    counters = link.link.counters
    return _Run(
        arrived == frames,
        wall_s,
        counters.packet_bytes,
        counters.values,
        counters.values_lost,
        int(str(status["reconnects"])),
        int(str(status["resent"])),
    )


def _frames(rng: random.Random) -> list[bytes]:
    frames, left = [], SIZE
    while left:
        frames.append(rng.randbytes(min(left, rng.randint(1, FRAME_MAX))))
        left -= len(frames[-1])
    return frames


def _send(node: BleTransport, frames: Sequence[bytes], deadline: float) -> None:
    for frame in frames:
        while time.monotonic() < deadline:
            try:
                node.send(HOST, [frame])
                break
            except (Busy, NotConnected):
                time.sleep(PAUSE_S)
