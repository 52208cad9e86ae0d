"""Test cases for the C library, with Python's answers: `python -m bench.c_cases FILE [SEED COUNT]`.

`firmware_tools/c/emulated/conformance.c` runs them on Linux and on emulated boards.
"""

import json
import random
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.c_constants import CONSTANTS
from ternmesh.codec.entropy_coder import CODEBOOK, Coded, decode_trits, encode_trits
from ternmesh.codec.permutation import order
from ternmesh.errors import WireError
from ternmesh.link.erasure_code import Decoder, Layout, encode_symbols
from ternmesh.security.key_derivation import nonce, traffic_key
from ternmesh.security.primitives import Ccm
from ternmesh.security.session import MARK_SIZE, Verdict, Window
from ternmesh.wire.frame import (
    BROADCAST,
    UNASSIGNED,
    Header,
    open_seal,
    read_header,
    seal_open,
    write_header,
)
from ternmesh.wire.update import CHUNK_KIND, read_chunk
from transports.serial_lora.framing import cobs_frame

VECTORS = Path(__file__).parents[1] / "tests" / "vectors"
FUNCTIONS = (  # in the order of conformance.c
    "plain_open",
    "chunk_decode",
    "keyed_open",
    "symbol_make",
    "collect",
    "cobs",
    "order",
)
REASONS = (  # in the order of tm_result
    "",
    "length",
    "version",
    "suite",
    "seal",
    "replay",
    "clone",
    "coding",
    "trits",
    "scale",
    "symbol",
    "vector length",
    "role",
    "unknown key",
)
FIXED = {"plain_open": 0, "chunk_decode": 2, "keyed_open": 50}  # bytes before the frame
ROOM = 2560  # bytes of an input or answer
Case = tuple[str, bytes, bytes]  # function, input, answer
HEAD, TAG = CONSTANTS["HEAD_SIZE"], CONSTANTS["TAG_SIZE"]


def plain_open(frame: bytes) -> bytes:
    """What a frame of suite 0 holds."""
    header, body = open_seal(frame)
    return struct.pack("<HIB", header.address, header.counter, header.key_phase) + body


def chunk_decode(data: bytes) -> bytes:
    """The values of a chunk's body behind its size (u16)."""
    size = int.from_bytes(data[:2], "little")
    coded = read_chunk(data[2:]).slice.coded
    return decode_trits(coded, size).tobytes()


def keyed_open(data: bytes) -> bytes:
    """The body of a sealed frame, with a window that has seen nothing."""
    secret, highest, suite, has_run, run = struct.unpack_from("<32sQBB8s", data)
    frame = data[50:]
    header = read_header(frame, suite)
    if header.address in (UNASSIGNED, BROADCAST):
        raise WireError("role", "these have keys of their own")
    window = Window(highest)
    counter = window.whole(header.counter)
    head = frame[:HEAD] + (run if has_run else b"")
    cipher = Ccm(traffic_key(secret, counter))
    body = cipher.open(nonce(header.address, counter), head, frame[HEAD:])
    if window.take(counter, frame[-TAG:][:MARK_SIZE]) is not Verdict.NEW:
        raise WireError("replay", "older than the window")
    return body


def symbol_make(data: bytes) -> bytes:
    """One symbol of an object."""
    symbol_bytes, index = struct.unpack_from("<HH", data)
    layout = Layout(len(data) - 8, symbol_bytes)
    [symbol] = encode_symbols(layout, data[4:8], data[8:], [index])
    return symbol


def collect(data: bytes) -> bytes:
    """The object that symbols of one generation restore."""
    size, symbol_bytes = struct.unpack_from("<HH", data)
    decoder = Decoder(Layout(size, symbol_bytes), data[4:8])
    for at in range(8, len(data), 2 + symbol_bytes):
        decoder.add(
            int.from_bytes(data[at : at + 2], "little"), data[at + 2 : at + 2 + symbol_bytes]
        )
    return decoder.data()


def places(data: bytes) -> bytes:
    """The first 16 coordinates of a permutation."""
    number, dimension = struct.unpack("<II", data[32:])
    return order(data[:32], number, dimension)[:16].astype("<u4").tobytes()


ANSWERS: dict[str, Callable[[bytes], bytes]] = {
    "plain_open": plain_open,
    "chunk_decode": chunk_decode,
    "keyed_open": keyed_open,
    "symbol_make": symbol_make,
    "collect": collect,
    "cobs": cobs_frame,
    "order": places,
}


