"""Transports that retransmit: node and host repeat nothing that such a transport holds."""

import numpy as np
import pytest

from ternmesh.deliveries import Deliveries, Delivery, DeliveryState
from ternmesh.federated.events import FRAME_SIZE
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import new_node_state
from ternmesh.security.membership import HOST
from ternmesh.timers import TimerSettings
from ternmesh.wire import control
from ternmesh.wire.frame import UNASSIGNED, Header, seal_open
from ternmesh.wire.update import MANIFEST_KIND

MODEL = bytes(range(32))
RADIO = TimerSettings(60.0, 600.0, 900.0, 3600.0, 300.0)
HELD, DELIVERED, LOST = DeliveryState.HELD, DeliveryState.DELIVERED, DeliveryState.LOST


@pytest.fixture
def bench(new_bench):
    return new_bench(min_peers=1, plan={"announce_s": 86_400})


def new_node(bench, name: str = "theo", frame_max: int = 4096) -> NodeProtocol:
    rng, state = np.random.default_rng(0), new_node_state(bench.plan.dimension)
    instance = name.encode().ljust(8)
    node = NodeProtocol(
        NodeSettings(name, MODEL, instance, pace=RADIO, frame_max=lambda: frame_max),
        state,
        samples=10,
        rng=rng,
    )
    bench.nodes[name] = node
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


def test_what_a_transport_has_lost_is_sent_at_once(bench, node) -> None:  # R6.3-6
    node.handle_delivery(Delivery(HOST, LOST), bench.now)
    assert manifests(bench) == 1


def test_new_work_leaves_although_older_work_is_held(bench, node) -> None:
    node.pending = None
    node.phase = new_node(bench, "yan").phase
    node.submit(0, bench.delta(1), bench.now)
    assert manifests(bench) == 1
    node.handle_delivery(Delivery(HOST, HELD), bench.now)
    node.handle_delivery(Delivery(HOST, LOST), bench.now)
    assert manifests(bench) == 0, "the other one is still on its way"


def test_a_catch_up_is_not_repeated_while_it_is_on_its_way_or_just_delivered(bench) -> None:
    # R6.5-13
    new_node(bench).submit(0, bench.delta(0), bench.now)
    bench.exchange()
    assert bench.host.version == 1

    bench.host.session.management.due = lambda now: ()  # inquiries are not counted here

    def answers() -> int:
        bench.wait(10.0)
        stranger = new_node_state(bench.plan.dimension)
        rng = np.random.default_rng(0)
        late = NodeProtocol(
            NodeSettings("yan", MODEL, b"yan".ljust(8), pace=RADIO), stranger, samples=10, rng=rng
        )
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
    assert new_node(bench, "yan", bench.plan.frame_mtu).joined


def test_no_other_refusal_of_a_node_is_taken(bench) -> None:  # R4.3-5
    body = control.write_control(control.Refusal(0, "whatever"))
    bench.host.receive_frames("theo", [seal_open(Header(UNASSIGNED, 0), body)], bench.now)
    assert bench.host.refused == {"kind": 1}


def test_reports_are_counted_by_peer_and_memory_is_bounded() -> None:
    deliveries = Deliveries()
    for number in range(5000):
        deliveries.note(Delivery(str(number), HELD), 0.0)
        deliveries.note(Delivery(str(number), DELIVERED), 1.0)
    assert not deliveries._held
    assert len(deliveries._delivered_at) == 4096
    deliveries.note(Delivery("a", DELIVERED), 1.0)  # its first report came before anyone asked
    deliveries.note(Delivery("a", HELD), 2.0)
    assert deliveries.is_held("a")
    assert deliveries.was_delivered("a", 1.0)
    assert not deliveries.was_delivered("a", 1.5)
