import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ternmesh.codec import codebook
from ternmesh.errors import WireError


@pytest.mark.parametrize(("size", "room"), [(17, 2), (100, 5), (1000, 20), (1000, 64), (8000, 160)])
def test_the_nearest_codewords_capture_what_is_expected(size: int, room: int) -> None:
    values = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    expected = codebook.expected_share(size, room)
    scale, data, coded = codebook.encode(values, room)
    assert 0 < len(data) <= room
    trits = codebook.decode(data, size)
    assert set(np.unique(trits)) == {-1, 1}
    assert np.array_equal(trits, coded)
    rest = values - scale * trits
    arrived = 1 - np.square(rest).sum() / np.square(values).sum()
    assert arrived == pytest.approx(size * scale**2 / np.square(values).sum(), abs=1e-5)
    assert arrived > 0.7 * expected


def test_codewords_are_found_again() -> None:
    names = np.array([0, 1, 2, 3, 12345, 65535], "<u2")
    for span in (33, 64, 1024):
        trits = codebook.decode(names.tobytes(), 6 * span)
        scale, data, _ = codebook.encode(2 * trits.astype(np.float32), len(names) * 2)
        assert data == names.tobytes()
        assert scale == pytest.approx(2)


def test_no_book_for_chunks_too_long_or_too_short() -> None:
    assert codebook.expected_share(10_000, 2) == 0
    assert codebook.expected_share(10_000, 1) == 0
    assert codebook.expected_share(16, 2) == 0
    assert codebook.expected_share(17, 2) > 0


@given(st.binary(max_size=40), st.integers(0, 3000))
@example(b"", 0)
@example(bytes(2), 1024)
@example(bytes(2), 1025)
def test_any_names_are_trits_or_a_wire_error(data: bytes, size: int) -> None:  # R2.6-1
    try:
        trits = codebook.decode(data, size)
    except WireError:
        return
    assert trits.shape == (size,)
    assert trits.dtype == np.int8
    assert np.abs(trits).min() == 1