def answer(function: str, data: bytes) -> bytes:
    """Python's answer, behind the number of its reason."""
    try:
        return b"\0" + ANSWERS[function](data)
    except WireError as error:
        return bytes([REASONS.index(error.reason)])


def golden() -> Iterator[tuple[str, bytes]]:
    """The inputs that the golden vectors are, as far as a small board holds them."""

    def of(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text())
        return found

    for row in of("seals").values():
        yield "plain_open", bytes.fromhex(row["bytes"])
    for row in of("codes").values():
        yield "chunk_decode", chunk_input(len(row["values"]), row)
    for row in of("codebooks").values():
        row = {**row, "count": row["size"], "coding": CODEBOOK}
        yield "chunk_decode", chunk_input(row["size"], row)
    for row in of("symbols").values():
        head, data = row["symbol_bytes"], bytes.fromhex(row["object"])
        for index in row["symbols"]:
            rest = struct.pack("<HH", head, int(index)) + bytes.fromhex(row["name"])
            yield "symbol_make", rest + data
    for row in of("orders").values():
        rest = struct.pack("<II", row["round"], row["dimension"])
        yield "order", bytes(range(32)) + rest


def refused() -> Iterator[tuple[str, bytes]]:
    """Inputs for each clause of a rule by which a decoder refuses, and their neighbours."""

    def code(size: int, count: int, coding: int, data: str) -> tuple[str, bytes]:
        return "chunk_decode", chunk_input(size, {"count": count, "coding": coding, "bytes": data})

    yield code(3, 1, 0x00, "01")  # R2.5-1: sound, then each fault
    yield code(3, 4, 0x00, "0f00")
    yield code(3, 1, 0x00, "08")  # beyond the end
    yield code(3, 1, 0x00, "")
    yield code(3, 1, 0x00, "0100")
    yield code(3, 1, 0x00, "05")  # padding
    for coding in (0x10, 0x20, 0x40, 0x4F, 0x81, 0xC1, 0xFF):
        yield code(3, 1, coding, "01")
    yield code(5, 4, 0x80, "00")  # the count differs
    yield code(5, 5, 0x80, "f3")  # R2.4-1
    yield code(4, 4, 0x80, "00")  # padding that is no zero
    yield code(4, 4, 0x80, "51")
    yield code(5, 5, 0x80, "0000")
    for size, names in ((1024, 1), (1025, 1), (1030, 2), (100, 3), (100, 70), (17, 0)):
        yield code(size, size, 0xC0, "0180" * names)  # R2.6-1
    yield code(20, 20, 0xC0, "018000")
    yield code(20, 19, 0xC0, "0180")
    for symbol_bytes, size in ((0, 4), (2000, 4), (4080, 4), (1, 0), (2, 9)):  # R8.1-2
        yield "symbol_make", struct.pack("<HH", symbol_bytes, 0) + bytes(4 + size)
    for kind in (0x02, 0x03):  # R4.1-1 and -2
        for rest in ("00" * 9, "00" * 8, "00" * 4 + "0000010000", "00" * 4 + "0100000000"):
            yield "chunk_decode", struct.pack("<HB", 3, kind) + bytes.fromhex(rest)
    head = struct.pack("<32sQBB8s", bytes(32), 5, 1, 0, bytes(8))
    for frame in ("", "20" * 15, "40" * 15, "21" * 15, "2c" * 15, "24000000000000" + "00" * 9):
        yield "plain_open", bytes.fromhex(frame)
        yield "keyed_open", head + bytes.fromhex(frame)
    yield "keyed_open", head + bytes.fromhex("24ffff000000") + bytes(9)


def chunk_input(size: int, row: dict[str, Any]) -> bytes:
    """The input of `chunk_decode` for a code."""
    head = struct.pack("<BHHHHB", CHUNK_KIND, 0, 0, bool(row["count"]), row["count"], row["coding"])
    return struct.pack("<H", size) + head + bytes.fromhex(row["bytes"])


# Frames that nobody sent, and damaged ones


def random_case(rng: np.random.Generator) -> tuple[str, bytes]:
    """A valid input of some function, changed in two of three cases."""
    function = str(rng.choice(FUNCTIONS, p=(0.15, 0.35, 0.25, 0.08, 0.05, 0.07, 0.05)))
    data = _MAKERS[function](rng)
    if function in FIXED and rng.random() < 2 / 3:
        at, own = FIXED[function], random.Random(int(rng.integers(1 << 32)))
        data = data[:at] + changed(data[at:], own)
    return function, data


