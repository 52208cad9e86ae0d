"""The erasure code: systematic, random, linear over GF(256), in generations. SPEC.md section 8.1.

Any symbols, a few more than an object's source symbols, restore it. The same repair symbols serve
every receiver. The field's elements are bytes: polynomials over GF(2), modulo 0x11D. Addition is
XOR, and x (2) generates all elements but zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import WireError
from ternmesh.generator import derive_key, philox
from ternmesh.wire.frame import BODY_MAX

Bytes = NDArray[np.uint8]

POLYNOMIAL = 0x11D
ORDER = 256
GENERATION_MAX = 128  # source symbols, of the link's objects
SOURCES_MAX = 1 << 15  # source symbols of an object
INDEX_END = 1 << 16
SYMBOL_BYTES_MAX = BODY_MAX - 3  # behind its kind and index
_BLOCK = 16  # bytes of one block of the generator


def _products() -> Bytes:
    """All products, uint8 (256, 256), from logarithms to the base 2."""
    powers = [1]
    for _ in range(ORDER - 2):
        doubled = powers[-1] << 1
        powers.append(doubled ^ POLYNOMIAL if doubled >= ORDER else doubled)
    logarithm = np.zeros(ORDER, np.intp)
    logarithm[powers] = np.arange(ORDER - 1)
    table: Bytes = np.array(powers, np.uint8)[(logarithm[:, None] + logarithm) % (ORDER - 1)]
    table[0] = 0
    table[:, 0] = 0
    return table


PRODUCTS = _products()
INVERSES = np.argmax(PRODUCTS == 1, axis=1).astype(np.uint8)  # 0 has none; its entry is 0


def multiply(a: Bytes, b: Bytes) -> Bytes:
    """The products of two uint8 arrays, element by element, with numpy's broadcasting."""
    # One flat look-up is five to ten times as fast as PRODUCTS[a, b].
    return PRODUCTS.take(a.astype(np.uint16) << 8 | b)


def combine(factors: Bytes, rows: Bytes) -> Bytes:
    """The linear combination of rows, uint8 (count, length), by factors, uint8 (count,)."""
    total: Bytes = np.bitwise_xor.reduce(multiply(factors[:, None], rows), axis=0)
    return total


