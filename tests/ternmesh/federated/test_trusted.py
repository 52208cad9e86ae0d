"""A fleet with keys: a whole run under suite 1, and attacks on it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ternmesh.errors import WireError
from ternmesh.federated.aggregation import read_step
from ternmesh.federated.events import GlobalUpdateMade, Refused, SecurityChanged, UpdateForgotten
from ternmesh.federated.state import new_host_state
from ternmesh.plan import to_numbers
from ternmesh.security.identity import Role
from ternmesh.security.key_derivation import nonce
from ternmesh.security.membership import ALL, HOST
from ternmesh.wire import control, fragments
from ternmesh.wire.frame import BROADCAST
from ternmesh.wire.global_update import GlobalSnapshot, certify, write_global_snapshot
from ternmesh.wire.update import NO_SIGNATURE
from tests.sim.simdisks import HostDisk

New = Callable[..., Any]


@pytest.fixture
def bench(new_bench: New) -> Any:
    """An open round of theo and yan, who have keys."""
    made = new_bench(rounds=9, min_peers=2, deadline_s=30, keys=("theo", "yan"))
    made.add("theo")
    made.add("yan")
    made.settle()
    assert made.host.phase == control.OPEN
    return made


def work(bench: Any) -> None:
    for seed, node in enumerate(bench.nodes.values()):
        node.submit(node.version, bench.delta(seed), bench.now)
    bench.exchange()


def test_a_packet_that_its_node_has_not_signed_is_forgotten(bench: Any, monkeypatch: Any) -> None:
    # R6.4-3, R9.7-3
    theo = bench.nodes["theo"]
    with monkeypatch.context() as patch:
        authenticator = theo.channel.authenticator
        patch.setattr(authenticator, "sign_update", lambda run, number, item, update: item)
        theo.submit(0, bench.delta(0), bench.now)
    bench.exchange()
    assert bench.host.refused["signature"] >= 1
    assert bench.host.round.delivered(theo.address) in ("none", "part")
    assert not theo.received


def test_a_reference_that_the_host_has_not_signed_is_not_applied(bench: Any) -> None:
    # R4.5-2, R9.7-1
    yan = bench.nodes["yan"]
    bench.host.channel.authenticator.certify = lambda run, content: ((0, NO_SIGNATURE),)
    work(bench)
    assert bench.host.version == 1
    assert yan.version == 0
    assert yan.refused["signature"] >= 1


def test_unsigned_words_of_the_host_are_refused(bench: Any) -> None:  # R9.7-2
    theo = bench.nodes["theo"]
    bench.host.channel.authenticator.sign_receipt = lambda node, run, body: body
    theo.submit(0, bench.delta(0), bench.now)
    bench.exchange()
    assert not theo.received
    refused = theo.refused["signature"]
    assert refused >= 1
    bench.host.channel.authenticator.sign_announce = lambda body: body
    bench.wait(10.0)
    bench.exchange()
    assert theo.refused["signature"] > refused


def seal_for_all(bench: Any, body: bytes) -> bytes:
    """What a member could seal for all others: it holds the broadcast key."""
    hub = bench.host.channel.sealing._hub
    bench.forged = getattr(bench, "forged", 1 << 20) + 1
    first, low = bytes((0x24 | (hub.epoch & 1) << 1,)), bench.forged.to_bytes(8, "little")[:3]
    return hub.seal(first + b"\xff\xff" + low, bench.forged, body)


def test_what_a_member_says_to_all_is_not_believed(bench: Any) -> None:  # R9.3-14
    theo = bench.nodes["theo"]
    for message in (control.Refusal(0, "unknown node"), control.Silent(0)):
        theo.receive_frames(HOST, [seal_for_all(bench, control.write_control(message))], bench.now)
    assert theo.joined
    assert theo.refused["signature"] == 2


def fragments_for_all(bench: Any) -> list[tuple[str, bytes]]:
    """The frames of the host's next global update."""
    for seed, node in enumerate(bench.nodes.values()):
        node.submit(node.version, bench.delta(seed), bench.now)
    for name in [*bench.nodes]:
        bench.host.receive_frames(name, [f for _, f in bench.take(name)], bench.now)
    return [(peer, frame) for peer, frame in bench.take(HOST) if peer == ALL]


def test_who_hears_no_broadcast_is_sent_the_reference_alone(bench: Any) -> None:  # R4.4-6
    """A member that forges more than a search finds costs a question and a unicast."""
    theo = bench.nodes["theo"]
    fragments_for_all(bench)
    content = bench.last(HOST, GlobalUpdateMade).content
    first = fragments.split(content, bench.plan.frame_mtu)[0]
    for number in range(40):
        false = seal_for_all(bench, first[:-1] + bytes((number,)))
        theo.receive_frames(HOST, [false], bench.now)
    assert theo.version == 0
    bench.wait(10.0)  # it is announced
    bench.exchange()
    bench.wait(7.5)
    bench.exchange()
    assert theo.version == 1


