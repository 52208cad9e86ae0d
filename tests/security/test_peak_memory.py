"""What refusing costs: no hostile input of 64 KiB makes a decoder allocate much more than that."""

import random
import tracemalloc
from collections.abc import Iterator
from itertools import islice

import pytest

from fuzz.table import TARGETS
from fuzz.target import Target

INPUT_MAX = 1 << 16  # bytes
MEMORY_MAX = 4 << 20  # bytes that one call may hold at once, the input not counted
PLACES = 4  # of a seed where a length may be
FORMS = (b"\0", b"\xff", b"[", b'{"a":', b"\x81", b"\x03\x00ab", b"+OK\r\n")


def inputs(target: Target) -> Iterator[bytes]:
    """Wide, deep and lying inputs: forms repeated, and seeds with long tails and large lengths."""
    yield random.Random(target.name).randbytes(INPUT_MAX)
    yield b"\x9a\x00\x00\xff\xff" + bytes(INPUT_MAX - 5)  # CBOR: an array of 65,535 items
    for form in FORMS:
        yield form * (INPUT_MAX // len(form))
    for seed in islice(target.seeds(), 1):
        yield seed * (INPUT_MAX // len(seed))
        yield (seed + bytes(INPUT_MAX))[:INPUT_MAX]
        for at in range(min(PLACES, len(seed))):
            yield seed[:at] + b"\xff" * 4 + seed[at + 4 :]


pytestmark = pytest.mark.usefixtures("no_log")


@pytest.mark.parametrize("name", TARGETS)
def test_refusing_takes_little_memory(name: str) -> None:  # R1-2
    target = TARGETS[name]
    for seed in target.seeds():
        target.run(seed)  # What is made once and kept is made before it is measured.
    for data in inputs(target):
        tracemalloc.start()
        target.run(data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak <= MEMORY_MAX, data[:40]
