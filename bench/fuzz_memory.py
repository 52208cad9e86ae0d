"""The most memory that each target takes to refuse 64 KiB of hostile input, C code included.

    python -m bench.fuzz_memory [TARGET ...]

runs wide, deep and lying inputs in this process and prints {target: [bytes, input]} as JSON: how
far each target's resident memory rose above what it was (VmHWM after the kernel was told to forget
it, proc(5)), and with which input it rose most. Run it with `ENVIRONMENT`: memory that Python keeps
for later would hide what the next input takes.
"""

import ctypes
import gc
import json
import logging
import random
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from bench.fuzz_targets import TARGETS
from bench.fuzz_targets.target import Target

INPUT_MAX = 1 << 16
ENVIRONMENT = {"PYTHONMALLOC": "malloc", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
SEEDS, LIES = 2, 12  # seeds of a target that are stretched, places of one where a length may be
WIDE = {
    "nothing": b"",
    "zeros": b"\0",
    "ones": b"\xff",
    "lists in JSON": b"[",
    "objects in JSON": b'{"a":',
    "empty lists in JSON": b"[],",
    "names in TOML": b"a = 1\n",
    "a long number": b"9",
    "CBOR arrays": b"\x81",
    "empty CBOR arrays": b"\x80",
    "protobuf fields": b"\x0a\x00",
    "parts": b"\x03\x00ab",
    "lines": b"+OK\r\n",
}


def inputs(target: Target) -> Iterator[tuple[str, bytes]]:
    """Inputs of at most 64 KiB: each form as often as it fits; seeds with long tails and lies."""
    rng = random.Random(target.name)
    yield from ((label, _filled(form)) for label, form in WIDE.items())
    yield from ((f"{size} random bytes", rng.randbytes(size)) for size in (4096, INPUT_MAX))
    yield "a CBOR array that claims much", b"\x9a\x00\x00\xff\xff" + bytes(INPUT_MAX - 5)
    for number, seed in enumerate(islice(target.seeds(), SEEDS)):
        yield f"seed {number} again and again", _filled(seed)
        for label, more in (("zeros", b"\0"), ("ones", b"\xff")):
            yield f"seed {number} and {label}", (seed + _filled(more))[:INPUT_MAX]
        for at in range(min(LIES, len(seed))):
            yield f"seed {number} with a lie at {at}", seed[:at] + b"\xff" * 4 + seed[at + 4 :]


def _filled(form: bytes) -> bytes:
    return form * (INPUT_MAX // len(form)) if form else b""


def peaks(target: Target) -> tuple[int, str]:
    """The largest rise, and the input that it belongs to."""
    for seed in islice(target.seeds(), SEEDS):
        target.run(seed)  # What is made once and kept is made before it is measured.
    gc.collect()
    gc.freeze()  # what is there already need not be looked through again
    worst = (0, "")
    for label, data in inputs(target):
        worst = max(worst, (_rise(target, data), label))
    return worst


def _rise(target: Target, data: bytes) -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    FORGET.write_text("5")
    before = _kept("VmRSS")
    target.run(data)
    return max(0, _kept("VmHWM") - before)


def _kept(name: str) -> int:
    """Bytes that the kernel counts."""
    found = re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return 1024 * int(found[1])


def main() -> None:
    """Measure the named targets, or all."""
    logging.disable()
    names = sys.argv[1:] or list(TARGETS)
    print(json.dumps({name: peaks(TARGETS[name]) for name in names}))


if __name__ == "__main__":
    main()
