"""What depends on a node's transport: its timers, and what it does not repeat.

Node and host repeat nothing that a transport holds which retransmits itself.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ternmesh.deliveries import Deliveries, Delivery, DeliveryState
from ternmesh.federated.events import FRAME_SIZE
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import new_node_state
from ternmesh.security.membership import HOST
from ternmesh.timers import NETWORK_TIMERS, TimerSettings
from ternmesh.wire import control
from ternmesh.wire.frame import BROADCAST, UNASSIGNED, Header, seal_open
from ternmesh.wire.update import MANIFEST_KIND

MODEL = bytes(range(32))
RADIO = TimerSettings(60.0, 600.0, 900.0, 3600.0, 300.0)
HELD, DELIVERED, LOST = DeliveryState.HELD, DeliveryState.DELIVERED, DeliveryState.LOST


@pytest.fixture
def bench(new_bench):
    return new_bench(min_peers=1, plan={"announce_s": 86_400})


def make_node(
    name: str, dimension: int, *, frame_max: int = 4096, pace: TimerSettings = RADIO, **sizes: Any
) -> NodeProtocol:
    settings = NodeSettings(
        name, MODEL, name.encode().ljust(8), pace=pace, frame_max=lambda: frame_max, **sizes
    )
    rng = np.random.default_rng(0)
    return NodeProtocol(settings, new_node_state(dimension), samples=10, rng=rng)


def new_node(bench, name: str = "theo", **settings) -> NodeProtocol:
    """A node that has joined, with a round to work on."""
    node = bench.nodes[name] = make_node(name, bench.plan.dimension, **settings)
    node.start(bench.now)
    bench.exchange()
    return node


def manifests(bench, name: str = "theo") -> int:
    return sum(frame[6] == MANIFEST_KIND for _, frame in bench.take(name))


@pytest.fixture
def node(bench) -> NodeProtocol:
    """A node whose update a transport holds."""
    node = new_node(bench)
    node.submit(0, bench.delta(0), bench.now)
    assert manifests(bench) == 1
    node.handle_delivery(Delivery(HOST, HELD), bench.now)
    return node


def welcome(bench, node: NodeProtocol) -> None:
    node.say_hello(bench.now)
    for _, frame in bench.take("theo"):
        bench.host.receive_frames("theo", [frame], bench.now)
    for _, frame in bench.take(HOST):
        node.receive_frames(HOST, [frame], bench.now)


def test_what_a_transport_holds_is_not_repeated(bench, node) -> None:  # R6.3-6
    bench.wait(100_000.0)
    welcome(bench, node)
    assert manifests(bench) == 0
    node.handle_delivery(Delivery(HOST, DELIVERED), bench.now)
    welcome(bench, node)
    assert manifests(bench) == 0, "it is delivered, and the receipt is not overdue"
    bench.wait(3 * 900.0)
    assert manifests(bench) == 1


@pytest.mark.parametrize("state", [None, DELIVERED])
def test_what_a_host_that_ended_has_got_is_sent_to_the_next_one(  # R6.3-6
    bench, node, state, monkeypatch
) -> None:
    if state is not None:
        node.handle_delivery(Delivery(HOST, state), bench.now)
    monkeypatch.setattr(node.channel.sealing, "process_of", lambda peer: b"another", raising=False)
    welcome(bench, node)
    assert manifests(bench) == 1


def test_what_a_transport_has_lost_is_sent_at_once(bench, node) -> None:  # R6.3-6
    node.handle_delivery(Delivery(HOST, LOST), bench.now)
    assert manifests(bench) == 1


def test_a_catch_up_is_not_repeated_while_it_is_on_its_way_or_just_delivered(bench) -> None:
    # R6.5-13
    new_node(bench).submit(0, bench.delta(0), bench.now)
    bench.exchange()
    assert bench.host.version == 1

    bench.host.session.management.due = lambda now: ()  # inquiries are not counted here

    def answers() -> int:
        bench.wait(10.0)
        late = make_node("yan", bench.plan.dimension)
        late.start(bench.now)
        while late.next_event() is not None:
            pass
        [(_, frames)] = late.frames_to_send(bench.now)
        bench.host.receive_frames("yan", frames, bench.now)
        return len(bench.take(HOST))

    whole = answers()
    assert whole > 1
    bench.host.handle_delivery(Delivery("yan", HELD), bench.now)
    assert answers() == 1, "the welcome alone"
    bench.host.handle_delivery(Delivery("yan", DELIVERED), bench.now)
    assert answers() == whole, "the host's own wait is short on a network"
    bench.host.handle_delivery(Delivery("yan", HELD), bench.now)
    bench.host.handle_delivery(Delivery("yan", LOST), bench.now)
    assert answers() == whole


def test_a_node_refuses_frames_that_its_bearer_does_not_carry(bench) -> None:  # R4.3-5
    node = new_node(bench, frame_max=bench.plan.frame_mtu - 1)
    assert not node.joined
    assert node.refused[FRAME_SIZE] == 1
    assert bench.host.refused == {FRAME_SIZE: 1}
    assert not bench.host.nodes.named("theo").active
    assert bench.host.nodes.named("theo").refused[FRAME_SIZE] == 1
    assert new_node(bench, "yan", frame_max=bench.plan.frame_mtu).joined
    short = {"frame_min": bench.plan.frame_mtu + 1, "frame_max": bench.plan.frame_mtu}
    assert not new_node(bench, "lea", **short).joined, "an aggregator has longer ones"


def test_no_other_refusal_of_a_node_is_taken(bench) -> None:  # R4.3-5
    body = control.write_control(control.Refusal(0, "whatever"))
    bench.host.receive_frames("theo", [seal_open(Header(UNASSIGNED, 0), body)], bench.now)
    assert bench.host.refused == {"kind": 1}


def test_reports_are_counted_by_peer_and_memory_is_bounded() -> None:
    deliveries = Deliveries()
    for number in range(5000):
        deliveries.note(Delivery(str(number), HELD), 0.0)
        deliveries.note(Delivery(str(number), DELIVERED), 1.0)
    last = [deliveries.was_delivered(str(number), 1.0) for number in (903, 904, 4999)]
    assert last == [False, True, True]
    assert not deliveries.is_held("4999")
    deliveries.note(Delivery("a", DELIVERED), 1.0)  # its first report came before anyone asked
    deliveries.note(Delivery("a", HELD), 2.0)
    assert deliveries.is_held("a")
    assert deliveries.was_delivered("a", 1.0)
    assert not deliveries.was_delivered("a", 1.5)


def test_every_wait_of_a_node_is_that_of_its_bearer(new_bench) -> None:  # R6.5-8
    waits = {}
    for pace in (NETWORK_TIMERS, RADIO):
        bench = new_bench(min_peers=1, rounds=9, plan={"announce_s": 86_400})
        node = new_node(bench, pace=pace)
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
    node = make_node("theo", bench.plan.dimension, pace=replace(RADIO, hello_longest_s=480.0))
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
