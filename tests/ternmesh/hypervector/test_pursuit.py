import numpy as np
import pytest

from ternmesh.errors import CodecError, WireError
from ternmesh.generator import derive_key
from ternmesh.hypervector import pursuit
from ternmesh.hypervector.pursuit import Book

KEY = derive_key("test", b"pursuit")
BOOK = Book(span=64, order=64, diagonals=16)


def gaussian(size: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(size).astype(np.float32)


def test_a_codeword_is_found_again() -> None:
    names = np.array([0, 1, 77, 2047])
    words = BOOK.codewords(names, KEY)
    assert set(np.unique(words)) == {-1.0, 1.0}
    assert np.array_equal(words[0], -words[1])
    found, amplitudes = pursuit.encode(3 * words.reshape(-1), KEY, BOOK, 1)
    assert found.tolist() == [names.tolist()]
    assert amplitudes == [3.0]


def test_one_pick_captures_more_than_one_per_bit() -> None:
    book = Book(256, 256, 64)
    vector = gaussian(32_768)
    names, amplitudes = pursuit.encode(vector, KEY, book, 1)
    decoded = pursuit.decode(names, amplitudes, KEY, book, vector.size)
    captured = 1 - np.square(vector - decoded).sum() / np.square(vector).sum()
    bits = 8 * len(pursuit.write_names(names, book)) / vector.size
    assert book.pick_bits == 15
    assert captured / bits > 1.05


def test_any_subset_of_picks_decodes_and_each_adds() -> None:
    vector = gaussian(6400)
    names, amplitudes = pursuit.encode(vector, KEY, BOOK, 4)
    errors = [
        np.square(vector - pursuit.decode(names[:k], amplitudes[:k], KEY, BOOK, 6400)).sum()
        for k in range(5)
    ]
    assert errors == sorted(errors, reverse=True)
    without = pursuit.decode(names[1:], amplitudes[1:], KEY, BOOK, 6400)
    assert np.square(vector - without).sum() < errors[0]


@pytest.mark.parametrize(("span", "size"), [(64, 6400), (50, 333), (50, 3)])
def test_names_travel_whole(span: int, size: int) -> None:
    book = Book(span, 64, 16)
    names, _ = pursuit.encode(gaussian(size), KEY, book, 2)
    data = pursuit.write_names(names, book)
    assert len(data) == -(-names.size * 11 // 8)
    assert np.array_equal(pursuit.read_names(data, book, *names.shape), names)
    assert pursuit.decode(names, [1.0, 1.0], KEY, book, size).shape == (size,)


def test_wrong_bytes_and_nan_are_refused() -> None:
    with pytest.raises(WireError, match="do not fit"):
        pursuit.read_names(b"abc", BOOK, 1, 3)
    with pytest.raises(WireError, match="left over"):
        pursuit.read_names(b"\xff\xff", BOOK, 1, 1)
    with pytest.raises(CodecError):
        pursuit.encode(np.array([np.inf], np.float32), KEY, BOOK, 1)
