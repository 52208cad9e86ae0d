import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.link.erasure_code import INVERSES, PRODUCTS, combine

ALL = np.arange(256, dtype=np.uint8)


def spec_product(a: int, b: int) -> int:
    """Long multiplication of polynomials, then long division by 0x11D."""
    total = 0
    for bit in range(8):
        if b >> bit & 1:
            total ^= a << bit
    for bit in range(14, 7, -1):
        if total >> bit & 1:
            total ^= 0x11D << (bit - 8)
    return total


def test_every_product_is_that_of_the_specification() -> None:
    assert PRODUCTS.tolist() == [[spec_product(a, b) for b in range(256)] for a in range(256)]


def test_the_axioms_of_a_field_hold_for_all_elements() -> None:
    assert np.array_equal(PRODUCTS, PRODUCTS.T)
    assert np.array_equal(PRODUCTS[1], ALL)
    assert np.array_equal(PRODUCTS[PRODUCTS], PRODUCTS[:, PRODUCTS])  # (a b) c = a (b c)
    sums = ALL[:, None] ^ ALL
    assert np.array_equal(PRODUCTS[:, sums], PRODUCTS[:, :, None] ^ PRODUCTS[:, None, :])
    assert np.all(PRODUCTS[ALL[1:], INVERSES[1:]] == 1)
    assert np.count_nonzero(PRODUCTS == 0) == 2 * 256 - 1  # no product is zero but those with zero


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(min_size=5, max_size=5)), max_size=6))
def test_a_combination_is_the_sum_of_the_products(terms: list[tuple[int, bytes]]) -> None:
    factors = np.array([factor for factor, _ in terms], np.uint8)
    rows = np.frombuffer(b"".join(row for _, row in terms), np.uint8).reshape(-1, 5)
    wanted = [0] * 5
    for factor, row in terms:
        wanted = [total ^ spec_product(factor, x) for total, x in zip(wanted, row, strict=True)]
    assert combine(factors, rows).tolist() == wanted
