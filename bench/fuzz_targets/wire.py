"""Bodies and objects of SPEC.md sections 3 to 5: what reads as a value is written as it came."""

import hashlib
import struct
from collections.abc import Iterator

import numpy as np

from bench.fuzz_targets.target import Target, joined, number, parts, same
from ternmesh import plan
from ternmesh.errors import WireError
from ternmesh.swarm import bitmap
from ternmesh.swarm.step import encode_update
from ternmesh.wire import control, manifest, pieces, reference, seal, share

MODEL = bytes(range(32))
DIMENSION = 64
PLAN = plan.make_plan(
    DIMENSION, rounds=3, local_steps=1, learning_rate=0.1, frame_mtu=164, up_zeros=0.5
)
SHARES_MAX = 64
OBJECT_MTU, OBJECT_MAX = 64, 1 << 14


def shares(count: int = 4) -> list[bytes]:
    """Share bodies of updates for `PLAN`, of several densities."""
    rng = np.random.default_rng(1)
    vectors = [rng.standard_normal(DIMENSION).astype(np.float32) * 0.1 for _ in range(count)]
    return [body for vector in vectors for body in encode_update(vector, MODEL, 0, PLAN)]


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
    """A node's, and one with contributors."""
    own = manifest.Manifest(1, MODEL[:8], 10, b"abcd", 3)
    bundled = manifest.Manifest(2, MODEL[:8], 10, b"abcd", 3, (4, 5, 600))
    return [manifest.write_manifest(own), manifest.write_manifest(bundled)]


def objects() -> list[bytes]:
    """A reference and a snapshot, with a certificate."""
    counted = (reference.Counted(3, 0, b"abcd", b"\x01"),)
    fields = (1, bytes(16), MODEL[:8], False, 60_000, counted)
    step = reference.Reference(*fields, tuple(shares(1)))
    whole = reference.Snapshot(*fields, np.arange(DIMENSION, dtype=np.int32))
    written = (reference.write_reference(step), reference.write_snapshot(whole))
    return [reference.certify(content) for content in written]


def bodies() -> list[bytes]:
    """One of each kind that travels in a frame."""
    return [*controls(), *manifests(), *shares(2), *pieces.cut(bytes(200), OBJECT_MTU)]


def _check_seal(data: bytes) -> None:
    with_tag = data + hashlib.sha256(data).digest()[: seal.TAG_SIZE]
    for frame in (data, with_tag):
        try:
            header, body = seal.open_seal(frame)
        except WireError:
            continue
        same(seal.seal(header, body), frame, "a frame")


def _check_control(data: bytes) -> None:
    same(control.write_control(control.read_control(data)), data, "a control message")


def _check_manifest(data: bytes) -> None:
    same(manifest.write_manifest(manifest.read_manifest(data)), data, "a manifest")


def _check_share(data: bytes) -> None:
    item = share.read_share(data)
    same(share.write_share(item.round_low, item.slice), data, "a share")


def _check_pieces(data: bytes) -> None:
    assembly = pieces.Assembly(OBJECT_MTU, OBJECT_MAX)
    for body in parts(data):
        try:
            assembly.add(body)
        except WireError:
            continue
    assembly, content = pieces.Assembly(OBJECT_MTU, OBJECT_MAX), data[:512]
    for body in reversed(pieces.cut(content, OBJECT_MTU)):
        whole = assembly.add(body)
        if whole is not None:
            same(whole, content, "an object in pieces")


def _check_reference(data: bytes) -> None:
    content, certificate = reference.split_certificate(data)
    same(reference.certify(content, certificate), data, "a certificate")
    match reference.read_object(content, DIMENSION):
        case reference.Reference() as step:
            same(reference.write_reference(step), content, "a reference")
        case reference.Snapshot() as whole:
            same(reference.write_snapshot(whole), content, "a snapshot")


def _check_plan(data: bytes) -> None:
    count = len(data) // 4
    numbers = struct.unpack_from(f"<{count}I", data)
    found = plan.from_numbers(numbers)
    same(plan.to_numbers(found), numbers, "a plan")
    if not 1 <= found.up.count <= plan.SLICES_MAX or not 1 <= found.down.count <= plan.SLICES_MAX:
        raise AssertionError("a plan of no or too many slices")
    if found.share_room < 1 or not 0 <= found.learning_rate(found.rounds - 1) <= 10:
        raise AssertionError("a plan that nobody can follow")
    plan.genesis(MODEL, bytes(8), found)


def _plans() -> Iterator[bytes]:
    for item in (PLAN, plan.make_plan(15_312, rounds=20, local_steps=8, learning_rate=0.002)):
        numbers = plan.to_numbers(item)
        yield struct.pack(f"<{len(numbers)}I", *numbers)


def _check_bitmap(data: bytes) -> None:
    count = number(data, 0, 1)
    bits = bitmap.read_bitmap(data[1:], count)
    same(bitmap.write_bitmap(np.flatnonzero(bits), count), data[1:], "a bitmap")


TARGETS = (
    Target("seal", _check_seal, lambda: [seal.seal(seal.Header(3, 9), b) for b in bodies()]),
    Target("control", _check_control, controls),
    Target("manifest", _check_manifest, manifests),
    Target("share", _check_share, shares),
    Target("pieces", _check_pieces, lambda: [joined(pieces.cut(bytes(200), OBJECT_MTU))]),
    Target("reference", _check_reference, objects),
    Target("plan", _check_plan, _plans),
    Target("bitmap", _check_bitmap, lambda: [b"\x0b\xff\x07"]),
)
