"""How others move bytes over LoRa frames that get lost: closed forms from their specifications.

No code of theirs is run. Each peer is a function (object bytes, loss) -> Expected. Every frame of
either direction is lost with the same probability, independently; all that is on the air counts,
as bytes of LoRa payload. Timers always fire. Collisions, joining, set-up and closing of sessions
are left out, in the peers' favour.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt

FRAME_MAX = 255  # bytes of LoRa payload
LORAWAN_HEADER = 13  # MHDR 1, DevAddr 4, FCtrl 1, FCnt 2, FPort 1, MIC 4 (LoRaWAN 1.0.4, chapter 4)


@dataclass(frozen=True, slots=True)
class Expected:
    """The share of transfers that complete, and the mean bytes on the air of one that does."""

    completed: float
    air_bytes: float


Peer = Callable[[int, float], Expected]

TILE = 10  # bytes; this and the following: RFC 9011, section 5.6.2, uplink with RuleID 20
WINDOW_TILES = 63
PACKET_MAX = 4 * WINDOW_TILES * TILE  # 4 windows
SCHC_HEADER = LORAWAN_HEADER + 1  # the RuleID is the FPort; W and FCN are one byte
FRAGMENT_TILES = (FRAME_MAX - SCHC_HEADER) // TILE
RCS = 4  # checksum in the All-1
REPORT = LORAWAN_HEADER + 6  # a window's bitmap ends at its last missing tile, on average the 43rd
REQUESTS_MAX = 9  # the All-1 and MAX_ACK_REQUESTS = 8
ROUNDS_MAX = 200


def schc(size: int, loss: float) -> Expected:
    """SCHC ACK-on-Error (RFC 8724, 8.4.3) by the LoRaWAN uplink profile (RFC 9011, 5.6.2).

    Packets of at most 4 windows of 63 tiles of 10 bytes. After all windows an All-1 with the RCS
    asks for acknowledgement, then up to 8 requests that stay unanswered. Where the RFCs leave a
    choice it is taken in SCHC's favour: the receiver reports every incomplete window at once.
    """
    completed, air_bytes = 1.0, 0.0
    for first in range(0, size, PACKET_MAX):
        packet = _schc_packet(min(PACKET_MAX, size - first), loss)
        completed *= packet.completed
        air_bytes += packet.air_bytes
    return Expected(completed, air_bytes)


def _schc_packet(size: int, loss: float) -> Expected:
    tiles = -(-size // TILE)
    fragments, windows = -(-tiles // FRAGMENT_TILES), -(-tiles // WINDOW_TILES)
    # A fragment is missing after k rounds with the probability loss**k.
    missing = loss ** np.arange(ROUNDS_MAX)
    rounds = float(np.sum(1 - (1 - missing) ** fragments))
    reports = windows * float(np.sum(1 - (1 - missing[1:]) ** (fragments / windows)))
    heard, answered = 1 - loss, (1 - loss) ** 2
    data = (size + fragments * SCHC_HEADER) / heard
    requests = (rounds * SCHC_HEADER + RCS) / answered
    answers = (SCHC_HEADER + reports * REPORT) / heard  # the last one is W, C and padding
    completed = (1 - (1 - answered) ** REQUESTS_MAX) ** rounds
    return Expected(completed, data + requests + answers)


TS004_FRAGMENT = FRAME_MAX - LORAWAN_HEADER - 3  # DataFragment: command 1, session and index 2
TS004_SUCCESS = 0.99


def lorawan_ts004(size: int, loss: float) -> Expected:
    """LoRaWAN fragmented data block transport (TS004), sent blindly with fixed redundancy.

    The sender knows the loss and sends as many coded fragments as make 99 % of transfers succeed.
    The code is an ideal random one over GF(2), better than the published matrix.
    """
    fragments = -(-size // TS004_FRAGMENT)
    step = max(1, fragments // 256)
    for redundancy in count(0, step):
        completed = _ts004_success(fragments, redundancy, loss)
        if completed >= TS004_SUCCESS:
            return Expected(completed, float((fragments + redundancy) * FRAME_MAX))
    raise AssertionError("unreachable")


def _ts004_success(fragments: int, redundancy: int, loss: float) -> float:
    """The probability that the coded fragments that arrive determine those that were lost."""
    lost = _binomial(fragments, loss)
    arrived = _binomial(redundancy, 1 - loss)
    rank = np.concatenate([[1.0], np.cumprod(1 - 2.0 ** -np.arange(1.0, redundancy + 1))])
    return sum(
        float(lost[missing] * (arrived[missing:] * rank[missing:]) @ (1 / rank[: -missing or None]))
        for missing in range(min(fragments, redundancy) + 1)
        if lost[missing] > 1e-9
    )


def _binomial(trials: int, probability: float) -> npt.NDArray[np.float64]:
    """The probability of 0 to `trials` hits."""
    if probability in (0.0, 1.0):
        return np.eye(1, trials + 1, int(probability) * trials).ravel()
    factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, trials + 1)))])
    hits = np.arange(trials + 1)
    choose = factorial[-1] - factorial - factorial[::-1]
    log_share = choose + hits * math.log(probability) + (trials - hits) * math.log1p(-probability)
    return np.asarray(np.exp(log_share))


@dataclass(frozen=True, slots=True)
class StopAndWait:
    """Units of an object one by one, each sent until its acknowledgement is heard."""

    unit: int  # bytes of the object in a frame
    header: int
    ack: int
    sends_max: int

    def __call__(self, size: int, loss: float) -> Expected:
        """The transfer of an object of `size` bytes."""
        delta_q24, answered = -(-size // self.unit), (1 - loss) ** 2
        sends = np.arange(1, self.sends_max + 1)
        chances = answered * (1 - answered) ** (sends - 1)
        mean = float(sends @ chances / chances.sum())
        # Of the sends without an answer these had arrived, and their acknowledgement was lost.
        acks = 1 + (mean - 1) * (1 - loss) / (2 - loss)
        air_bytes = (size + delta_q24 * self.header) * mean + delta_q24 * self.ack * acks
        return Expected(float(chances.sum() ** delta_q24), air_bytes)


PEERS: Mapping[str, Peer] = {
    "schc": schc,
    "lorawan_ts004": lorawan_ts004,
    # Confirmable requests with blocks of 128 bytes (RFC 7252, 4.2 and 4.8; RFC 7959, 2). Header 4,
    # token 4, Uri-Path of one letter 2, Block1 4, payload marker 1; the acknowledgement is header,
    # token and Block1; MAX_RETRANSMIT = 4. IP and UDP are not counted, as if compressed to nothing.
    "coap_block1": StopAndWait(unit=128, header=15, ack=12, sends_max=5),
    # Packets with want_ack to a direct neighbour; one that fails ends the transfer. 233 bytes of
    # data, PacketHeader 16, in Data the port 3, tag and length 3; the acknowledgement is header,
    # port 2, Routing 4, request_id 5, bitfield 2; NUM_RELIABLE_RETX = 3 counts all sends.
    "meshtastic": StopAndWait(unit=233, header=22, ack=29, sends_max=3),
    # The same under a program that hands a packet in again until it is acknowledged.
    "meshtastic_app_retry": StopAndWait(unit=233, header=22, ack=29, sends_max=10_000),
}
LABELS = {
    "ternmesh": "ternmesh",
    "schc": "SCHC ACK-on-Error",
    "lorawan_ts004": "LoRaWAN TS004, 99 %",
    "coap_block1": "CoAP Block1",
    "meshtastic": "Meshtastic, 3 sends",
    "meshtastic_app_retry": "Meshtastic, retried by the app",
}
Curves = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]


def draw(path: Path, curves: Curves) -> None:
    """Plot efficiency over loss, one panel for each size; 0 stands for no point."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(curves), sharey=True)
    for panel, (size, rows) in zip(panels, curves.items(), strict=True):
        for name, points in rows.items():
            shown = [(100 * loss, efficiency) for loss, efficiency in points if efficiency > 0]
            width = 2.6 if name == "ternmesh" else 1.2
            panel.plot(*zip(*shown, strict=True), marker=".", linewidth=width, label=LABELS[name])
        panel.plot([0, 60], [1.0, 0.4], "k:", label="1 - p")
        panel.set_title(f"an object of {size}")
        panel.set_xlabel("frames lost, both directions, %")
        panel.grid(visible=True, alpha=0.3)
        panel.set_ylim(0, 1)
    panels[0].set_ylabel("useful bytes / bytes on the air")
    panels[0].legend(fontsize=7, loc="lower left")
    figure.suptitle("Simulated channel, 255-byte LoRa frames; peers are models")
    figure.savefig(path, metadata={"Software": None})
