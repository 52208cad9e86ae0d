import numpy as np
import pytest

from bench import code
from ternmesh.link.erasure_code import multiply


def test_ranks_are_those_of_matrices_made_to_have_them() -> None:
    rng = np.random.default_rng(0)
    left = rng.integers(0, 256, (300, 6, 4), dtype=np.uint8)
    left[:, :4] = np.eye(4, dtype=np.uint8)
    left = left[:, rng.permutation(6)]
    assert code.has_full_rank(left).all()
    for column in range(4):
        others = [other for other in range(4) if other != column]
        factors = rng.integers(0, 256, (300, 1, 3), dtype=np.uint8)
        deficient = left.copy()
        terms = multiply(factors, left[:, :, others])
        deficient[:, :, column] = np.bitwise_xor.reduce(terms, axis=2)
        assert not code.has_full_rank(deficient).any()


def test_failures_agree_with_the_decoder() -> None:
    at_k, above = code.failures(1500, 2)  # every one of the first 200 is decoded as well
    assert 0 < at_k < 20
    assert above <= 1
    assert code.failures(300, 1) == (0, 0)


def test_wilson_interval() -> None:
    assert code.wilson(0, 100) == pytest.approx((0.0, 0.0370), abs=1e-4)
    assert code.wilson(10, 100) == pytest.approx((0.0552, 0.1744), abs=1e-4)


def test_a_transfer_arrives() -> None:
    assert code.transfer_s(20_000, seed=1) >= 0