def changed(data: bytes, rng: random.Random) -> bytes:
    """Bytes with up to three changes: a bit or a byte is changed, an end cut off or added."""
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


def _plain(rng: np.random.Generator) -> bytes:
    header = Header(int(rng.integers(1 << 16)), int(rng.integers(1 << 24)), 0, int(rng.integers(2)))
    return seal_open(header, rng.bytes(int(rng.integers(1, 60))))


def trits(rng: np.random.Generator, size: int) -> Any:
    """A ternary vector with any share of zeros."""
    values = np.sign(rng.standard_normal(size)).astype(np.int8)
    values[rng.random(size) < rng.random()] = 0
    return values


def _chunk(rng: np.random.Generator) -> bytes:
    size = int(rng.integers(1, 300))
    coded = encode_trits(trits(rng, size))
    if rng.random() < 0.2:
        names = int(rng.integers(1, 1 + -(-size // 17)))
        coded = Coded(size, CODEBOOK, rng.bytes(2 * names))
    row = {"coding": coded.coding, "count": coded.count, "bytes": coded.data.hex()}
    return chunk_input(size, row)


def _keyed(rng: np.random.Generator) -> bytes:
    secret, run, has_run = rng.bytes(32), rng.bytes(8), int(rng.integers(2))
    suite, address = int(rng.integers(1, 3)), int(rng.integers(1, 1 << 16))
    highest = int(rng.integers(1 << 62)) >> int(rng.integers(60))
    counter = max(0, highest + int(rng.integers(-1100, 3000)))
    header, body = Header(address, counter, suite), rng.bytes(int(rng.integers(1, 60)))
    head = write_header(header)
    cipher = Ccm(traffic_key(secret, counter))
    sealed = cipher.seal(nonce(address, counter), head + (run if has_run else b""), body)
    return struct.pack("<32sQBB8s", secret, highest, suite, has_run, run) + head + sealed


def _symbol(rng: np.random.Generator) -> bytes:
    size, symbol_bytes = int(rng.integers(1, 400)), int(rng.integers(1, 40))
    index = int(rng.integers(1 << 16)) if rng.random() < 0.5 else int(rng.integers(size))
    return struct.pack("<HH", symbol_bytes, index) + rng.bytes(4 + size)


def _collected(rng: np.random.Generator) -> bytes:
    symbol_bytes = int(rng.integers(1, 24))
    size = int(rng.integers(1, 30 * symbol_bytes))
    layout, name, data = Layout(size, symbol_bytes), rng.bytes(4), rng.bytes(size)
    decoder, sent = Decoder(layout, name), b""
    while not decoder.is_complete:
        index = int(rng.integers(2 * layout.count + 4))
        [symbol] = encode_symbols(layout, name, data, [index])
        decoder.add(index, symbol)
        sent += index.to_bytes(2, "little") + symbol
        if len(sent) + 8 > ROOM - 100:
            return _collected(rng)
    return struct.pack("<HH", size, symbol_bytes) + name + sent


def _payload(rng: np.random.Generator) -> bytes:
    payload = rng.bytes(int(rng.integers(1, 300)))
    return payload.replace(b"\0", b"\1") if rng.random() < 0.5 else payload


def _order(rng: np.random.Generator) -> bytes:
    dimension = int(rng.integers(1, 3000))
    return rng.bytes(32) + struct.pack("<II", int(rng.integers(1 << 32)), dimension)


_MAKERS: dict[str, Callable[[np.random.Generator], bytes]] = {
    "plain_open": _plain,
    "chunk_decode": _chunk,
    "keyed_open": _keyed,
    "symbol_make": _symbol,
    "collect": _collected,
    "cobs": _payload,
    "order": _order,
}


def cases(seed: int, count: int) -> Iterator[Case]:
    """The golden vectors, then `count` random inputs, with the answers."""
    rng = np.random.default_rng(seed)
    inputs = [*golden(), *refused(), *(random_case(rng) for _ in range(count))]
    for function, data in inputs:
        found = answer(function, data)
        if max(len(data), len(found)) <= ROOM:
            yield function, data, found


def written(seed: int, count: int) -> bytes:
    """All cases as the file that the conformance program reads."""
    return b"".join(
        struct.pack("<BHH", FUNCTIONS.index(function), len(data), len(found)) + data + found
        for function, data, found in cases(seed, count)
    )


if __name__ == "__main__":
    seed, count = map(int, sys.argv[2:4] or (0, 2000))
    Path(sys.argv[1]).write_bytes(written(seed, count))
