import numpy as np
import pytest

from bench.codecs import FIXED, OURS, THEIRS
from bench.codecs.base import Codec, captured, pack_bits, unpack_bits
from bench.codecs.raw import Float

SIZE = 20_000


def laplace() -> np.ndarray:
    return (0.01 * np.random.default_rng(1).laplace(size=SIZE)).astype(np.float32)


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("codec", [*OURS, *THEIRS], ids=lambda codec: codec.name)
def test_a_codec_keeps_to_its_budget_and_decodes_from_its_bytes(codec: Codec, rate: float) -> None:
    vector, rng = laplace(), np.random.default_rng(0)
    before = vector.copy()
    wire = codec.encode(vector, int(rate * SIZE) + 80, rng)
    assert np.array_equal(vector, before)
    assert 8 * len(wire) <= rate * SIZE + 80
    assert 8 * len(wire) > 0.8 * rate * SIZE, "the budget is used"
    decoded = codec.decode(bytes(wire), SIZE)
    assert decoded.shape == (SIZE,)
    assert captured(vector, decoded) > 0.1 * rate


@pytest.mark.parametrize("codec", FIXED, ids=lambda codec: codec.name)
def test_a_fixed_codec_gives_most_of_the_vector_back(codec: Codec) -> None:
    vector = laplace()
    decoded = codec.decode(codec.encode(vector, 0, np.random.default_rng(0)), SIZE)
    assert captured(vector, decoded) > 0.7


def test_whole_floats_come_back_whole() -> None:
    codec = Float("fp32", "<f4")
    wire = codec.encode(laplace(), 0, np.random.default_rng(0))
    assert np.array_equal(codec.decode(wire, SIZE), laplace())


def test_the_mixture_decodes_to_what_its_error_says() -> None:
    """No scale is granted here: the decoded vector itself is near."""
    vector = laplace()
    mixture = OURS[0]
    decoded = mixture.decode(mixture.encode(vector, SIZE, np.random.default_rng(0)), SIZE)
    assert np.square(vector - decoded).sum() < 0.3 * np.square(vector).sum()


def test_captured_is_scale_free_and_bounded() -> None:
    vector = laplace()
    assert captured(vector, 7 * vector) == pytest.approx(1)
    assert captured(vector, np.zeros_like(vector)) == 0
    assert captured(np.array([1, 0], np.float32), np.array([1, 1], np.float32)) == 0.5


def test_bits_travel_whole() -> None:
    numbers = np.arange(0, 16384, 13)
    assert np.array_equal(unpack_bits(pack_bits(numbers, 14), 14, numbers.size), numbers)
