import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.generator import derive_key, words
from ternmesh.hypervector.rotation import (
    HEAVY_TAIL,
    hadamard,
    kurtosis,
    rotate,
    seeded_signs,
    unrotate,
)

KEY = derive_key("test", b"rotation")


@given(st.integers(0, 9000))
def test_unrotate_undoes_rotate_and_both_keep_the_length(size: int) -> None:
    vector = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    turned = rotate(vector, KEY)
    assert turned.shape == vector.shape
    np.testing.assert_allclose(unrotate(turned, KEY), vector, atol=1e-4)
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(vector), rel=1e-4)


def test_the_basis_is_the_sylvester_one() -> None:
    want = np.ones((1, 1))
    for _ in range(5):
        want = np.kron([[1, 1], [1, -1]], want)
    assert np.array_equal(hadamard(32), want)
    vector = np.arange(128, dtype=np.float32)  # an odd power of two: two factors of unequal size
    flat = rotate(vector * seeded_signs(KEY, 128), KEY) * np.sqrt(128)
    np.testing.assert_allclose(flat, hadamard(128) @ vector, rtol=1e-4, atol=1e-2)


def test_signs_are_the_bits_of_the_generator() -> None:
    bits = [int(word) >> place & 1 for word in words(KEY, 2) for place in range(32)]
    assert seeded_signs(KEY, 40).tolist() == [1 - 2 * bit for bit in bits[:40]]


def test_rotation_makes_heavy_tails_gaussian() -> None:
    heavy = np.random.default_rng(0).standard_t(3, 65_536).astype(np.float32)
    assert kurtosis(heavy) > HEAVY_TAIL
    assert kurtosis(rotate(heavy, KEY)) == pytest.approx(3, abs=0.1)


def test_kurtosis_of_known_vectors() -> None:
    assert kurtosis(np.array([1, -1, 1, -1], np.float32)) == 1
    assert kurtosis(np.array([0, 0, 0, 2], np.float32)) == 4
    assert kurtosis(np.zeros(5, np.float32)) == 0
