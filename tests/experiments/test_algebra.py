import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.algebra import inner_products, pack, unpack
from ternmesh.errors import CodecError


def random_trits(count: int, dimension: int, seed: int = 0, zeros: float = 0.5) -> np.ndarray:
    signs = (1 - zeros) / 2
    values = np.array([-1, 0, 1], np.int8)
    return np.random.default_rng(seed).choice(values, (count, dimension), p=[signs, zeros, signs])


sizes = st.tuples(st.integers(0, 20), st.integers(1, 90), st.integers(0, 10))


@given(sizes)
def test_packing_loses_nothing_and_is_canonical(size: tuple[int, int, int]) -> None:
    trits = random_trits(*size)
    matrix = pack(trits)
    assert np.array_equal(unpack(matrix), trits)
    assert not (matrix.negative & ~matrix.nonzero).any()
    assert len(matrix) == size[0]


@pytest.mark.parametrize(("n", "m", "dimension"), [(1, 1, 1), (3, 5, 64), (7, 2, 2000)])
@pytest.mark.parametrize("zeros", [0.0, 0.7, 1.0])
def test_inner_products_are_exact(n: int, m: int, dimension: int, zeros: float) -> None:
    a, b = random_trits(n, dimension, 1, zeros), random_trits(m, dimension, 2, zeros)
    want = a.astype(np.int32) @ b.astype(np.int32).T
    assert np.array_equal(inner_products(pack(a), pack(b)), want)
    assert np.array_equal(np.diag(inner_products(pack(a), pack(-a))), -np.abs(a).sum(1))


def test_vectors_of_different_length_are_refused() -> None:
    with pytest.raises(CodecError, match="10 and 11 trits"):
        inner_products(pack(random_trits(1, 10)), pack(random_trits(1, 11)))
