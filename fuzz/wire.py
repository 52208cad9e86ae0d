"""Bodies on the wire (SPEC.md sections 3 to 5) as seeds, and the codes inside them."""

import struct
from collections.abc import Iterator

import numpy as np

from fuzz.target import Target, number, parts, same
from ternmesh import plan
from ternmesh.codec import codebook
from ternmesh.codec.entropy_coder import CODEBOOK, Coded, decode_trits, encode_trits
from ternmesh.errors import WireError
from ternmesh.federated.aggregation import encode_update
from ternmesh.link.erasure_code import Decoder, Layout
from ternmesh.wire import activation, control, fragments, release
from ternmesh.wire.update import Manifest, write_manifest

MODEL = bytes(range(32))
DIMENSION = 64
PLAN = plan.make_plan(
    DIMENSION, rounds=3, local_steps=1, learning_rate=0.1, frame_mtu=128, up_zeros=0.5
)
_OBJECT_MTU = 64  # bytes
_SIZE_MAX = 4096  # values of a hypervector
_CODED_HEAD = struct.Struct("<HBH")  # nonzeros, coding, size


def chunks(count: int = 4) -> list[bytes]:
    """Chunks of updates for `PLAN`."""
    rng = np.random.default_rng(1)
    vectors = [rng.standard_normal(DIMENSION).astype(np.float32) * 0.1 for _ in range(count)]
    return [body for vector in vectors for body in encode_update(vector, MODEL, 0, PLAN)[0]]


def controls() -> list[bytes]:
    """One control message of each type."""
    eight, sixteen = b"abcdefgh", bytes(16)
    messages: list[control.Control] = [
        control.Hello("theo", eight, eight, eight, 3, sixteen, 120),
        control.Welcome(eight, 3, eight, 2, 1, 60_000, plan.to_numbers(PLAN)),
        control.Receipt(7, b"abcd", b"\x07"),
        control.Refusal(7, "old round"),
        control.Announce(eight, 2, 1, 5000),
        control.Silent(9),
    ]
    return [control.write_control(message) for message in messages]


def manifests() -> list[bytes]:
    """A board's manifest, and that of an aggregator."""
    own = Manifest(1, MODEL[:8], 10, b"abcd", 3)
    regional = Manifest(2, MODEL[:8], 10, b"abcd", 3, members=600, root=bytes(16), state=bytes(16))
    return [write_manifest(own), write_manifest(regional)]


def bodies() -> list[bytes]:
    """One body of each kind that travels in a frame."""
    own = [*controls(), *manifests(), *chunks(2), *releases()]
    return [*own, *fragments.split(bytes(200), _OBJECT_MTU)]


def releases() -> list[bytes]:
    """The bodies of a release over the link."""
    return [
        release.write_offer(release.ReleaseOffer(MODEL, 900, 90, "tiny", 2, 7, 0, 9, 1, 500)),
        release.write_symbol(release.ReleaseSymbol(MODEL[:2], 3, bytes(90))),
        release.write_status(release.ReleaseStatus(MODEL[:4], release.RECEIVING, (10,))),
        release.write_status(release.ReleaseStatus(MODEL[:4], release.BAD, reason="its loss is 7")),
    ]


def activations() -> list[bytes]:
    """Activations of split training."""
    values = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6)
    items = (
        (activation.Activation(activation.LEARN, 1, values, b"\x00\x02"), 8),
        (activation.Activation(activation.ASK, 9, values[:1]), 4),
        (activation.Activation(activation.ANSWER, 0, values[:, :3]), 4),
        (activation.Activation(activation.GRADIENT, 0, values), 32),
    )
    return [activation.write_activation(item, bits) for item, bits in items]


def _coded() -> Iterator[bytes]:
    rng = np.random.default_rng(2)
    for size, density in ((1, 1.0), (64, 0.1), (200, 0.5), (1000, 0.01), (90, 0.9)):
        vector = ((rng.random(size) < density) * rng.choice([-1, 1], size)).astype(np.int8)
        item = encode_trits(vector)
        yield _CODED_HEAD.pack(item.count, item.coding, size) + item.data
    values = rng.standard_normal(256).astype(np.float32)
    yield _CODED_HEAD.pack(256, CODEBOOK, 256) + codebook.encode(values, 16)[1]


def _check_coding(data: bytes) -> None:
    count, kind, size = _CODED_HEAD.unpack(data[: _CODED_HEAD.size].ljust(_CODED_HEAD.size, b"\0"))
    size %= _SIZE_MAX + 1
    content = data[_CODED_HEAD.size :]
    values = decode_trits(Coded(count, kind, content), size)
    same((values.size, str(values.dtype)), (size, "int8"), "the form of a decoded chunk")
    try:
        decode_trits(Coded(count, kind, content + b"\0"), size)
    except WireError:
        again = decode_trits(encode_trits(values), size)
        same(again.tobytes(), values.tobytes(), "a chunk coded again")
    else:
        raise AssertionError("a chunk with a byte left over was read")


def _check_erasure(data: bytes) -> None:
    decoder = Decoder(Layout(number(data, 0, 2), number(data, 2, 1) % 33), b"name")
    for item in parts(data[3:]):
        decoder.add(number(item, 0, 2), item[2:])


TARGETS = (
    Target("coding", _coded, _check_coding),
    Target("erasure", lambda: [b"\x14\x00\x05\x07\x00\x00abcde"], _check_erasure),
)
