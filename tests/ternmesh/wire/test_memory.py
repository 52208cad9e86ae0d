"""Refusing hostile input costs little memory, whatever lengths it claims."""

import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from ternmesh.codec.entropy_coder import decode_trits
from ternmesh.errors import WireError
from ternmesh.federated.open_round import UpdateReassembler
from ternmesh.plan import make_plan
from ternmesh.wire import control, fragments
from ternmesh.wire.frame import open_seal
from ternmesh.wire.global_update import read_object, split_certificate
from ternmesh.wire.update import read_chunk, read_manifest

# Above this, whatever at most 64 KiB of input says. The widest is a share of 4 KiB whose bits are
# unpacked to bytes and then counted in int64 arrays.
PEAK_MAX = 768 * 1024
SLICE = 20_000

PLAN = make_plan(SLICE, rounds=3, local_steps=1, learning_rate=0.1, frame_mtu=4096, up_zeros=0.99)


def open_chunk(body: bytes) -> None:
    decode_trits(read_chunk(body).slice.coded, SLICE)


def take_body(body: bytes) -> None:
    UpdateReassembler(PLAN, bytes(8), 0).add(body)


def take_fragments(data: bytes) -> None:
    assembly = fragments.Reassembler(184, object_max=1 << 26)
    for start in range(0, len(data), 170):
        assembly.add(b"\x04" + data[start : start + 4] + b"\xff\xff\xff\x03\x05\x00" + data[:160])


READERS: dict[str, Callable[[bytes], object]] = {
    "seal": open_seal,
    "control": control.read_control,
    "manifest": read_manifest,
    "share": open_chunk,
    "intake": take_body,
    "pieces": take_fragments,
    "object": lambda data: read_object(data, SLICE),
    "certificate": split_certificate,
}


def inputs() -> dict[str, bytes]:
    rng = random.Random(5)
    made = {f"random {size}": rng.randbytes(size) for size in (20, 4082, 65_536)}
    ones = b"\xff" * 4072
    made |= {
        "a share of ones": bytes.fromhex("02 0000 0000 0004 ffff 00") + ones,
        "a share of zeros": bytes.fromhex("02 0000 0000 0004 0100 00") + bytes(4072),
        "a share of ones and shifts": bytes.fromhex("02 0000 0000 0004 ffff 0f") + ones,
        "votes": bytes.fromhex("02 0000 0000 0004 0020 40") + ones,
        "dense": bytes.fromhex("02 0000 0000 0004 0100 80") + bytes(4000),
        "an array bomb": b"\x01\x9a\x00\x01\x00\x00" + b"\x00" * 1000,
        "arrays in arrays": b"\x01" + b"\x81" * 1000,
        "a bytes bomb": b"\x01\x5a\x7f\xff\xff\xff" + b"\x00" * 1000,
        "a head bomb": b"\x01\x00\x00\x0f\x00" + b"\x9a\x00\x01\x00\x00" + bytes(65_000),
        "a head of small arrays": b"\x01\x00\xf0\x00\x00\x99\xef\xfd" + b"\x80" * 65_000,
        "a snapshot": b"\x02\x01\x00\x00\x00\x80" + bytes(65_000),
    }
    return made


@pytest.mark.parametrize("name", READERS)
def test_the_peak_while_refusing_is_bounded(name: str) -> None:  # R1-2
    read = READERS[name]
    np.zeros(1)
    for label, data in inputs().items():
        tracemalloc.start()
        with suppress(WireError):
            read(data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak <= PEAK_MAX, f"{name} of {label}: {peak} bytes"
