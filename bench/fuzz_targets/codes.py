"""The codes of hypervectors and of the erasure code: numbers out of bits."""

import struct
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bench.fuzz_targets.target import Target, number, parts, refused, same
from ternmesh.generator import derive_key
from ternmesh.hypervector import codebook, coding, levels, pursuit, scale, trellis, trits
from ternmesh.link import code

SIZE_MAX = 4096
_HEAD = struct.Struct("<HBH")  # nonzeros, coding, size
_KEY = derive_key("fuzz")
_BOOK = pursuit.Book(16, 16, 8)
_NAME = b"name"


def _vectors() -> Iterator[np.ndarray]:
    rng = np.random.default_rng(2)
    for size, density in ((1, 1.0), (64, 0.1), (200, 0.5), (1000, 0.01), (90, 0.9)):
        mask = rng.random(size) < density
        yield (mask * rng.choice([-1, 1], size)).astype(np.int8)
    yield (rng.random(60) < 0.2).astype(np.int8) * 5


def _coded() -> Iterator[bytes]:
    for vector in _vectors():
        item = coding.encode(vector)
        yield _HEAD.pack(item.count, item.coding, vector.size) + item.data
    values = np.random.default_rng(3).standard_normal(256).astype(np.float32)
    yield _HEAD.pack(256, coding.CODEBOOK, 256) + codebook.encode(values, 16)[1]


def _check_coding(data: bytes) -> None:
    count, kind, size = _HEAD.unpack(data[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    size %= SIZE_MAX + 1
    item = coding.Coded(count, kind, data[_HEAD.size :])
    values = coding.decode(item, size)
    longer = replace(item, data=item.data + b"\0")
    refused(lambda: coding.decode(longer, size), "a share with a byte left over")
    same((values.size, str(values.dtype)), (size, "int8"), "the form of a decoded share")
    again = coding.decode(coding.encode(values), size)
    same(again.tobytes(), values.tobytes(), "a share coded again")


def _check_codebook(data: bytes) -> None:
    size = number(data, 0, 2) % (SIZE_MAX + 1)
    values = codebook.decode(data[2:], size)
    same(values.size, size, "the size of a slice of codewords")
    same(set(np.unique(np.abs(values)).tolist()), {1}, "the values of codewords")


def _check_trits(data: bytes) -> None:
    values = trits.unpack_trits(data[1:], number(data, 0, 1))
    same(trits.pack_trits(values), data[1:], "packed trits")
    same(trits.from_planes(trits.to_planes(values)).tobytes(), values.tobytes(), "bit-planes")


def _check_scale(data: bytes) -> None:
    value = number(data, 0, 2)
    worth = scale.decode_scale(value)
    same(scale.encode_scale(worth * scale.UNIT), value, "a scale")
    same(scale.floor_scale(worth), value, "a scale from below")


def _check_levels(data: bytes) -> None:
    size = number(data, 0, 2) % (SIZE_MAX + 1)
    found = levels.decode(data[2:], size)
    again = levels.decode(levels.encode(found), size)
    same(again.values.tobytes(), found.values.tobytes(), "levels coded again")
    if not np.isfinite(found.vector()).all():
        raise AssertionError("levels that are no numbers")


def _levels() -> Iterator[bytes]:
    vector = np.random.default_rng(4).standard_t(3, 300).astype(np.float32)
    for count in (1, 2, 3):
        data = levels.encode(levels.quantise(vector, 1.0, 0.5, count))
        yield (300).to_bytes(2, "little") + data


def _check_names(data: bytes) -> None:
    picks, count = 1 + number(data, 0, 1) % 3, number(data, 1, 1)
    names = pursuit.read_names(data[2:], _BOOK, picks, count)
    same(pursuit.write_names(names, _BOOK), data[2:], "names of codewords")
    pursuit.decode(names, [1.0] * picks, _KEY, _BOOK, count)


def _check_trellis(data: bytes) -> None:
    size = number(data, 0, 1)
    same(trellis.decode(data[1:], _KEY, 2, size, window=8).size, size, "the size of a path")


def _check_erasure(data: bytes) -> None:
    layout = code.Layout(number(data, 0, 2), number(data, 2, 1) % 33)
    decoder = code.Decoder(layout, _NAME)
    for item in parts(data[3:]):
        decoder.add(number(item, 0, 2), item[2:])
    content = bytes(index & 0xFF for index in range(layout.size))
    wanted = [layout.count + index for index in range(min(layout.count, 8))]
    if layout.count > len(wanted) or layout.count + len(wanted) > code.INDEX_END:
        return
    decoder = code.Decoder(layout, _NAME)
    order = [*wanted, *range(layout.count)]
    for index, symbol in zip(order, code.encode(layout, _NAME, content, order), strict=True):
        decoder.add(index, symbol)
    same(decoder.data(), content, "an object from its symbols")


TARGETS = (
    Target("coding", _check_coding, _coded, memory_max=2 << 20),
    Target("codebook", _check_codebook, lambda: [b"\x00\x01" + bytes(16)]),
    Target("trits", _check_trits, lambda: [b"\x07" + trits.pack_trits(np.ones(7, np.int8))]),
    Target("scale", _check_scale, lambda: [b"\x00\x04", b"\xff\x9f"], length_max=4),
    Target("levels", _check_levels, _levels, memory_max=4 << 20),
    Target("pursuit", _check_names, lambda: [b"\x00\x08" + bytes(8)], length_max=512),
    Target("trellis", _check_trellis, lambda: [b"\x10\xa5", b"\xff" + bytes(16)], length_max=128),
    Target("erasure", _check_erasure, lambda: [b"\x14\x00\x05\x07\x00\x00abcde"]),
)