@dataclass(frozen=True, slots=True)
class Layout:
    """The division of an object of `size` bytes into symbols of `symbol_bytes` bytes.

    Source and repair symbols go to the generations in turn, so that a burst of losses is spread
    over all of them. `generation_max` is a multiple of 16: the larger, the fewer repairs for many
    receivers, and the more work. Raises WireError for an empty object or more than 32,768 source
    symbols.
    """

    size: int
    symbol_bytes: int
    generation_max: int = GENERATION_MAX

    def __post_init__(self) -> None:
        if not 0 < self.symbol_bytes <= SYMBOL_BYTES_MAX:
            raise WireError(
                "symbol", f"a symbol is of 1 to {SYMBOL_BYTES_MAX} bytes, not {self.symbol_bytes}"
            )
        if not 0 < self.size <= SOURCES_MAX * self.symbol_bytes:
            raise WireError("symbol", f"an object is of 1 to {SOURCES_MAX} symbols, not {self}")

    @property
    def count(self) -> int:
        """The number of source symbols; the last source symbol is padded with zeros."""
        return -(-self.size // self.symbol_bytes)

    @property
    def generations(self) -> int:
        """The number of generations, each of at most `generation_max` source symbols."""
        return -(-self.count // self.generation_max)

    def source(self, generation: int) -> range:
        return range(generation, self.count, self.generations)

    def generation(self, index: int) -> int:
        return (index if index < self.count else index - self.count) % self.generations


def best_symbol_bytes(size: int, room: int) -> int:
    """Return the best symbol size up to `room`: fewest symbols, then least padding."""
    if size < 1 or room < 1:
        raise ValueError(f"an object of {size} bytes cannot travel in symbols of {room}")
    count = -(-size // room)
    return -(-size // count)


def coefficients(
    name: bytes, indexes: Sequence[int], count: int, generation_max: int = GENERATION_MAX
) -> Bytes:
    """Return `count` nonzero coefficients per repair symbol, uint8 (len(indexes), count)."""
    each = np.arange(-(-count // _BLOCK), dtype=np.uint64)
    blocks = np.array(indexes, np.uint64)[:, None] * np.uint64(generation_max // _BLOCK) + each
    zero = np.zeros_like(blocks)
    lanes = philox(derive_key("symbol", name), (blocks, zero, zero, zero))
    stream = np.stack(lanes, axis=2).astype("<u4").view(np.uint8)
    rows = stream.reshape(len(indexes), _BLOCK * blocks.shape[1])[:, :count]
    # With zeros, one repair symbol in 256 would not fill a last gap.
    return np.maximum(rows, 1)


def encode_symbols(layout: Layout, name: bytes, data: bytes, indexes: Sequence[int]) -> list[bytes]:
    """Return the symbols of the object `data` with these indexes, 0 to 65,535."""
    if len(data) != layout.size or not all(0 <= index < INDEX_END for index in indexes):
        raise ValueError(f"the layout is for {layout.size} bytes and indexes below {INDEX_END}")
    length = layout.symbol_bytes
    padded = data.ljust(layout.count * length, b"\0")
    source = np.frombuffer(padded, np.uint8).reshape(layout.count, length)
    repairs = [index for index in indexes if index >= layout.count]
    most = layout.generation_max
    drawn = coefficients(name, repairs, most, most) if repairs else ()
    factors = dict(zip(repairs, drawn, strict=True))

    def symbol(index: int) -> bytes:
        if index < layout.count:
            return padded[index * length : (index + 1) * length]
        rows = source[layout.generation(index) :: layout.generations]
        return combine(factors[index][: len(rows)], rows).tobytes()

    return [symbol(index) for index in indexes]


class Decoder:
    """The independent symbols of one object that have arrived.

    `name` is the object's, 4 bytes. Memory grows with the symbols, up to the object and about 240
    bytes more for each source symbol. After a restart, the symbols for which `add` returned True
    must be added again, in any order.
    """

    def __init__(self, layout: Layout, name: bytes) -> None:
        self._layout = layout
        self._name = name
        self._kept: set[int] = set()
        self._generations = [
            _Generation(len(layout.source(generation)), layout.symbol_bytes)
            for generation in range(layout.generations)
        ]

    @property
    def missing(self) -> tuple[int, ...]:
        """For each generation, how many more independent symbols it needs."""
        return tuple(generation.missing for generation in self._generations)

    @property
    def is_complete(self) -> bool:
        return not any(self.missing)

    def holds(self, index: int) -> bool:
        """Whether a symbol is not needed: it is kept, or its generation is complete."""
        return index in self._kept or not self._generation(index).missing

    def add(self, index: int, symbol: bytes) -> bool:
        """Add a symbol. Return whether it was new. Raises WireError for a wrong symbol."""
        if not 0 <= index < INDEX_END or len(symbol) != self._layout.symbol_bytes:
            sentence = f"symbol {index} of {len(symbol)} bytes is none of {self._layout}"
            raise WireError("symbol", sentence)
        if self.holds(index):
            return False
        is_new = self._generation(index).add(self._factors(index), np.frombuffer(symbol, np.uint8))
        if is_new:
            self._kept.add(index)
        return is_new

    def data(self) -> bytes:
        """Return the object. Raises ValueError while symbols are missing."""
        if not self.is_complete:
            raise ValueError(f"the object needs more symbols, by generation: {self.missing}")
        layout = self._layout
        source = np.empty((layout.count, layout.symbol_bytes), np.uint8)
        for number, generation in enumerate(self._generations):
            source[number :: layout.generations] = generation.solution()
        return source.tobytes()[: layout.size]

    def _generation(self, index: int) -> "_Generation":
        return self._generations[self._layout.generation(index)]

    def _factors(self, index: int) -> Bytes:
        count = self._generation(index).count
        if index >= self._layout.count:
            most = self._layout.generation_max
            return coefficients(self._name, [index], count, most).reshape(count)
        unit = np.zeros(count, np.uint8)
        unit[index // self._layout.generations] = 1
        return unit


class _Generation:
    """Linear equations in reduced row echelon form: coefficients, then the symbol's bytes.

    Row r has a one in column `_pivots[r]`, where all other rows have a zero. A source symbol is
    such a row already: only repair symbols, and the columns that they fill, cost work.
    """

    def __init__(self, count: int, symbol_bytes: int) -> None:
        self.count = count
        self._pivots: list[int] = []
        # Room for more rows than there are: it doubles, so that no symbol copies all of them.
        self._room: Bytes = np.zeros((0, count + symbol_bytes), np.uint8)

    @property
    def missing(self) -> int:
        return self.count - len(self._pivots)

    @property
    def _rows(self) -> Bytes:
        return self._room[: len(self._pivots)]

    def add(self, factors: Bytes, symbol: Bytes) -> bool:
        row = np.concatenate((factors, symbol))
        rows = self._rows
        known = row[self._pivots]
        row ^= combine(known[known != 0], rows[known != 0])
        columns = np.flatnonzero(row[: self.count])
        if not columns.size:
            return False
        pivot = int(columns[0])
        row = multiply(INVERSES[row[pivot, None]], row)
        touched = rows[:, pivot] != 0
        rows[touched] ^= multiply(rows[touched, pivot, None], row)
        if len(rows) == len(self._room):
            more = min(self.count - len(rows), max(8, len(rows)))
            self._room = np.vstack((rows, np.zeros((more, row.size), np.uint8)))
        self._room[len(rows)] = row
        self._pivots.append(pivot)
        return True

    def solution(self) -> Bytes:
        """The source symbols in order, uint8 (count, symbol bytes), once none is missing."""
        return self._rows[np.argsort(self._pivots), self.count :]
