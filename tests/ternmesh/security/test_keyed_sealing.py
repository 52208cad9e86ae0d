from itertools import pairwise

import pytest

from ternmesh.errors import WireError
from ternmesh.security import session
from ternmesh.security.identity import Role, make_identity
from ternmesh.security.keyed_sealing import OPENING_SIZE, SYNC_OVERHEAD
from ternmesh.security.peer_session import ASK_MAX_S, BAD_ASK
from ternmesh.security.sealing import OpenSealing
from ternmesh.wire.frame import Header, open_seal, seal_open
from tests.ternmesh.security.trust_ends import (
    ALL,
    DOWN,
    UP,
    End,
    answer,
    entropy,
    hail,
    make_fleet,
    met,
    someone,
)

LATER = 1e9


def mirror(host: End, node: End) -> None:
    """Both directions and broadcasts work."""
    assert host.hear("theo", node.say("host", UP, b"up")) == b"up"
    assert node.hear("host", host.say("theo", DOWN, b"down")) == b"down"
    assert node.hear("host", host.say("all", ALL, b"all")) == b"all"


def test_first_contact_takes_one_question_and_then_everything_works() -> None:
    host, node = make_fleet("theo")
    with pytest.raises(WireError, match="has not answered since this start"):
        node.say("host", UP, b"early")
    assert host.hear("theo", node.say("host", 0, b"\x01hello")) == "sync"
    answer(host, node)
    assert host.hear("theo", node.say("host", 0, b"\x01hello")) == b"\x01hello"
    hail(node, host)
    mirror(host, node)
    assert host.sealing.clones == node.sealing.clones == {}


def test_a_frame_has_14_bytes_more_than_its_body_and_a_sync_57_more() -> None:
    host, node = met()
    _, stranger = make_fleet("theo")
    assert len(stranger.say("host", 0, b"\x01hello")) == OPENING_SIZE == 51
    assert len(node.say("host", UP, b"x" * 208)) == 222
    assert len(host.say("all", ALL, b"x" * 208)) == 222
    assert len(node.say("host", 0, b"x")) == 1 + SYNC_OVERHEAD == 1 + 14 + 57
    body = b"a body that nobody else reads"
    frames = (node.say("host", UP, body), node.say("host", 0, body), host.say("all", ALL, body))
    assert not any(body in frame for frame in frames)


def test_every_bit_of_a_frame_is_under_its_tag() -> None:  # R3-10, R9.4-2
    """And what is forged moves no window: the true frame is taken after all of them."""
    host, node = met()
    frame = node.say("host", UP, b"x")
    for bit in range(8 * len(frame)):
        wrong = bytearray(frame)
        wrong[bit // 8] ^= 1 << bit % 8
        assert host.hear("theo", bytes(wrong)) in ("seal", "suite", "version", "role", "sync")
    for counter in range(0, 1 << 24, 1 << 18):
        head = bytes((0x26,)) + UP.to_bytes(2, "little") + counter.to_bytes(3, "little")
        assert host.hear("theo", head + bytes(30)) == "seal"
    assert host.hear("theo", frame) == b"x"


def test_there_is_no_way_down_to_the_open_suite() -> None:  # R3-9, R3-13
    """A frame of another suite is refused, also for enrolment and to all; so are suites to come."""
    host, node = met()
    for address in (0, UP, DOWN, ALL):
        frame = seal_open(Header(address, 9), b"\x01hello")
        for suite in (0, *range(2, 8)):
            other = bytes((1 << 5 | suite << 2,)) + frame[1:]
            assert (host.hear("theo", other), node.hear("host", other)) == ("suite", "suite")
    with pytest.raises(WireError, match="not enrolled"):
        host.sealing.seal("stranger", DOWN, 1, b"secret")
    with pytest.raises(WireError, match="only the hub"):
        node.sealing.seal("all", ALL, 1, b"secret")


def test_a_key_that_comes_first_is_not_believed() -> None:
    host, impostor = make_fleet("theo")
    impostor.identity = make_identity("theo", Role.NODE, entropy("impostor"))
    impostor.boot()
    assert host.hear("theo", impostor.say("host", 0, b"x")) == "seal"


def test_who_goes_on_in_a_session_that_is_over_is_a_clone() -> None:  # R9.3-5
    host, node = met()
    node.say("host", UP, b"lost")
    straggler, twin = node.say("host", UP, b"straggler"), node.sealing
    node.boot()
    hail(node, host)
    assert host.hear("theo", straggler) == b"straggler"
    assert host.sealing.clones == {}
    second = twin.seal("host", UP, node.counter + 5, b"the other board")
    assert host.hear("theo", second) == "clone"
    assert host.sealing.clones == {"theo": 1}


@pytest.mark.parametrize(
    "own", [session.QUESTION, session.ANSWER, session.write_keys(1, bytes(16), 0)]
)
def test_what_is_the_seals_own_is_so_in_context_0_alone(own: bytes) -> None:  # R9.3-8
    host, node = met()
    header, body = host.sealing.open("theo", node.say("host", UP, own))
    assert not host.sealing.is_own(header.address, body)
    assert host.sealing.is_own(0, own)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (session.QUESTION[:1], "length"),
        (session.QUESTION + b"x", "length"),
        (b"\x0a\x02", "length"),
        (session.write_keys(1, bytes(16), 0)[:-1], "length"),
        (session.write_keys(1, bytes(16), 0), "kind"),  # a node has none to give
    ],
)
def test_a_body_of_the_seals_own_has_one_form(body: bytes, reason: str) -> None:  # R9.3-8
    host, node = met()
    assert host.hear("theo", node.say("host", 0, body)) == reason
    assert host.sealing.due(LATER) == []  # nobody was asked anything


