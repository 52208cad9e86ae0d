"""What a node keeps of its own adapter, and work that ends after its round."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ternmesh.codec.scale import UNIT, to_float
from ternmesh.federated.evaluation import read_values
from ternmesh.federated.events import Advanced, ResidualChanged
from ternmesh.federated.node import NodeProtocol
from ternmesh.wire.update import read_manifest

New = Callable[..., Any]
RATE = np.float32(0.4)


def fleet(new_bench: New, cooperation: float, rounds: int = 40, dimension: int = 200) -> Any:
    plan = {"cooperation": cooperation, "down_zeros": 0.5, "local_steps": 1}
    bench = new_bench(rounds=rounds, dimension=dimension, plan=plan, min_peers=2)
    bench.join("theo", "yan")
    return bench


def trained_from(node: NodeProtocol) -> np.ndarray:
    """The adapter at which a node's training begins."""
    return to_float(node.adapter_q24) + node.residual


def learn(bench: Any, goals: list[np.ndarray]) -> dict[str, np.ndarray]:
    """One round; returns where each training ended."""
    ended = {}
    for (name, node), goal in zip(bench.nodes.items(), goals, strict=True):
        start = trained_from(node)
        delta = RATE * (goal - start)
        ended[name] = start + delta
        node.submit(node.version, delta, bench.now)
    bench.exchange()
    return ended


@pytest.mark.parametrize("cooperation", [0.0, 0.3, 0.7, 1.0])
def test_a_node_moves_by_its_share_towards_the_global_adapter(new_bench: New, cooperation) -> None:
    # R6.3-10
    bench = fleet(new_bench, cooperation)
    goals = [bench.delta(seed) * 10 for seed in (1, 2)]
    for _ in range(5):
        ended = learn(bench, goals)
        for name, node in bench.nodes.items():
            own, shared = ended[name], to_float(node.model_q24) + node.residual
            wanted = own + np.float32(cooperation) * (shared - own)
            assert np.allclose(trained_from(node), wanted, atol=8 * UNIT)
            assert (node.own_q24 is None) == (cooperation == 1.0)
            assert np.array_equal(node.model_q24, bench.host.model_q24)


def test_a_new_run_and_a_return_begin_at_the_global_adapter(new_bench: New) -> None:  # R6.3-10
    bench = fleet(new_bench, 0.5)
    learn(bench, [bench.delta(1), bench.delta(2)])
    learn(bench, [bench.delta(1), bench.delta(2)])
    theo = bench.nodes["theo"]
    assert np.any(theo.own_q24)
    assert not bench.host.return_to(1, bench.now)
    bench.exchange()
    assert bench.last("theo", Advanced).has_returned
    assert theo.own_q24 is None
    learn(bench, [bench.delta(1), bench.delta(2)])
    assert np.any(theo.own_q24)
    theo._begin_run(b"another!", bench.plan)
    assert theo.own_q24 is None


@pytest.fixture
def behind(new_bench: New) -> Any:
    """Two rounds have closed without theo; an update may be two rounds late."""
    bench = new_bench(rounds=9, plan={"staleness_rounds": 2}, deadline_s=30)
    bench.join("theo", "yan")
    for number in range(2):
        bench.nodes["yan"].submit(number, bench.delta(number), bench.now)
        bench.exchange()
        bench.wait(30)
        bench.exchange()
    assert bench.nodes["theo"].version == 2
    return bench


def test_work_that_is_late_goes_into_the_open_round_and_says_so(behind: Any) -> None:  # R6.3-9
    theo, delta = behind.nodes["theo"], behind.delta(3)
    theo.evaluation = ((1, 500),)
    theo.submit(0, delta, behind.now)
    head = read_manifest(theo.pending.bodies[0])
    assert (theo.pending.round, read_values(head.evaluation).staleness) == (2, 2)
    behind.exchange()
    behind.nodes["yan"].submit(2, behind.delta(2), behind.now)
    behind.exchange()
    assert behind.last("theo", Advanced).counts_own
    assert np.linalg.norm(theo.residual) < np.linalg.norm(delta)
    theo.submit(3, delta, behind.now)
    assert read_values(read_manifest(theo.pending.bodies[0]).evaluation).staleness == 0


def test_work_that_is_later_than_that_stays_with_its_node(behind: Any) -> None:  # R6.3-9
    theo, delta = behind.nodes["theo"], behind.delta(3)
    theo.plan = replace(theo.plan, staleness_rounds=1)
    theo.submit(0, delta, behind.now)
    behind.exchange()
    assert theo.pending is None
    assert np.array_equal(behind.last("theo", ResidualChanged).residual, delta)
