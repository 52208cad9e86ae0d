"""Sums, products and powers that are the same on every processor, and whole rounds of them."""

import math
import os
import subprocess
import sys
from functools import reduce
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from ternmesh import exact
from ternmesh.codec import codebook
from ternmesh.codec.encoder import Slicing, gather, ternarise
from ternmesh.federated.aggregation import encode_update, read_chunks
from ternmesh.federated.memory import Memory, opposed
from ternmesh.federated.reputation import NodeStanding, Reputations
from ternmesh.federated.robust import RobustAggregation, Update, _norm
from ternmesh.federated.rules import RULES, AggregationSettings, Context, compose, inner_products
from ternmesh.plan import make_plan
from ternmesh.wire.update import read_chunk

ROOT = Path(__file__).parents[2]
GOLDEN = {
    30: "2b5b330cb1905758440fb0424908e6de701fa8789d431198b764ff563bd6ec95",
    200: "d9700d88799a1f867a2fac5e207bea79ce58f706db416f6389ed29e16d578ebd",
}
FOUND = np.show_config(mode="dicts")["SIMD Extensions"].get("found", ())  # beyond the baseline
PROCESSORS = {
    "haswell": {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "2"},
    "oldest": {
        "OPENBLAS_CORETYPE": "Prescott",
        "OPENBLAS_NUM_THREADS": "1",
        "NPY_DISABLE_CPU_FEATURES": " ".join(FOUND),
        "PYTHONHASHSEED": "7",
    },
}