def test_a_member_without_the_broadcast_key_is_given_it_after_its_hello() -> None:  # R9.3-11
    host, node = met()
    del node.disk[""]
    node.boot()
    host.hear("theo", node.say("host", 0, b"\x01hello"))
    [(peer, address, body)] = host.sealing.due(LATER)
    assert node.hear("host", host.say(peer, address, body)) == body
    assert node.hear("host", host.say("all", ALL, b"x")) == b"x"
    host.hear("theo", node.say("host", 0, b"\x01hello"))
    assert host.sealing.due(2 * LATER) == []


def test_a_receiver_that_lost_its_disk_asks_and_takes_nothing_old() -> None:  # R9.3-10
    host, node = met()
    old = [node.say("host", 0, b"\x01hello"), node.say("host", UP, b"old")]
    assert [host.hear("theo", frame) for frame in old] == [b"\x01hello", b"old"]
    host.disk.clear()
    host.boot()
    assert [host.hear("theo", frame) for frame in old] == ["sync", "seal"]
    hail(node, host)
    assert [host.hear("theo", frame) for frame in old] == ["sync", "seal"]
    mirror(host, node)


def test_a_host_restored_from_an_old_copy_finds_out_by_the_first_hello() -> None:
    host, node = met()
    disk, counter = dict(host.disk), host.counter
    for _ in range(10):
        assert node.hear("host", host.say("theo", DOWN, b"x")) == b"x"
    host.disk, host.counter = disk, counter
    host.boot()
    [(peer, address, body)] = host.sealing.due(0.0)
    assert node.hear("host", host.say(peer, address, body)) == body
    assert host.hear("theo", node.say("host", 0, b"\x01hello")) == b"\x01hello"
    assert host.sealing.clones == {"greenhouse": 1}
    hail(node, host)
    assert node.sealing.clones == {"greenhouse": 1}
    mirror(host, node)


def test_frames_are_understood_over_the_changes_of_their_keys() -> None:
    host, node = met()
    for start in (0, 1 << 20, (1 << 22) + 5, 3 << 22):
        node.counter = max(node.counter, start)
        assert host.hear("theo", node.say("host", UP, b"up")) == b"up"


def test_after_a_long_absence_a_hello_finds_the_counter_again() -> None:
    host, node = met()
    host.counter += 3 << 24
    node.counter += 5 << 24
    assert host.hear("theo", node.say("host", UP, b"x")) == "seal"
    assert node.hear("host", host.say("all", ALL, b"x")) == "seal"
    hail(node, host)
    mirror(host, node)


