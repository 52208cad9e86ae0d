"""Revoked nodes do not count, at any time; forged frames cause no disk writes."""

from typing import Any

import numpy as np
import pytest

from ternmesh.federated.events import (
    BodyAccepted,
    GlobalUpdateMade,
    Refused,
    SecurityChanged,
    UpdateForgotten,
)
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.state import HostState, RegisteredNode
from ternmesh.security.key_derivation import nonce
from ternmesh.security.membership import HOST

NAMES = ("theo", "yan", "mallory")


@pytest.fixture
def bench(new_bench: Any) -> Any:
    """An open round of three nodes; nothing falls due by itself."""
    made = new_bench(min_peers=1, deadline_s=3000, keys=NAMES, plan={"announce_s": 600})
    for name in NAMES:
        made.add(name)
    for _ in range(3):
        made.exchange()
        made.wait(2.0)
    made.exchange()
    return made


def revoke(bench: Any, member_list: Any) -> None:
    member_list.revoke("mallory")


def test_what_a_node_sent_before_the_host_stopped_does_not_count_if_it_was_revoked(
    bench: Any,
) -> None:
    theo, mallory = bench.nodes["theo"], bench.nodes["mallory"]
    for node in (theo, mallory):
        node.submit(0, bench.delta(node.address), bench.now)
    bench.exchange()
    assert bench.host.round.delivered(mallory.address) == "whole"
    said = [e for e in bench.events[HOST] if isinstance(e, BodyAccepted)]
    dimension = bench.plan.dimension
    state = HostState(
        model_q24=np.zeros(dimension, np.int32),
        residual=np.zeros(dimension, np.float32),
        started=True,
        nodes=tuple(
            RegisteredNode(n.address, n.name, n.samples) for n in bench.host.nodes.values()
        ),
        bodies=tuple((event.address, event.body) for event in said),
        counter=1 << 16,
    )
    security = bench.keys.security(HOST, 1 << 16)
    revoke(bench, security.authenticator._member_list)
    again = HostProtocol(
        plan=bench.plan,
        settings=bench.host.settings,
        model_hash=bytes(range(32)),
        run=bench.host.run,
        state=state,
        security=security,
    )
    again.start(bench.now)
    again.nodes[theo.address].in_step = True  # it was heard since
    again.handle_timeout(bench.now + 3001)
    events = []
    while (event := again.next_event()) is not None:
        events.append(event)
    assert UpdateForgotten(mallory.address, 0) in events
    assert UpdateForgotten(theo.address, 0) not in events
    [made] = [event for event in events if isinstance(event, GlobalUpdateMade)]
    assert [row.address for row in made.counted] == [theo.address]


@pytest.mark.parametrize("way", ["exclude", "timeout", "packet"])
def test_a_reference_never_goes_out_before_the_key_that_it_is_under(bench: Any, way: str) -> None:
    # R9.3-11
    bench.nodes["theo"].submit(0, bench.delta(0), bench.now)
    if way != "packet":
        bench.nodes["yan"].submit(0, bench.delta(0), bench.now)
    bench.exchange()
    assert bench.host.version == 0
    for node in bench.nodes.values():
        node.refused.clear()
    revoke(bench, bench.host.channel.authenticator._member_list)
    bench.host.channel.sealing.rekey()
    if way == "exclude":
        bench.host.exclude("mallory", bench.now)
    elif way == "packet":
        bench.nodes["yan"].submit(0, bench.delta(0), bench.now)
        frames = [frame for _, frame in bench.take("yan")]
        bench.host.receive_frames("yan", frames, bench.now)  # in one message
    else:
        bench.host.deadline = bench.now
        bench.host.handle_timeout(bench.now)
    bench.exchange()
    assert bench.host.version == 1
    for name in ("theo", "yan"):
        assert bench.nodes[name].version == 1
        assert not bench.nodes[name].refused


def test_a_key_is_given_at_once_also_where_somebody_who_never_joined_was_revoked(
    bench: Any,
) -> None:
    bench.host.channel.sealing.rekey()
    bench.host.exclude("shed", bench.now)
    bench.exchange()
    for node in bench.nodes.values():
        assert node.channel.sealing.broadcast_name == bench.host.channel.sealing.broadcast_name


def test_forged_broadcasts_write_nothing(bench: Any) -> None:  # R9.3-14
    """A member can seal one, and not sign it: each is refused, and none may cost an fsync."""
    theo, listener = bench.nodes["theo"], bench.nodes["mallory"].channel.sealing._listener
    keys, found = listener._keys, []
    for number in range(20):
        counter = listener._near + 1000 + number
        head = bytes((1 << 5 | 1 << 2 | (keys.state.epoch & 1) << 1, 255, 255))
        head += (counter & 0xFFFFFF).to_bytes(3, "little")
        frame = head + keys.cipher(counter).seal(nonce(0xFFFF, counter), head, b"\x0e" + bytes(70))
        theo.receive_frames(HOST, [frame], bench.now)
        while (event := theo.next_event()) is not None:
            found.append(type(event))
    assert theo.refused["signature"] == 20
    assert found == [Refused] * 20
    theo.submit(0, bench.delta(0), bench.now)
    bench.take("theo")
    assert isinstance(bench.last("theo", SecurityChanged), SecurityChanged), (
        "with what is sent next"
    )
