"""Models of how others move bytes over LoRa frames that get lost: no code of theirs is run.

Each peer is a function (object bytes, loss, rng) -> Transfer. Every frame of either direction is
lost with the same probability, independently; all that is on the air counts, as bytes of LoRa
payload. Timers always fire, so a transfer ends only by success or by the peer's own give-up rule;
collisions, joining, set-up and closing of sessions are left out, in the peers' favour.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

FRAME_MAX = 255  # bytes of LoRa payload
LORAWAN_HEADER = 13  # MHDR 1, DevAddr 4, FCtrl 1, FCnt 2, FPort 1, MIC 4 (LoRaWAN 1.0.4, chapter 4)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Whether all bytes arrived, and what was sent in both directions until then."""

    completed: bool
    air_bytes: int


Peer = Callable[[int, float, np.random.Generator], Transfer]

TILE = 10  # bytes; this and the following: RFC 9011, section 5.6.2, uplink with RuleID 20
WINDOW_TILES = 63
WINDOWS = 4
SCHC_HEADER = LORAWAN_HEADER + 1  # the RuleID is the FPort; W and FCN are one byte
FRAGMENT_TILES = (FRAME_MAX - SCHC_HEADER) // TILE
RCS = 4
ACK_REQUESTS_MAX = 8


def schc(size: int, loss: float, rng: np.random.Generator) -> Transfer:
    """SCHC ACK-on-Error (RFC 8724, 8.4.3) by the LoRaWAN uplink profile (RFC 9011, 5.6.2).

    Packets of at most 4 windows of 63 tiles of 10 bytes. After all windows an All-1 with the RCS
    asks for acknowledgement, then up to MAX_ACK_REQUESTS = 8 requests that stay unanswered. Where
    the RFCs leave a choice it is taken in SCHC's favour: the receiver reports every incomplete
    window at once, bitmaps end at the last missing tile, and an answer resets the count.
    """
    packet_max = WINDOWS * WINDOW_TILES * TILE
    air_bytes = 0
    for first in range(0, size, packet_max):
        packet = _schc_packet(min(packet_max, size - first), loss, rng)
        air_bytes += packet.air_bytes
        if not packet.completed:
            return Transfer(False, air_bytes)
    return Transfer(True, air_bytes)


def _schc_packet(size: int, loss: float, rng: np.random.Generator) -> Transfer:
    held = np.zeros(-(-size // TILE), bool)
    unused = held.size * TILE - size  # of the last tile
    wanted = np.arange(held.size)
    air_bytes = unanswered = 0
    request = SCHC_HEADER + RCS  # the All-1; once it is known to have arrived, an ACK REQ
    while unanswered <= ACK_REQUESTS_MAX:
        for tiles in _fragments(wanted):
            air_bytes += SCHC_HEADER + tiles.size * TILE - unused * bool(tiles[-1] == held.size - 1)
            held[tiles] |= rng.random() >= loss
        wanted = wanted[:0]
        air_bytes += request
        unanswered += 1
        if rng.random() < loss:
            continue
        if held.all():
            air_bytes += SCHC_HEADER  # W, C and padding are one byte
            if rng.random() >= loss:
                return Transfer(True, air_bytes)
            continue
        for missing in _missing_by_window(held):
            air_bytes += LORAWAN_HEADER + -(-(3 + missing[-1] % WINDOW_TILES + 1) // 8)
            if rng.random() >= loss:
                wanted = np.concatenate([wanted, missing])
        if wanted.size:
            request, unanswered = SCHC_HEADER, 0
    return Transfer(False, air_bytes)


Tiles = npt.NDArray[np.int64]  # their places in the packet, ascending


def _fragments(tiles: Tiles) -> list[Tiles]:
    """`tiles` in fragments: consecutive ones, as many as a frame holds."""
    runs = np.split(tiles, np.flatnonzero(np.diff(tiles) != 1) + 1) if tiles.size else []
    return [
        run[at : at + FRAGMENT_TILES] for run in runs for at in range(0, run.size, FRAGMENT_TILES)
    ]


def _missing_by_window(held: npt.NDArray[np.bool_]) -> list[Tiles]:
    missing = np.flatnonzero(~held)
    windows = missing // WINDOW_TILES
    return [missing[windows == window] for window in np.unique(windows)]


TS004_FRAGMENT = FRAME_MAX - LORAWAN_HEADER - 3  # DataFragment: command 1, session and index 2
TS004_SUCCESS = 0.99


def lorawan_ts004(size: int, loss: float, rng: np.random.Generator) -> Transfer:
    """LoRaWAN fragmented data block transport (TS004), sent blindly with fixed redundancy.

    The sender knows the loss and sends as many coded fragments as make 99 % of transfers succeed.
    The code is an ideal random one over GF(2), better than the published matrix.
    """
    fragments = -(-size // TS004_FRAGMENT)
    redundancy = ts004_redundancy(fragments, loss)
    missing = rng.binomial(fragments, loss)
    arrived = rng.binomial(redundancy, 1 - loss)
    completed = missing <= arrived and rng.random() < _full_rank(missing, arrived)
    return Transfer(bool(completed), (fragments + redundancy) * FRAME_MAX)


@lru_cache(maxsize=1024)
def ts004_redundancy(fragments: int, loss: float, success: float = TS004_SUCCESS) -> int:
    """The fewest coded fragments beside `fragments` with which `success` of transfers succeed."""
    enough = 1
    while _ts004_success(fragments, enough, loss) < success:
        enough *= 2
    too_few = -1
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if _ts004_success(fragments, middle, loss) < success:
            too_few = middle
        else:
            enough = middle
    return enough


def _ts004_success(fragments: int, redundancy: int, loss: float) -> float:
    lost = _binomial(fragments, loss)
    arrived = _binomial(redundancy, 1 - loss)
    rank = np.concatenate([[1.0], np.cumprod(1 - 2.0 ** -np.arange(1.0, redundancy + 1))])
    return sum(
        float(lost[missing] * (arrived[missing:] * rank[missing:]) @ (1 / rank[: -missing or None]))
        for missing in range(min(fragments, redundancy) + 1)
        if lost[missing] > 1e-9
    )


def _full_rank(missing: int, arrived: int) -> float:
    """The probability that `arrived` random rows over GF(2) determine `missing` fragments."""
    return math.prod(1 - 2.0 ** (at - arrived) for at in range(missing))


def _binomial(count: int, probability: float) -> npt.NDArray[np.float64]:
    """The probability of 0 to `count` hits."""
    if probability in (0.0, 1.0):
        return np.eye(1, count + 1, int(probability) * count).ravel()
    factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, count + 1)))])
    hits = np.arange(count + 1)
    choose = factorial[-1] - factorial - factorial[::-1]
    misses = count - hits
    log_share = choose + hits * math.log(probability) + misses * math.log1p(-probability)
    return np.asarray(np.exp(log_share))


