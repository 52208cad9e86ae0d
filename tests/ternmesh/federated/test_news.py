"""Runs without an end: what news is, silence without it, and the rounds of the host meanwhile."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ternmesh.codec.scale import to_float
from ternmesh.federated.combiner import Consolidation
from ternmesh.federated.events import Advanced, GlobalUpdateMade
from ternmesh.federated.news import News
from ternmesh.plan import make_plan
from ternmesh.security.membership import HOST

PLAN = make_plan(4, rounds=0, local_steps=1, learning_rate=0.1, news_rounds=2)
New = Callable[..., Any]


def advanced(*, counts_own: bool = False, counts_nobody: bool = False) -> Advanced:
    return Advanced(1, b"", None, None, False, b"", None, counts_own, counts_nobody)  # type: ignore[arg-type]


class Member:
    """What `round_to_train` needs of a node: in round 7 of a run without an end."""

    plan, version, silent, received = PLAN, 7, False, False

    def submit(self, round_number: int, delta: None, now: float) -> None:
        assert (round_number, delta) == (7, None)
        self.silent = True


def trains(news: News) -> bool:
    return news.round_to_train(Member(), 7, 0.0) == 7  # type: ignore[arg-type]


def test_a_node_trains_in_so_many_counted_rounds_for_its_news() -> None:  # R6.7-8
    news = News(samples_min=10)
    for _ in range(2):
        assert trains(news)
        news.advanced(advanced())  # not counted: it does not learn the news
        news.advanced(advanced(counts_own=True))
    assert not trains(news)
    news.add(9)
    assert not trains(news)
    news.add(1)
    assert (trains(news), news.samples, news.rounds) == (True, 0, 0)


def test_a_node_without_news_trains_after_its_silence_while_others_learn() -> None:  # R6.7-9
    news, node = News(samples_min=10, rounds=2), Member()
    news.advanced(advanced())
    assert (news.round_to_train(node, 7, 0.0), node.silent) == (None, True)  # type: ignore[arg-type]
    assert news.round_to_train(node, None, 0.0) is None  # type: ignore[arg-type]
    node.received = True  # the host knows that what follows is no news
    assert news.round_to_train(node, None, 0.0) == 7  # type: ignore[arg-type]
    news.advanced(advanced(counts_nobody=True))
    assert news.round_to_train(node, None, 0.0) is None  # type: ignore[arg-type]
    news.add(10)
    assert news.round_to_train(node, None, 0.0) == 7  # type: ignore[arg-type]


def test_what_is_stored_comes_back_and_damage_is_ignored() -> None:
    news, again = News(10, samples=3, rounds=7, others_learn=True), News(10)
    again.load(news.stored())
    assert again == news
    again.load(b"damaged")
    again.load(None)
    assert again == news
    again.begin_run()
    assert again == News(10)


@pytest.fixture
def bench(new_bench: New) -> Any:
    """Round 0 is open for theo and yan in a run without an end."""
    plan = {"news_rounds": 3, "announce_s": 1000}
    made = new_bench(rounds=0, min_peers=2, deadline_s=30, plan=plan)
    made.join("theo", "yan")
    return made


def silence_all(bench: Any) -> None:
    for node in bench.nodes.values():
        node.submit(node.version, None, bench.now)
    bench.exchange()


def learn(bench: Any) -> None:
    """Theo has news and yan has none, in a round in which all train."""
    bench.nodes["theo"].submit(bench.host.version, bench.delta(1), bench.now)
    bench.nodes["yan"].submit(bench.host.version, None, bench.now)
    bench.exchange()


def test_while_others_learn_a_round_waits_for_those_without_news(bench: Any) -> None:  # R6.2-2
    learn(bench)
    assert bench.host.version == 1  # nobody had learned before
    learn(bench)
    assert bench.host.version == 1
    bench.nodes["yan"].submit(1, bench.delta(2), bench.now)
    bench.exchange()
    assert (bench.host.version, len(bench.last(HOST, GlobalUpdateMade).counted)) == (2, 2)
    learn(bench)
    bench.wait(31)  # but not longer than until its deadline
    bench.exchange()
    assert (bench.host.version, len(bench.last(HOST, GlobalUpdateMade).counted)) == (3, 1)


def test_after_the_news_the_fleet_goes_to_the_mean_and_is_quiet(bench: Any) -> None:  # R6.2-15
    theo = bench.nodes["theo"]
    learn(bench)
    ends = [bench.host.model_q24]
    silence_all(bench)
    made = bench.last(HOST, GlobalUpdateMade)
    assert (made.version, made.counted) == (2, ())
    assert bench.last("theo", Advanced).counts_nobody
    silence_all(bench)
    assert theo.version == 2
    learn(bench)
    ends.append(bench.host.model_q24)
    learned, before = to_float(ends[1]) + bench.host.residual, to_float(ends[0])
    for _ in range(3):
        silence_all(bench)
    assert theo.version == 4
    reached = to_float(bench.host.model_q24) + bench.host.residual
    np.testing.assert_allclose(reached, learned + (before - to_float(ends[1])) / 8, atol=1e-6)
    stored = bench.last(HOST, GlobalUpdateMade).mean
    again = Consolidation(bench.plan.dimension, stored)
    np.testing.assert_allclose(again.mean, np.mean(to_float(np.array(ends)), axis=0), rtol=1e-6)
    assert again.count == 2
    assert Consolidation(bench.plan.dimension, stored[1:]).count == 0


def test_a_step_goes_a_quarter_of_the_way_to_the_mean_of_the_last_adapters() -> None:
    found = Consolidation(2)
    ends = np.array([[0, 1], [4, 1]]) << 24
    assert not found.step(ends[0]).any()
    np.testing.assert_allclose(found.step(ends[1]), [-0.5, 0])
    for _ in range(200):
        step = found.step(ends[1])
    np.testing.assert_allclose(step, 0, atol=1e-6)  # old adapters do not count for ever


def test_an_update_that_is_no_news_closes_no_round(bench: Any) -> None:  # R6.4-2
    learn(bench)
    yan = bench.nodes["yan"]
    yan.submit(1, None, bench.now)
    bench.exchange()
    yan.submit(1, bench.delta(3), bench.now)
    bench.exchange()
    assert (bench.host.version, yan.received) == (1, True)
    bench.nodes["theo"].submit(1, None, bench.now)
    bench.exchange()
    assert bench.last(HOST, GlobalUpdateMade).counted == ()
    assert yan.residual.any()  # its work goes into a later update


def test_a_silent_node_with_news_closes_the_round(bench: Any) -> None:  # R6.7-10
    silence_all(bench)
    theo = bench.nodes["theo"]
    theo.submit(0, bench.delta(1), bench.now)
    bench.exchange()
    assert [row.address for row in bench.last(HOST, GlobalUpdateMade).counted] == [theo.address]
    assert bench.last("theo", Advanced).counts_own
    assert not bench.last("yan", Advanced).counts_own
    assert bench.nodes["yan"].version == 1
