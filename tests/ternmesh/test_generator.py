import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh import generator


@given(st.integers(0, 2**34), st.integers(0, 40))
def test_any_word_can_be_computed_alone(start: int, count: int) -> None:
    key = generator.derive_key("test")
    run = generator.words(key, count, start)
    assert run.dtype == np.uint32
    alone = [int(generator.words(key, 1, start + offset)[0]) for offset in range(count)]
    assert run.tolist() == alone


@pytest.mark.parametrize(
    "other", [("a", b"bc"), ("ab", b"c"), ("abc",), ("a", b"b", b"c"), ("a", b"b", b"c", b"")]
)
def test_keys_do_not_depend_on_concatenation_alone(other: tuple[str, bytes]) -> None:
    assert generator.derive_key("", b"abc") != generator.derive_key(other[0], *other[1:])


def test_signs_are_the_bits_of_the_generator() -> None:
    key = generator.derive_key("signs")
    bits = [int(word) >> place & 1 for word in generator.words(key, 2) for place in range(32)]
    assert generator.seeded_signs(key, 40).tolist() == [1 - 2 * bit for bit in bits[:40]]