def test_junk_from_a_member_does_not_pass_for_the_host(bench: Any) -> None:
    """Unsigned objects do not show that the host is still there."""
    theo = bench.nodes["theo"]
    due = theo.next_timeout()
    for number in range(5):
        bench.now += 1.0
        junk = certify(b"junk %d" % number)
        for body in fragments.split(junk, bench.plan.frame_mtu):
            theo.receive_frames(HOST, [seal_for_all(bench, body)], bench.now)
    assert theo.refused["signature"] == 5
    assert theo.next_timeout() == due


def signed_announce(bench: Any, version: int) -> bytes:
    number = bench.host.channel.authenticator.list_number
    message = control.Announce(bench.host.run, version, control.OPEN, 0, number)
    return bench.host.channel.authenticator.sign_announce(control.write_control(message))


def test_an_announce_that_is_played_again_makes_nobody_speak(bench: Any) -> None:  # R6.5-6
    """A member can seal the host's messages again, as often as it likes."""
    old = signed_announce(bench, 0)
    for _ in range(2):
        work(bench)
    theo = bench.nodes["theo"]
    assert theo.version == 2
    due, refused = theo.next_timeout(), theo.refused["replay"]
    now = signed_announce(bench, 2)
    for body in [old, now] * 20:
        theo.receive_frames(HOST, [seal_for_all(bench, body)], bench.now)
    assert bench.take("theo") == []
    assert theo.next_timeout() == due
    assert theo.refused["replay"] == refused + 20


def new_run(bench: Any) -> Any:
    """The operator wipes the run; the host's seals go on."""
    state = replace(new_host_state(bench.plan.dimension), counter=1 << 16)
    return bench.restart_host(state, b"next run")


def test_what_waits_to_be_sealed_does_not_cross_into_the_next_run(bench: Any) -> None:  # R3-11
    theo = bench.nodes["theo"]
    theo.submit(0, bench.delta(7), bench.now)  # its bodies wait for the transport
    host = new_run(bench)
    welcome = control.Welcome(
        theo.joining.instance, theo.address, host.run, 0, 1, 0, to_numbers(bench.plan)
    )
    theo.say_hello(bench.now)
    theo._receive_welcome(welcome, 0, bench.now)
    assert not [frame for _, frame in bench.take("theo") if frame[1:3] != b"\0\0"]


def test_a_new_run_is_heard_of_at_once(bench: Any) -> None:  # R9.3-11
    """The host gives its new broadcast key away before it announces the run under it."""
    new_run(bench)
    bench.exchange()
    bench.wait(1.0)
    bench.exchange()
    assert {node.run for node in bench.nodes.values()} == {b"next run"}


def test_a_host_that_goes_on_with_its_run_costs_no_hello(bench: Any) -> None:  # R6.5-14
    state = replace(new_host_state(bench.plan.dimension), counter=1 << 16, started=True)
    asked_at = bench.nodes["theo"].joining.asked_at
    bench.restart_host(state)
    bench.settle()
    assert bench.nodes["theo"].joining.asked_at == asked_at, "its announce was news enough"


def test_a_snapshot_is_for_one_node(bench: Any) -> None:  # R9.3-14
    """It lists what was counted of one: others would take their own for lost."""
    bench.nodes["theo"].submit(0, bench.delta(0), bench.now)
    bench.exchange()
    theo, yan = bench.nodes["theo"], bench.nodes["yan"]
    host = bench.host
    content = host._snapshot(host.nodes[yan.address])
    global_snapshot = certify(content, host.channel.authenticator.certify(host.run, content))
    *first, last = fragments.split(global_snapshot, bench.plan.frame_mtu)
    for fragment in first:
        theo._receive_fragment(fragment, BROADCAST, bench.now)
    with pytest.raises(WireError, match="for one node"):
        theo._receive_fragment(last, BROADCAST, bench.now)
    assert theo.pending is not None


def test_a_strangers_junk_is_not_answered(bench: Any) -> None:  # R6.6-2
    bench.exchange()
    sent = len(bench.sent[HOST])
    for index in range(50):
        bench.wait(1.1)
        bench.host.receive_frames("theo", [bytes(20), b"\x24" + bytes([index]) * 40], bench.now)
    bench.exchange()
    to_theo = [frame for peer, frame in bench.sent[HOST][sent:] if peer == "theo"]
    assert len(to_theo) <= 8, "questions of the seals, ever more seldom"


