"""The timers of a node are those of its transport."""

from dataclasses import replace

import numpy as np
import pytest

from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import new_node_state
from ternmesh.security.membership import HOST
from ternmesh.timers import NETWORK_TIMERS, TimerSettings
from ternmesh.wire import control
from ternmesh.wire.frame import BROADCAST, Header, seal_open

MODEL = bytes(range(32))
RADIO = TimerSettings(60.0, 600.0, 900.0, 3600.0, 300.0)


def joined(bench, pace: TimerSettings) -> NodeProtocol:
    """A node with a round to work on, with nothing on its way."""
    rng, state = np.random.default_rng(0), new_node_state(bench.plan.dimension)
    node = NodeProtocol(
        NodeSettings("theo", MODEL, b"theo".ljust(8), pace=pace), state, samples=10, rng=rng
    )
    bench.nodes["theo"] = node
    node.start(bench.now)
    bench.exchange()
    return node


def test_every_wait_of_a_node_is_that_of_its_bearer(new_bench) -> None:  # R6.5-8
    waits = {}
    for pace in (NETWORK_TIMERS, RADIO):
        bench = new_bench(min_peers=1, rounds=9, plan={"announce_s": 86_400})
        node = joined(bench, pace)
        node.submit(0, bench.delta(0), bench.now)
        while node.next_event() is not None:
            pass
        update_s = node.next_timeout() - bench.now
        news = control.Announce(node.run, 5, control.OPEN, 0)
        frame = seal_open(Header(BROADCAST, 0), control.write_control(news))
        node.receive_frames(HOST, [frame], bench.now)
        waits[pace] = update_s, node.joining.hello_timer.at - bench.now
    assert waits[RADIO][0] == pytest.approx(300 * waits[NETWORK_TIMERS][0])
    assert waits[RADIO][1] == pytest.approx(60 * waits[NETWORK_TIMERS][1])


def test_hellos_are_as_far_apart_as_the_pace_says(new_bench) -> None:  # R6.5-8
    bench = new_bench()
    rng, state = np.random.default_rng(0), new_node_state(bench.plan.dimension)
    pace = replace(RADIO, hello_longest_s=480.0)
    node = NodeProtocol(
        NodeSettings("theo", MODEL, bytes(8), pace=pace), state, samples=10, rng=rng
    )
    node.start(bench.now)
    for wait_s in (60, 120, 240, 480, 480):
        due = node.next_timeout()
        assert 0.5 * wait_s <= due - bench.now <= 1.5 * wait_s
        bench.now = due
        node.handle_timeout(bench.now)


def test_a_node_that_was_welcomed_before_the_run_began_asks_again_soon(new_bench) -> None:  # R6.5-1
    bench = new_bench(min_peers=2, plan={"announce_s": 86_400})
    node = bench.add("theo")
    bench.exchange()
    assert node.joined
    assert node.host_phase == control.GATHERING
    assert node.next_timeout() - bench.now <= 1.5 * NETWORK_TIMERS.hello_s
    bench.add("yan")
    for name in ("yan", HOST):
        for peer, frame in bench.take(name):  # the announce of the open round is lost
            if peer == HOST:
                bench.host.receive_frames(name, [frame], bench.now)
    assert node.host_phase == control.GATHERING
    bench.now = node.next_timeout()
    node.handle_timeout(bench.now)
    bench.exchange()
    assert node.host_phase == control.OPEN
    assert node.next_timeout() - bench.now > 1000