@pytest.mark.parametrize("rounds", [30, pytest.param(200, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_rounds_have_one_hash_on_every_processor(processor: str, rounds: int) -> None:
    command = (sys.executable, "-m", "tests.ternmesh.federated.exact_rounds", str(rounds))
    environment = {**os.environ, **PROCESSORS[processor], "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    assert found.stdout.strip() == GOLDEN[rounds]


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).standard_normal(shape).astype(np.float32)


def test_the_order_of_numbers_changes_no_sum_and_no_product() -> None:
    values, others = drawn(20_001) * np.float32(1e3) ** drawn(20_001), drawn(20_001)
    for seed in range(5):
        turned = np.random.default_rng(seed).permutation(20_001)
        for function in (exact.total, exact.energy, exact.norm):
            assert function(values) == function(values[turned])
            assert function(others) == function(others[turned])
        again = exact.cosine(values[turned], others[turned])
        assert exact.cosine(values, others) == again
        assert ternarise(others, 15_000)[1] == ternarise(others[turned], 15_000)[1]
    assert exact.total(values) == pytest.approx(math.fsum(values), rel=1e-6)
    assert exact.norm(others) == pytest.approx(np.linalg.norm(others.astype(np.float64)), rel=1e-6)
    assert exact.norm(np.zeros(0, np.float32)) == exact.total(np.zeros(5, np.float32)) == 0.0


def test_no_sum_passes_what_its_floats_hold() -> None:
    rows = np.full((2, 3 * exact.BLOCK + 5), -127, np.int8)
    assert (exact.inner_products_int8(rows) == 127**2 * rows.shape[1]).all()
    assert 2**exact.SUM_BITS * 2**exact.LENGTH_BITS <= 2**53
    assert 4**exact.PRODUCT_BITS * 2**exact.LENGTH_BITS <= 2**53
    assert 127**2 * exact.BLOCK < 2**24


@pytest.mark.parametrize(("p", "q"), [(3, 10), (1, 5)])
def test_a_power_is_that_of_its_table(p: int, q: int) -> None:
    assert exact.power(0.0, p, q) == 0.0
    assert exact.power(1.0, p, q) == 1.0
    for base in (0.02, 0.2, 0.5, 0.77, 0.999):
        assert exact.power(base, p, q) == pytest.approx(base ** (p / q), abs=1e-3)
    table = exact._powers(p, q)
    assert all(v**q * 1024**p <= at**p * 65536**q for at, v in enumerate(table))
    assert all((v + 1) ** q * 1024**p > at**p * 65536**q for at, v in enumerate(table))


def test_of_equally_large_values_those_kept_are_spread() -> None:
    values = np.array([1, -1, 3, 1, 1, -1, 1], np.float32)
    assert ternarise(values, 4)[0].tolist() == [1, 0, 1, 1, 0, -1, 0]
    assert ternarise(values, 4)[1] == 1.5


def test_of_equally_near_codewords_the_first_is_taken_and_products_are_whole() -> None:
    book = codebook.Book(8, 8, 4096)
    names, products = book.nearest(np.zeros((1, 8), np.float32))
    assert (names.tolist(), products.tolist()) == ([0], [0.0])
    values = drawn(40)
    scale, _, trits = codebook.encode(values, 10)
    numbers, unit = exact.wholes(values, 21)
    assert scale == int(numbers @ trits) * unit / values.size


def test_of_equally_near_updates_the_first_are_taken() -> None:
    updates = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], np.float32)
    nearest = compose("nnm+mean")(updates[:5], np.ones(5), Context(byzantine=2))
    alone = RULES["krum"](np.repeat(updates[1:3], 3, axis=0), np.ones(6), Context(byzantine=1))
    assert alone.tolist() == [1, 0]
    assert nearest[0] > 0  # of all four around it the first row takes 1, 0 and -1, 0


def test_a_median_of_zeros_is_no_negative_zero() -> None:
    for signs in product((-0.0, 0.0), repeat=3):
        rows = np.array(signs, np.float32)[:, None]
        assert not np.signbit(RULES["median"](rows, np.ones(3), Context())).any()


def test_the_order_of_rows_changes_no_sum() -> None:
    updates = drawn(40, 500)
    turned = np.random.default_rng(1).permutation(40)
    rule, few = compose("nnm+median"), Context(byzantine=7)
    found = rule(updates, np.ones(40), few)
    assert found.tobytes() == rule(updates[turned], np.ones(40), few).tobytes()
    rows = np.sort(updates, axis=0)[7:33]
    assert (RULES["trimmed_mean"](updates, np.ones(40), few) == reduce(np.add, rows) / 26).all()
    columns = np.random.default_rng(2).permutation(500)
    assert (inner_products(updates) == inner_products(updates[:, columns])).all()


def test_the_order_of_arrival_changes_nothing() -> None:
    plan = make_plan(600, rounds=5, local_steps=1, learning_rate=0.1)
    bodies = [encode_update(row / 100, bytes(32), 4, plan)[0] for row in drawn(9, 600)]
    vectors = [read_chunks(map(read_chunk, chunks), plan.up) for chunks in bodies]
    updates = [Update(3 * at + 1, 10 + at, vector) for at, vector in enumerate(vectors)]
    found, turned = (
        RobustAggregation(plan, bytes(32), AggregationSettings(), bytes(8)) for _ in range(2)
    )
    assert found.combine(updates, 4).tobytes() == turned.combine(updates[::-1], 4).tobytes()
    assert found.digest() == turned.digest()
    assert [item.address for item in turned.sent.updates] == list(range(1, 28, 3))
    norms = RobustAggregation(plan, bytes(32), AggregationSettings(), bytes(8), found.stored())
    assert (norms._norms, norms._steps) == (found._norms, found._steps)  # kept as they are stored


def test_the_order_of_columns_changes_no_distance() -> None:
    updates, back = drawn(9, 3001), np.arange(3001)[::-1]
    for name in ("krum", "multi_krum", "nnm+median", "nnm+weighted_mean", "trimmed_mean"):
        rule = compose(name)
        found = rule(updates, np.ones(9), Context(byzantine=2))
        turned = rule(updates[:, back], np.ones(9), Context(byzantine=2))
        assert found[back].tobytes() == turned.tobytes(), name


def test_what_a_rule_sees_of_a_memory_is_what_is_kept_of_it() -> None:
    memory = Memory(300, 0.9)
    seen = memory.add(1, drawn(300))
    assert (seen == memory.total(1)).all()
    assert np.unique(seen / np.abs(seen).max() * 127).size <= 255


def test_a_norm_is_the_root_of_a_whole_number() -> None:
    scales = (16_777_213, 3, 1 << 22)
    parts = [(at, np.ones(7, np.int8), scale) for at, scale in enumerate(scales)]
    wanted = math.sqrt(sum(7 * scale**2 for scale in scales)) * 2.0**-24
    assert _norm(gather(parts, Slicing(21, 7))) == wanted


def test_who_opposes_does_not_depend_on_the_order_of_sums() -> None:
    rows = drawn(12, 200)
    rows[:8] += 1
    rows[8:10] -= 1
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = (rows @ rows.T).astype(np.float64)
    weights = np.ones(12) / 3
    assert opposed(cosines, weights, 0.2, -0.3) == [8, 9]
    back = cosines[::-1, ::-1]
    assert opposed(back, weights, 0.2, -0.3) == [2, 3]
    assert opposed(cosines, weights, 0.2, 0.9) is None


def test_a_reputation_is_a_product_of_tables() -> None:
    known = Reputations({1: NodeStanding(9, agreement=-0.29, uptime=0.7)})
    found = exact.power((-0.29 + 0.5) / 0.3, 3, 10) * exact.power(0.7, 1, 5)
    assert known.reputation(1) == found
    first, second = Reputations(), Reputations()
    first.counted({9: 0.1, 4: 0.2, 17: 0.1}, [33, 2], 1)
    second.counted({4: 0.2, 17: 0.1, 9: 0.1}, [2, 33], 1)
    assert first.stored() == second.stored()
    assert first.digest() == second.digest()
