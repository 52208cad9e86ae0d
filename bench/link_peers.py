"""How others move bytes over LoRa frames that get lost: closed forms from their specifications.

No code of theirs is run. Each peer is a function (object bytes, loss) -> Expected. Every frame of
either direction is lost with the same probability, independently; all that is on the air counts,
as bytes of LoRa payload. Timers always fire. Collisions, joining, set-up and closing of sessions
are left out, in the peers' favour.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

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