def test_an_observer_is_no_board(new_bench: New) -> None:
    bench = new_bench(min_peers=1, keys=("theo",))
    olga = bench.keys.identity("theo", Role.OBSERVER)
    bench.keys.members["theo"] = olga
    bench.host.channel.authenticator._member_list = bench.host.channel.sealing._member_list = (
        bench.keys.member_list()
    )
    bench.add("theo")
    bench.settle()
    assert bench.host.phase == control.GATHERING
    assert not bench.nodes["theo"].joined


def test_a_snapshot_names_its_model(bench: Any) -> None:
    whole = GlobalSnapshot(1, bytes(16), b"", False, 0, (), bench.host.model_q24)
    data = certify(write_global_snapshot(whole))
    with pytest.raises(WireError, match="another model"):
        read_step(data, bench.plan.dimension, bytes(range(32)), lambda *_: None)


# Revoked nodes do not count, at any time


@pytest.fixture
def revoking(new_bench: New) -> Any:
    """An open round of three nodes; nothing falls due by itself."""
    names = ("theo", "yan", "mallory")
    made = new_bench(min_peers=1, deadline_s=3000, keys=names, plan={"announce_s": 600})
    for name in names:
        made.add(name)
    made.settle()
    return made


def test_what_a_node_sent_before_the_host_stopped_does_not_count_if_it_was_revoked(
    revoking: Any,
) -> None:
    theo, mallory = revoking.nodes["theo"], revoking.nodes["mallory"]
    for node in (theo, mallory):
        node.submit(0, revoking.delta(node.address), revoking.now)
    revoking.exchange()
    assert revoking.host.round.delivered(mallory.address) == "whole"
    disk = HostDisk(revoking.host.run, revoking.plan)
    for event in revoking.events[HOST]:
        disk.record(event)
    disk.commit()
    revoking.keys.revoked.add("mallory")
    again = revoking.restart_host(replace(disk.load(), counter=1 << 16))
    again.nodes[theo.address].in_step = True  # it was heard since
    again.handle_timeout(revoking.now + 3001)
    events = []
    while (event := again.next_event()) is not None:
        events.append(event)
    assert UpdateForgotten(mallory.address, 0) in events
    assert UpdateForgotten(theo.address, 0) not in events
    [made] = [event for event in events if isinstance(event, GlobalUpdateMade)]
    assert [row.address for row in made.counted] == [theo.address]


@pytest.mark.parametrize("way", ["exclude", "timeout", "packet"])
def test_a_reference_never_goes_out_before_the_key_that_it_is_under(
    revoking: Any, way: str
) -> None:
    # R9.3-11
    revoking.nodes["theo"].submit(0, revoking.delta(0), revoking.now)
    if way != "packet":
        revoking.nodes["yan"].submit(0, revoking.delta(0), revoking.now)
    revoking.exchange()
    assert revoking.host.version == 0
    for node in revoking.nodes.values():
        node.refused.clear()
    revoking.host.channel.authenticator._member_list.revoke("mallory")
    revoking.host.channel.sealing.rekey()
    if way == "exclude":
        revoking.host.exclude("mallory", revoking.now)
    elif way == "packet":
        revoking.nodes["yan"].submit(0, revoking.delta(0), revoking.now)
        frames = [frame for _, frame in revoking.take("yan")]
        revoking.host.receive_frames("yan", frames, revoking.now)  # in one message
    else:
        revoking.host.deadline = revoking.now
        revoking.host.handle_timeout(revoking.now)
    revoking.exchange()
    assert revoking.host.version == 1
    for name in ("theo", "yan"):
        assert revoking.nodes[name].version == 1
        assert not revoking.nodes[name].refused


def test_forged_broadcasts_write_nothing(revoking: Any) -> None:  # R9.3-14
    """A member can seal one, and not sign it: each is refused, and none may cost an fsync."""
    theo, listener = revoking.nodes["theo"], revoking.nodes["mallory"].channel.sealing._listener
    keys, found = listener._keys, []
    for number in range(20):
        counter = listener._near + 1000 + number
        head = bytes((1 << 5 | 1 << 2 | (keys.state.epoch & 1) << 1, 255, 255))
        head += (counter & 0xFFFFFF).to_bytes(3, "little")
        frame = head + keys.cipher(counter).seal(nonce(0xFFFF, counter), head, b"\x0e" + bytes(70))
        theo.receive_frames(HOST, [frame], revoking.now)
        while (event := theo.next_event()) is not None:
            found.append(type(event))
    assert theo.refused["signature"] == 20
    assert found == [Refused] * 20
    theo.submit(0, revoking.delta(0), revoking.now)
    revoking.take("theo")
    assert isinstance(revoking.last("theo", SecurityChanged), SecurityChanged), (
        "with what is sent next"
    )
