"""From a rate target in bytes to the cut and the share of zeros that meet it.

Bytes are those of a packet (or a reference) as MQTT messages: code, heads, seals and length
prefixes. What a node sends now and then (hello) and the host's receipts and announces come on top.
"""

from ternmesh.errors import WireError
from ternmesh.hypervector.coding import bits_per_trit
from ternmesh.hypervector.encoder import SPAN_MAX, SPARE_BYTES
from ternmesh.wire import manifest, pieces, seal, share

PREFIX = 2  # length of a frame in a message
ZEROS_MIN, ZEROS_MAX = 500, 999  # in thousandths: fewer zeros capture less of a Gaussian vector
ROOM_MIN = 16  # bytes of code that make a share worth its head
REFERENCE_HEAD = 140  # bytes of a reference without shares and rows of nodes, at most
COUNTED_ROW = 20  # bytes of a node's row in a reference, about


def up_rate(dimension: int, frame_mtu: int, bytes_max: int, manifests: int = 1) -> tuple[int, int]:
    """Zeros in thousandths and span for packets of `bytes_max`; WireError where none fits."""
    head = manifests * (PREFIX + seal.OVERHEAD + manifest.SIZE_MIN)
    per_share = PREFIX + seal.OVERHEAD + share.HEAD_SIZE
    return _fit(dimension, bytes_max, bytes_max - head, frame_mtu - per_share + PREFIX, per_share)


def down_rate(dimension: int, frame_mtu: int, bytes_max: int, nodes: int) -> tuple[int, int]:
    """The same for references that count `nodes` nodes."""
    carried = pieces.piece_size(frame_mtu)
    inside = bytes_max * carried // (frame_mtu + PREFIX) - REFERENCE_HEAD - COUNTED_ROW * nodes
    per_share = PREFIX + share.HEAD_SIZE
    room = frame_mtu - seal.OVERHEAD - share.HEAD_SIZE
    return _fit(dimension, bytes_max, inside, room, per_share)


def _fit(
    dimension: int, bytes_max: int, left: int, share_room: int, per_share: int
) -> tuple[int, int]:
    """As few shares as possible, filled as far as `left` bytes allow."""
    shares = max(1, -(-left // (share_room + per_share)), -(-dimension // SPAN_MAX))
    room = min(share_room, left // shares - per_share)
    span = -(-dimension // shares)
    for zeros in range(ZEROS_MIN, ZEROS_MAX + 1):
        if room >= ROOM_MIN and bits_per_trit(zeros / 1000) * span <= 8 * (room - SPARE_BYTES):
            return zeros, span
    raise WireError("plan", f"{bytes_max} bytes are too few for {dimension} numbers")
