import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ternmesh.codec.entropy_coder import (
    CODEBOOK,
    DENSE,
    Coded,
    bits_per_trit,
    decode_trits,
    encode_trits,
)
from ternmesh.errors import WireError

M3B = 786_432  # the payload of the published scheme that the anchor measures


def int8(values: list[int]) -> np.ndarray:
    return np.array(values, np.int8)


def random_ternary(size: int, zeros: float, seed: int = 0) -> np.ndarray:
    signs = (1 - zeros) / 2
    rng = np.random.default_rng(seed)
    return rng.choice(int8([-1, 0, 1]), size, p=[signs, zeros, signs])


sparse = st.lists(st.sampled_from([0] * 12 + [1, -1]), max_size=400)


@given(sparse | st.lists(st.integers(-1, 1), max_size=60))
@example([0] * 5000 + [1])
@example([])
def test_coding_loses_nothing(values: list[int]) -> None:
    coded = encode_trits(int8(values))
    assert coded.count == np.count_nonzero(values)
    assert decode_trits(coded, len(values)).tolist() == values


@given(
    st.integers(0, 40),
    st.sampled_from([*range(16), 128, 192]) | st.integers(0, 255),
    st.binary(max_size=24),
    st.integers(0, 200),
)
def test_any_code_is_a_share_or_a_wire_error(count: int, coding: int, data: bytes, size) -> None:
    # R2.5-1
    try:
        values = decode_trits(Coded(count, coding, data), size)
    except WireError:
        return
    assert values.dtype == np.int8
    assert values.size == size
    assert np.count_nonzero(values) == count
    if coding == CODEBOOK:
        return
    again = encode_trits(values)  # may choose better parameters, never a longer code
    assert len(again.data) <= len(data)
    assert np.array_equal(decode_trits(again, size), values)


@pytest.mark.parametrize(
    ("coded", "size"),
    [
        (Coded(5, 0, b"\xff\xff"), 4),  # more nonzeros than places
        (Coded(1, 0, b"\x08"), 3),  # a nonzero beyond the end
        (Coded(1, 0, b"\x01\x00"), 4),  # a byte too many
        (Coded(1, 0, b"\x05"), 4),  # a bit too many
        (Coded(0, 0, b"\x00"), 4),  # bytes for nothing
        (Coded(2, 0, b"\x01"), 4),  # ends before the second
        (Coded(1, 15, b"\x01"), 40000),  # ends inside a remainder
        (Coded(1, 0x10, b"\x01"), 4),  # an unknown flag
        (Coded(1, 0x20, b"\x01"), 4),
        (Coded(1, 0x40, b"\x01"), 4),
        (Coded(1, 0x81, b"\x7a"), 5),  # dense knows no parameter
        (Coded(5, CODEBOOK, b"\x7a"), 5),  # half a name
        (Coded(5, CODEBOOK, b""), 5),
        (Coded(4, CODEBOOK, bytes(2)), 5),  # codewords have no zeros
        (Coded(1025, CODEBOOK, bytes(2)), 1025),  # a chunk too long
        (Coded(10, CODEBOOK, bytes(14)), 10),  # chunks of two would be five
        (Coded(5, 0xC1, bytes(2)), 5),
        (Coded(2, DENSE, b"\x7a"), 5),  # another count than the trits hold
        (Coded(0, DENSE, b"\xf3"), 5),
    ],
)
def test_hostile_codes_are_refused(coded: Coded, size: int) -> None:  # R2.5-1
    with pytest.raises(WireError):
        decode_trits(coded, size)


@pytest.mark.parametrize("zeros", [0.5, 0.7, 0.9, 0.95, 0.984, 0.995])
def test_the_code_is_within_two_percent_of_the_entropy(zeros: float) -> None:
    values = random_ternary(M3B, zeros)
    there = np.count_nonzero(values) / M3B
    entropy = -there * math.log2(there / 2) - (1 - there) * math.log2(1 - there)
    coded = encode_trits(values)
    assert len(coded.data) * 8 <= 1.02 * entropy * M3B
    assert np.array_equal(decode_trits(coded, M3B), values)


@pytest.mark.parametrize("zeros", [0.0, 0.2, 0.34, 0.5, 0.8, 0.9, 0.97, 0.99])
def test_the_predicted_cost_is_the_measured_one(zeros: float) -> None:
    size = 200_000
    measured = len(encode_trits(random_ternary(size, zeros)).data) * 8 / size
    assert bits_per_trit(zeros) == pytest.approx(measured, rel=0.03)


def test_zeros_cost_nothing() -> None:
    assert bits_per_trit(1.0) == 0.0
    assert encode_trits(np.zeros(1000, np.int8)) == Coded(0, 0, b"")