COAP_BLOCK = 128
# Header 4, token 4, Uri-Path of one letter 2, Block1 with a 12-bit number 4, payload marker 1.
COAP_REQUEST = 15
COAP_ACK = 12  # header 4, token 4, Block1 4
COAP_SENDS = 1 + 4  # MAX_RETRANSMIT = 4


def coap_block1(size: int, loss: float, rng: np.random.Generator) -> Transfer:
    """CoAP Block1 in confirmable requests of 128 bytes (RFC 7252, 4.2 and 4.8; RFC 7959, 2).

    One block at a time; the client gives up after MAX_RETRANSMIT = 4 further sends of one request.
    IP and UDP headers are not counted, as if compressed to nothing.
    """
    return _stop_and_wait(size, COAP_BLOCK, COAP_REQUEST, COAP_ACK, COAP_SENDS, loss, rng)


MESHTASTIC_DATA = 233  # DATA_PAYLOAD_LEN in the firmware's mesh protobufs
MESHTASTIC_HEADER = 16 + 6  # PacketHeader 16; in Data the port 3, tag and length of the payload 3
MESHTASTIC_ACK = 16 + 13  # in Data the port 2, Routing 4, request_id 5, bitfield 2
MESHTASTIC_SENDS = 3  # NUM_RELIABLE_RETX in the firmware's NextHopRouter.h counts all sends
MESHTASTIC_UNICAST_SENDS = 5  # NUM_RELIABLE_UNICAST_ATTEMPTS, in newer firmware


def meshtastic(size: int, loss: float, rng: np.random.Generator) -> Transfer:
    """Meshtastic packets with want_ack to a direct neighbour: three sends, then MAX_RETRANSMIT.

    A packet that fails ends the transfer. Acknowledgements by hearing a rebroadcast play no part.
    """
    return _meshtastic(size, MESHTASTIC_SENDS, loss, rng)


def meshtastic_five_sends(size: int, loss: float, rng: np.random.Generator) -> Transfer:
    """The same with the five sends that newer firmware gives to a directed packet."""
    return _meshtastic(size, MESHTASTIC_UNICAST_SENDS, loss, rng)


def meshtastic_app_retry(size: int, loss: float, rng: np.random.Generator) -> Transfer:
    """The same under a program that hands a packet in again until it is acknowledged."""
    return _meshtastic(size, None, loss, rng)


def _meshtastic(
    size: int, sends_max: int | None, loss: float, rng: np.random.Generator
) -> Transfer:
    return _stop_and_wait(
        size, MESHTASTIC_DATA, MESHTASTIC_HEADER, MESHTASTIC_ACK, sends_max, loss, rng
    )


def _stop_and_wait(
    size: int,
    unit: int,
    header: int,
    ack: int,
    sends_max: int | None,
    loss: float,
    rng: np.random.Generator,
) -> Transfer:
    """Units of an object one by one, each sent until its acknowledgement is heard."""
    count = -(-size // unit)
    sizes = np.full(count, unit + header)
    sizes[-1] -= count * unit - size
    sends = rng.geometric((1 - loss) ** 2, count)
    completed = True
    if sends_max is not None and (sends > sends_max).any():
        completed = False
        count = int(np.argmax(sends > sends_max)) + 1
        sizes, sends = sizes[:count], np.minimum(sends[:count], sends_max)
    heard = count - (not completed)
    # Of the sends that stay unanswered, these had arrived, and their acknowledgement was lost.
    acks = heard + rng.binomial(int(sends.sum()) - heard, (1 - loss) / (2 - loss))
    return Transfer(completed, int((sizes * sends).sum()) + ack * int(acks))


PEERS: Mapping[str, Peer] = {
    "schc": schc,
    "lorawan_ts004": lorawan_ts004,
    "coap_block1": coap_block1,
    "meshtastic": meshtastic,
    "meshtastic_five_sends": meshtastic_five_sends,
    "meshtastic_app_retry": meshtastic_app_retry,
}