def test_a_revoked_node_is_not_heard_and_hears_no_broadcast_any_more() -> None:  # R9.1-3, R9.3-11
    host, theo, dora = make_fleet("theo", "dora")
    for node in (theo, dora):
        hail(node, host)
    host.member_list.revoke("theo")
    host.sealing.rekey()
    told = host.sealing.due(LATER)
    assert [peer for peer, _, _ in told] == ["dora"]
    for peer, address, body in told:
        assert dora.hear("host", host.say(peer, address, body)) == body
    broadcast = host.say("all", ALL, b"x")
    assert dora.hear("host", broadcast) == b"x"
    assert theo.hear("host", broadcast) == "seal"
    assert host.hear("theo", theo.say("host", UP, b"x")) == "revoked"
    assert host.hear("theo", theo.say("host", 0, b"\x01hello")) == "revoked"
    with pytest.raises(WireError, match="revoked"):
        host.sealing.seal("theo", DOWN, 10**6, b"x")


@pytest.mark.parametrize(
    ("role", "address", "answer"),
    [
        (Role.NODE, UP, b"x"),
        (Role.GATEWAY, UP, b"x"),
        (Role.RELAY, UP, "role"),
        (Role.OBSERVER, UP, "role"),
        (Role.NODE, DOWN, "role"),
        (Role.GATEWAY, DOWN, "role"),
        (Role.OBSERVER, 0, b"x"),
    ],
)
def test_who_may_speak_where(role: Role, address: int, answer: bytes | str) -> None:  # R9.1-1
    """A member with the right keys still speaks only where its role does."""
    host, _ = make_fleet("theo")
    odd = End("odd", someone("odd", role), host.member_list)
    host.member_list.enrol(odd.identity.public)
    hail(odd, host)
    assert host.hear("odd", odd.say("host", address, b"x")) == answer


def test_nobody_speaks_for_another_and_nothing_is_reflected() -> None:
    host, theo, dora = make_fleet("theo", "dora")
    for node in (theo, dora):
        hail(node, host)
    frame = theo.say("host", UP, b"x")
    assert host.hear("dora", frame) == "seal"
    assert host.hear("stranger", frame) == "unknown key"
    down = host.say("theo", DOWN, b"x")
    assert dora.hear("host", down) == "seal"
    assert host.hear("theo", b"\x26" + UP.to_bytes(2, "little") + down[3:]) == "seal"
    assert host.hear("theo", frame) == b"x"


def test_each_fleet_layer_and_key_has_sessions_of_its_own() -> None:
    host, node = met()
    other_host, other_node = make_fleet("theo")
    other_host.member_list.fleet = other_node.member_list.fleet = bytes(16)
    for end in (other_host, other_node):
        end.boot()
    hail(other_node, other_host)
    for address in (UP, 0):
        assert host.hear("theo", other_node.say("host", address, b"x")) == "seal"
    _, near = met(suite=2)
    assert host.hear("theo", near.say("host", 1, b"x")) == "suite"
    frame = bytearray(near.say("host", 1, b"x"))
    frame[0] = 1 << 5 | 1 << 2 | frame[0] & 2
    assert host.hear("theo", bytes(frame)) == "seal"
    new = make_identity("theo", Role.NODE, entropy("next"))
    host.member_list.revoke("theo")
    host.member_list.enrol(new.public)
    assert host.hear("theo", node.say("host", UP, b"x")) == "seal"


def test_states_read_back() -> None:
    host, node = met()
    mirror(host, node)
    host.save()
    node.save()
    for state in (*host.disk.values(), *node.disk.values()):
        if isinstance(state, session.PeerState):
            assert session.read_peer(state.name, session.write_peer(state)) == state
        else:
            assert isinstance(state, session.GroupState)
            assert session.read_group(session.write_group(state)) == state
            assert "secret" not in repr(state)
    assert len(session.write_peer(host.disk["theo"])) == 56  # type: ignore[arg-type]


def test_forged_frames_make_nobody_talk_much() -> None:  # R9.3-10
    host, _ = make_fleet("theo")
    times, now = [], 0.0
    while now < 10 * ASK_MAX_S:
        for _ in range(BAD_ASK):
            assert host.hear("theo", b"\x26" + UP.to_bytes(2, "little") + bytes(40)) == "seal"
        if host.sealing.due(now):
            times.append(now)
        now += 1.0
    gaps = [late - early for early, late in pairwise(times)]
    assert gaps[:4] == [2.0, 4.0, 8.0, 16.0]
    assert max(gaps) == ASK_MAX_S


def test_the_open_form_is_that_of_the_wire() -> None:
    sealing = OpenSealing()
    frame = sealing.seal("host", 3, 4, b"x")
    assert sealing.open("host", frame) == open_seal(frame)
    assert not sealing.is_own(0, session.QUESTION)
