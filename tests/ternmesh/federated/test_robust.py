"""What bounds a member's influence on a round: caps, clipping, limits of steps, and fallbacks."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.codec.encoder import Hypervector
from ternmesh.codec.scale import UNIT
from ternmesh.federated import robust
from ternmesh.federated.aggregation import encode_step, encode_update, read_chunks, update_delta_q24
from ternmesh.federated.evaluation import Evaluation
from ternmesh.federated.memory import Memory
from ternmesh.federated.reputation import LOWEST, restored
from ternmesh.federated.robust import RobustAggregation, Update
from ternmesh.federated.rules import RULES, AggregationSettings, Context, compose
from ternmesh.plan import make_plan
from ternmesh.wire.update import read_chunk

MODEL, RUN = bytes(range(32)), bytes(8)
PLAN = make_plan(3000, rounds=5, local_steps=1, learning_rate=0.1, frame_mtu=128, up_zeros=0.5)


SETTINGS = AggregationSettings()


def vector_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.01, 3000).astype(np.float32)


def packet(vector: np.ndarray, round_number: int = 4, chunks: slice = slice(None)) -> Hypervector:
    bodies = encode_update(vector, MODEL, round_number, PLAN)[0][chunks]
    return read_chunks(map(read_chunk, bodies), PLAN.up)


def decoded(vector: np.ndarray, round_number: int = 4) -> np.ndarray:
    return (
        update_delta_q24(encode_update(vector, MODEL, round_number, PLAN)[0], MODEL, 4, PLAN) * UNIT
    )


def new(name: str = "weighted_mean", byzantine: int = 0, memory: float = 0.0) -> RobustAggregation:
    rule = RULES.get(name) or compose(name)
    return RobustAggregation(PLAN, MODEL, AggregationSettings(name, rule, byzantine, memory), RUN)


def own(rule: Callable[..., object]) -> RobustAggregation:
    settings = AggregationSettings("own", rule, 0, 0.0)  # type: ignore[arg-type]
    return RobustAggregation(PLAN, MODEL, settings, RUN)


def updates_of(*vectors: np.ndarray, samples: int = 100) -> list[Update]:
    return [Update(i + 1, samples, packet(vector)) for i, vector in enumerate(vectors)]


@given(st.lists(st.tuples(st.integers(80, 120), st.integers(0, 99)), min_size=1, max_size=5))
def test_the_mean_is_weighted_by_samples(nodes: list[tuple[int, int]]) -> None:  # R6.2-7
    updates = [Update(i, count, packet(vector_of(s))) for i, (count, s) in enumerate(nodes)]
    mean = new().combine(updates, 4)
    weights = np.array([samples for samples, _ in nodes], float)
    wanted = np.average([decoded(vector_of(seed)) for _, seed in nodes], axis=0, weights=weights)
    assert np.allclose(mean, wanted, atol=1e-7)


@pytest.mark.parametrize("name", ["weighted_mean", "mean"])
def test_a_late_update_weighs_less(name: str) -> None:  # R6.2-16
    timely, late = updates_of(vector_of(1), vector_of(2))
    late = replace(late, evaluation=Evaluation(staleness=3))
    step = new(name).combine([timely, late], 4)
    wanted = np.average([decoded(vector_of(1)), decoded(vector_of(2))], axis=0, weights=[2, 1])
    assert np.allclose(step, wanted, atol=1e-7)


def test_momentum_is_as_large_as_the_nodes_agree() -> None:
    def steps(*seeds: int) -> tuple[np.ndarray, np.ndarray, RobustAggregation]:
        settings = AggregationSettings(momentum=0.5)
        made, plain = (RobustAggregation(PLAN, MODEL, s, RUN) for s in (settings, SETTINGS))
        updates = updates_of(*map(vector_of, seeds))
        first = made.combine(updates, 3), plain.combine(updates, 3)
        assert np.array_equal(*first)
        both = made.combine(updates, 4), plain.combine(updates, 4)
        return both[0] - both[1], first[0], made

    gained, before, agreed = steps(1, 1, 1)
    assert np.allclose(gained, 0.5 * before, rtol=1e-2, atol=1e-8)
    gained, before, _ = steps(1, 2, 3)
    assert np.linalg.norm(gained) < 0.1 * np.linalg.norm(before)
    gained, before, _ = steps(1, 1)  # of two, nobody can say who is right
    assert not gained.any()
    assert not agreed.combine([], 5).any()
    assert agreed.before is None


def test_declared_samples_are_capped_at_twice_the_median() -> None:
    aggregation = new()
    updates = updates_of(*map(vector_of, range(3)))
    updates[2] = Update(3, 1 << 20, updates[2].vector)
    aggregation.combine(updates, 4)
    assert [aggregation.influence[i].share for i in (1, 2, 3)] == [0.25, 0.25, 0.5]
    region = Update(3, 300, updates[2].vector, members=3)  # what three nodes declare, and no more
    aggregation.combine([*updates[:2], region], 4)
    assert aggregation.influence[3].share == 0.6
    aggregation.combine([*updates[:2], Update(3, 1 << 20, region.vector, members=3)], 4)
    assert aggregation.influence[3].share == 0.75


def test_a_long_update_is_clipped_from_the_first_round_on() -> None:
    honest = [vector_of(i) for i in range(4)]
    wanted = new().combine(updates_of(*honest), 4)
    for size in (10, 50):
        aggregation = new()
        step = aggregation.combine(updates_of(*honest, -size * vector_of(9)), 4)
        clipped = aggregation.influence[5]
        assert clipped.clipped * clipped.norm == pytest.approx(
            1.1 * np.linalg.norm(decoded(honest[0])), rel=0.1
        )
        assert all(aggregation.influence[i].clipped == 1 for i in (1, 2, 3, 4))
        assert np.linalg.norm(step - wanted) < np.linalg.norm(wanted)


def test_one_of_two_nodes_cannot_raise_the_limit() -> None:
    aggregation = new()
    aggregation.combine(updates_of(vector_of(1), 50 * vector_of(2)), 4)
    assert aggregation.influence[2].clipped < 0.04
    assert aggregation.influence[1].clipped == 1


def test_a_board_with_news_is_not_cut_down_to_those_without() -> None:
    aggregation = new()
    for _ in range(5):
        aggregation.combine(updates_of(*map(vector_of, range(5))), 4)
    quiet = [0.01 * vector_of(i) for i in range(4)]
    aggregation.combine(updates_of(*quiet, vector_of(9)), 4)
    assert aggregation.influence[5].clipped == 1


def test_no_round_moves_further_than_a_multiple_of_the_recent_steps() -> None:
    aggregation = new()
    steps = [np.linalg.norm(aggregation.combine(updates_of(vector_of(i)), 4)) for i in range(5)]
    everyone_lies = updates_of(*[50 * vector_of(1)] * 5)
    assert np.linalg.norm(aggregation.combine(everyone_lies, 4)) <= 4.01 * np.median(steps)
    assert np.linalg.norm(new().combine(everyone_lies, 4)) > 5 * np.median(steps)


def test_a_memory_is_the_mean_of_the_past_within_eight_bits() -> None:
    memory = Memory(3000, 0.8)
    past = [vector_of(i) for i in range(12)]
    for i in range(12):
        memory.add(2, vector_of(100 + i))
        found = memory.add(1, past[i])
    weights = 0.8 ** np.arange(12)[::-1]
    wanted = np.average(past, axis=0, weights=weights)
    assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()
    first = Memory(3000, 0.8).add(1, past[0])  # no bias at the start
    assert np.abs(first - past[0]).max() < 0.005 * np.abs(past[0]).max()


def turns(memory: Memory, nodes: int, *signs: float) -> list[frozenset[int]]:
    """Who has turned after each round, in which the first two nodes send `sign` times theirs."""
    own = [vector_of(node) for node in range(nodes)]
    found = []
    for sign in signs:
        for node, vector in enumerate(own):
            memory.add(node, np.float32(sign if node < 2 else 1) * vector)
        found.append(memory.turned(range(nodes)))
    return found


def test_a_node_that_sends_the_opposite_has_turned_until_it_turns_back() -> None:
    memory = Memory(3000, 0.9)
    both, nobody = frozenset({0, 1}), frozenset[int]()
    assert turns(memory, 5, 1, 1, -1, -1, 0.5) == [nobody, nobody, both, both, both]
    assert turns(memory, 5, 1, 1) == [both, nobody]
    found = turns(Memory(3000, 0.9), 4, 1, 1, -1)
    assert found == [nobody] * 3, "half of them: the data has changed"


def test_a_node_that_opposes_a_majority_that_agrees_is_found() -> None:
    common = vector_of(50)
    memory = Memory(3000, 0.9)
    for _ in range(2):
        for node in range(5):
            sign = np.float32(-1 if node == 3 else 1)
            memory.add(node, sign * (vector_of(node) + common))
    assert memory.compare(range(5), (), is_first=True).opposed == frozenset({3})
    assert memory.compare([0, 1, 3], (), is_first=True).opposed == frozenset({3})
    assert memory.compare([0, 1, 3], (), is_first=False).opposed is None
    assert memory.compare(range(5), (3,), is_first=True).opposed == frozenset()
    assert memory.compare([0, 3], (), is_first=True).opposed is None


@pytest.mark.parametrize(("between", "opposed"), [(0.0, frozenset({2})), (-0.2, None)])
def test_of_three_nodes_one_opposes_two_that_have_nothing_in_common(between, opposed) -> None:
    memory = Memory(3000, 0.9)
    one, other = vector_of(1), vector_of(2) + np.float32(between) * vector_of(1)
    for _ in range(2):
        for node, update in enumerate((one, other, -one - other)):
            memory.add(node, update)
    assert memory.compare(range(3), (), is_first=True).opposed == opposed


@pytest.mark.parametrize("is_carried", [False, True])
def test_who_opposes_the_others_in_the_first_rounds_of_learning_weighs_little(is_carried) -> None:
    aggregation = new(memory=0.9)
    adapter = np.full(3000, float(is_carried), np.float32)
    for number in range(5):
        common = np.float32(0.3) * vector_of(99)
        vectors = [vector_of(10 * number + node) + common for node in range(4)]
        liar = vector_of(10 * number + 9) - common
        aggregation.combine(updates_of(*vectors, liar), number, adapter=adapter)
    weights = [aggregation.reputations.weight(address) for address in range(1, 6)]
    assert weights[:4] == [1.0] * 4
    assert (weights[4] == LOWEST) != is_carried
    assert (aggregation.reputations.reason(5) == "opposes the others") or is_carried
    again = restored(aggregation.reputations.stored())
    assert again.weight(5) == weights[4]


def test_what_bounds_an_update_needs_no_round_before_and_outlives_the_process() -> None:
    first = new()
    most = 0.1 * math.sqrt(3000)  # learning rate, steps, and numbers
    [only] = updates_of(1e6 * vector_of(1))
    first.combine([only], 0)
    assert first.influence[1].norm * first.influence[1].clipped == pytest.approx(0.55 * most)
    first.combine(updates_of(vector_of(2), vector_of(3)), 1)
    again = RobustAggregation(PLAN, MODEL, SETTINGS, RUN, first.stored())
    for aggregation in (first, again):
        aggregation.combine(updates_of(1e6 * vector_of(4)), 2)
    assert again.influence == first.influence
    assert RobustAggregation(PLAN, MODEL, SETTINGS, RUN, b"damaged").stored() == new().stored()


def test_the_loss_of_the_first_version_alone_is_the_measure() -> None:
    for version, measure in ((0, 2.0), (3, 0.0)):
        aggregation = new(memory=0.9)
        reports = [told(u, None, 2.0) for u in updates_of(*map(vector_of, range(3)))]
        aggregation.combine(reports, version)
        assert aggregation.reputations.first_loss == measure


def test_where_nobody_agrees_nobody_is_opposed() -> None:
    memory = Memory(3000, 0.9)
    for _ in range(2):
        for node in range(4):
            memory.add(node, vector_of(node) - vector_of((node + 1) % 4))
    assert memory.compare(range(4), (), is_first=True).opposed is None


def test_too_few_updates_take_the_weighted_mean_and_say_so() -> None:
    updates = updates_of(*map(vector_of, range(3)))
    aggregation = new("krum", byzantine=1)
    step = aggregation.combine(updates, 4)
    assert aggregation.remark == (
        "krum withstands 1 liars among at least 5 members, and 3 sent an update: "
        "the weighted mean is taken"
    )
    assert np.array_equal(step, new().combine(updates, 4))
    aggregation.combine(updates_of(*map(vector_of, range(5))), 4)
    assert aggregation.remark == ""


def boom(*_: object) -> np.ndarray:
    raise KeyError("nothing")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (boom, "own failed: KeyError: 'nothing'"),
        (lambda updates, *_: updates[0] * np.nan, "returned NaN"),
        (lambda updates, *_: updates, r"float32 \(3, 3000\)"),
        (lambda *_: None, r"object \(\)"),
        (lambda updates, *_: updates[0] > 0, "bool"),
    ],
)
def test_a_rule_of_the_owner_that_fails_takes_the_weighted_mean(rule, said) -> None:
    updates = updates_of(*map(vector_of, range(3)))
    aggregation = own(rule)
    assert np.array_equal(aggregation.combine(updates, 4), new().combine(updates, 4))
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(aggregation.remark)


def test_many_updates_are_averaged_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robust, "ROWS_MAX", 4)
    seen: list[tuple[int, ...]] = []

    def look(updates: np.ndarray, weights: np.ndarray, _: Context) -> np.ndarray:
        seen.append(updates.shape)
        return np.average(updates, axis=0, weights=weights).astype(np.float32)

    updates = updates_of(*map(vector_of, range(10)))
    assert np.allclose(own(look).combine(updates, 4), new().combine(updates, 4), atol=1e-6)
    assert seen == [(4, 3000)]


def told(update: Update, effect: float | None, loss: float = 1.0) -> Update:
    return replace(update, evaluation=Evaluation(loss, probe=effect))


def test_probes_need_reports_memory_and_the_setting() -> None:
    updates = updates_of(*map(vector_of, range(3)))
    for memory, is_on, reports in ((0.0, True, True), (0.9, False, True), (0.9, True, False)):
        settings = AggregationSettings(memory=memory, probes=is_on)
        aggregation = RobustAggregation(PLAN, MODEL, settings, RUN)
        for version in range(9):
            aggregation.combine([told(u, None) for u in updates] if reports else updates, version)
            assert aggregation.probe(version + 1, b"newest") == ()


def test_more_samples_weigh_more_only_once_a_node_is_proven() -> None:
    aggregation = new(memory=0.9)
    shares = []
    for version in range(12):
        vectors = [vector_of(0) + 0.2 * vector_of(4 * version + i) for i in range(1, 5)]
        updates = [replace(u, samples=100) for u in updates_of(*vectors)]
        opposite = updates_of(*vectors[:3], -vectors[3])[3]
        updates = [replace(updates[0], samples=900), *updates[1:3], replace(opposite, samples=900)]
        aggregation.combine(updates, version)
        shares.append([round(aggregation.influence[i].share, 2) for i in (1, 2, 3, 4)])
    assert shares[0] == [0.25, 0.25, 0.25, 0.25]
    assert shares[-1][0] == pytest.approx(2 * shares[-1][1], abs=0.02)
    assert shares[-1][3] <= shares[-1][1], "it opposes the others"


def test_nodes_that_send_the_same_are_seen() -> None:
    aggregation = new(memory=0.9)
    for version in range(3):
        vectors = [vector_of(3 * version + i) for i in range(3)]
        bodies = [encode_update(v, MODEL, version, PLAN)[0] for v in (*vectors, vectors[2])]
        packets = [read_chunks(map(read_chunk, body), PLAN.up) for body in bodies]
        aggregation.combine([Update(i + 1, 100, p) for i, p in enumerate(packets)], version)
    assert aggregation.reputations.copies == {1: 1, 2: 1, 3: 2, 4: 2}


@pytest.mark.parametrize("name", ["weighted_mean", "median"])
def test_a_round_of_excluded_nodes_alone_moves_nothing(name: str) -> None:
    aggregation = new(name, memory=0.9)
    aggregation.reputations.fixed = {1: 0.0, 2: 0.0}
    assert not aggregation.combine(updates_of(vector_of(1), vector_of(2)), 4).any()
    assert [aggregation.influence[node].share for node in (1, 2)] == [0.0, 0.0]
    assert aggregation.combine(updates_of(*map(vector_of, range(3))), 5).any()


def test_what_is_cut_also_weighs_less() -> None:
    aggregation = new(memory=0.9)
    aggregation.combine(updates_of(*map(vector_of, range(4)), -10 * vector_of(9)), 4)
    factor = aggregation.influence[5].clipped
    assert factor == pytest.approx(0.11, rel=0.1)
    assert aggregation.influence[5].share == pytest.approx(factor / (4 + factor))


@pytest.mark.parametrize("up_zeros", [0.95, 0.97])
def test_a_global_update_with_a_probe_is_no_longer_than_others(up_zeros: float) -> None:
    plan = make_plan(
        15_000, rounds=5, local_steps=1, learning_rate=0.1, up_zeros=up_zeros, down_zeros=0.8
    )
    vector = np.random.default_rng(0).normal(0, 0.01, 15_000).astype(np.float32)
    usual, beside = (
        sum(map(len, encode_step(vector, MODEL, 4, plan, has_probe=has_probe)[0]))
        for has_probe in (False, True)
    )
    probe = sum(2 + len(body) for body in encode_update(vector, MODEL, 4, plan)[0])
    assert usual / 4 < beside
    assert beside + probe <= 1.01 * usual, "the length of a code is estimated"
