"""The rules, compared with their definitions written plainly, and their limits."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ternmesh.errors import RuleError
from ternmesh.federated import rules
from ternmesh.federated.rules import RULES, Context, check_count, compose, least_members

HONEST = ("mean", "weighted_mean")
SAFE = [name for name in RULES if name not in HONEST]


def rows(n: int, dimension: int = 40, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, dimension)).astype(np.float32)


def apply(name: str, updates: np.ndarray, f: int = 0) -> np.ndarray:
    return compose(name)(updates, np.ones(len(updates)), Context(f))


def test_the_weighted_mean_and_the_mean() -> None:
    x = rows(5)
    weights = np.array([1.0, 2, 3, 4, 5])
    assert np.allclose(rules.weighted_mean(x, weights, Context()), np.average(x, 0, weights))
    assert np.allclose(rules.mean(x, weights, Context()), x.mean(0), atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_median_is_that_of_numpy(n: int) -> None:
    x = rows(n, 9001)
    assert np.allclose(apply("median", x), np.median(x, 0), atol=1e-6)


def test_the_trimmed_mean_drops_both_ends() -> None:
    x = rows(7, 5000)
    assert np.allclose(apply("trimmed_mean", x, 2), np.sort(x, 0)[2:5].mean(0), atol=1e-6)


def krum_scores(x: np.ndarray, f: int) -> list[float]:
    scores = []
    for i in range(len(x)):
        near = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in range(len(x)) if j != i)
        scores.append(sum(near[: len(x) - f - 1]))
    return scores


def test_krum_and_multi_krum_by_their_definition() -> None:
    x = rows(9)
    scores = krum_scores(x, 2)
    assert np.array_equal(apply("krum", x, 2), x[int(np.argmin(scores))])
    best = x[np.argsort(scores)[:7]].mean(0)
    assert np.allclose(apply("multi_krum", x, 2), best, atol=1e-6)


def test_nnm_is_the_mean_of_the_nearest() -> None:
    x = rows(6)
    mixed, _ = rules.nnm(x, np.ones(6), Context(2))
    for i in range(6):
        near = np.argsort(((x - x[i]) ** 2).sum(1))[:4]
        assert np.allclose(mixed[i], x[near].mean(0), atol=1e-6)


@pytest.mark.parametrize("name", SAFE)
def test_a_liar_does_not_move_the_result_far(name: str) -> None:
    """Each of the two liars is 10,000 away; what comes out stays among the honest ones."""
    honest = 1 + 0.1 * rows(11)
    for lie in (1e4, -1e4):
        x = np.concatenate([honest, np.full((2, 40), lie, np.float32)])
        assert np.abs(apply(name, x, 2) - 1).max() < 0.8
    assert np.abs(apply("mean", x) - 1).max() > 1000


@pytest.mark.parametrize("parts", list(itertools.product(rules.PRE_STEPS, RULES)))
def test_every_composition_gives_one_vector(parts: tuple[str, str]) -> None:
    x = 1 + rows(13, 64)
    out = apply("+".join(parts), x, 1)
    assert out.shape == (64,)
    assert out.dtype == np.float32
    assert np.isfinite(out).all()


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "krum", "multi_krum", "nnm"])
def test_the_limits_of_n_and_f(name: str) -> None:
    name = name if name in RULES else f"{name}+mean"
    least = least_members(name, 2)
    assert least == (7 if "krum" in name else 5)
    check_count(name, least, 2)
    with pytest.raises(RuleError, match=f"at least {least} members, and {least - 1} sent"):
        check_count(name, least - 1, 2)
    assert least_members("weighted_mean", 5) == 1


@pytest.mark.parametrize("name", ["", "kru", "krum+median", "nnm+", "nnm", "median+nnm"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(RuleError, match=r"multi_krum.*before a rule.*nnm"):
        compose(name)


@settings(max_examples=200)
@given(
    st.sampled_from(sorted(RULES)),
    st.integers(1, 8),
    st.integers(0, 3),
    st.sampled_from([0.0, 1e-30, 1e-8, 1.0, 1e15]),
    st.integers(0, 99),
)
def test_any_finite_updates_give_a_finite_step(name: str, n: int, f: int, size, seed) -> None:
    if n < least_members(name, f):
        return
    x = rows(n, 12, seed) * np.float32(size)
    x[0] = x[-1]  # equal updates
    out = apply(name, x, f)
    assert np.isfinite(out).all()
    assert np.abs(out).max() <= 3.5 * np.abs(x).max() + 1e-20
