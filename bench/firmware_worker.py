"""Frames through C and Python: `python -m bench.firmware_worker PROGRAM SEED COUNT`.

PROGRAM is the conformance program. Prints one JSON line: cases, and how many differ.
"""

import json
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy as np

from bench.c_cases import FUNCTIONS, ROOM, answer, random_case

BASES, BATCH = 400, 100_000  # valid or changed inputs from which others are made; cases at once
FIXED = {"plain_open": 0, "chunk_decode": 3, "keyed_open": 50}  # bytes in front of the frame
RANDOM = 0.1  # the share of frames that are nothing but random bytes


def inputs(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Frames and chunks, each changed at random or all random."""
    rng, own = np.random.default_rng(seed), random.Random(seed)
    bases: list[tuple[str, bytes]] = []
    while len(bases) < BASES:
        function, data = random_case(rng)
        if function in FIXED:
            bases.append((function, data))
    for _ in range(count):
        function, data = own.choice(bases)
        at = FIXED[function]
        yield function, data[:at] + changed(data[at:], own)


def changed(data: bytes, rng: random.Random) -> bytes:
    """A frame with some bits or bytes changed, cut off or added; or another one."""
    if rng.random() < RANDOM:
        return rng.randbytes(rng.randrange(80))
    found = bytearray(data)
    for _ in range(rng.randrange(4)):
        what = rng.randrange(5)
        if what == 0 or not found:
            found += rng.randbytes(rng.randrange(1, 4))
        elif what == 1:
            del found[rng.randrange(len(found)) :]
        elif what == 2:
            found[rng.randrange(min(12, len(found)))] = rng.randrange(256)
        else:
            found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def differing(program: str, cases: bytes) -> int:
    """How many cases of a file the program answers otherwise."""
    with tempfile.TemporaryFile() as file:
        file.write(cases)
        file.seek(0)
        done = subprocess.run([program], stdin=file, stdout=subprocess.PIPE, check=False)
    return int(done.stdout.rsplit(b"failed ", 1)[1])


def main(program: str, seed: int, count: int) -> dict[str, int]:
    """The numbers of cases and of those that differ, and how many were refused."""
    found = {"cases": 0, "refused": 0, "differ": 0}
    rows: list[bytes] = []
    for number, (function, data) in enumerate(inputs(seed, count), 1):
        said = answer(function, data)
        if max(len(data), len(said)) <= ROOM:
            head = struct.pack("<BHH", FUNCTIONS.index(function), len(data), len(said))
            rows.append(head + data + said)
            found["cases"] += 1
            found["refused"] += said[0] > 0
        if number % BATCH == 0 or number == count:
            found["differ"] += differing(program, b"".join(rows))
            rows.clear()
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
