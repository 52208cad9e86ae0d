"""What a member that holds the broadcast key can spoil, and which key counts."""

from dataclasses import replace

from ternmesh.security.group_keys import LATE_MAX
from ternmesh.security.host_keys import HostKeys
from ternmesh.security.identity import Role
from ternmesh.security.key_derivation import SUITE_END, group_key, nonce
from ternmesh.security.membership import MemberList
from ternmesh.security.primitives import Ccm
from ternmesh.security.session import KEYS, GroupState, group_name, read_keys, write_keys
from ternmesh.wire.frame import Header, write_header
from tests.ternmesh.security.trust_ends import ALL, DOWN, End, hail, make_fleet, met, someone

LATER = 1e9


def forge(member: End, counter: int, body: bytes) -> bytes:
    """A broadcast as any member can seal it."""
    state = held(member)
    head = write_header(Header(ALL, counter, SUITE_END, state.epoch & 1))
    fleet = member.member_list.fleet
    key = group_key(state.secret, SUITE_END, state.fingerprint, fleet, state.epoch, counter)
    return head + Ccm(key).seal(nonce(ALL, counter), head, body)


def three() -> tuple[End, End, End]:
    host, theo, dora = make_fleet("theo", "dora")
    for node in (theo, dora):
        hail(node, host)
    return host, theo, dora


def test_a_member_cannot_occupy_the_hosts_counters() -> None:  # R9.3-14
    host, theo, dora = three()
    for ahead in range(4):
        assert dora.hear("host", forge(theo, host.counter + ahead, b"lie")) == b"lie"
    frames = [host.say("all", ALL, b"truth") for _ in range(4)]
    assert [dora.hear("host", frame) for frame in frames] == [b"truth"] * 4
    assert [dora.hear("host", frame) for frame in frames] == ["replay"] * 4
    assert dora.sealing.clones == {"all": 4}


def test_a_member_cannot_move_the_others_past_the_host() -> None:  # R9.4-4
    host, theo, dora = three()
    for leap in range(1, 6):
        lie = forge(theo, host.counter + (leap << 21), b"lie")
        assert dora.hear("host", lie) in (b"lie", "seal")
        assert dora.hear("host", host.say("all", ALL, b"truth")) == b"truth"
    assert host.sealing.due(LATER) == dora.sealing.due(LATER) == []


def test_what_a_member_made_of_a_disk_is_mended_by_the_hosts_next_word() -> None:
    host, theo, dora = three()
    assert dora.hear("host", forge(theo, host.counter + (1 << 22), b"lie")) == b"lie"
    dora.boot()
    assert dora.hear("host", host.say("all", ALL, b"truth")) == "replay"
    hail(dora, host)
    assert dora.hear("host", host.say("all", ALL, b"truth")) == b"truth"


def test_what_the_host_has_left_far_behind_is_not_heard_any_more() -> None:  # R9.4-5
    host, _, dora = three()
    early = [host.say("all", ALL, b"a"), host.say("all", ALL, b"b")]
    host.counter += LATE_MAX - 2
    assert dora.hear("host", host.say("dora", DOWN, b"x")) == b"x"
    assert [dora.hear("host", frame) for frame in early] == ["replay", b"b"]


# Keys


def group_key_message(host: End) -> tuple[bytes, tuple[int, bytes, int]]:
    """The frame that gives the present key to theo, and what is in it."""
    [(peer, address, body)] = [due for due in host.sealing.due(LATER) if due[2][0] == KEYS]
    return host.say(peer, address, body), read_keys(body)


def held(node: End) -> GroupState:
    state = node.disk[""]
    assert isinstance(state, GroupState)
    return state


def test_a_key_that_was_held_back_does_not_replace_a_newer_one() -> None:  # R9.3-12
    host, node = met()
    told = []
    for _ in range(2):
        host.sealing.rekey()
        told.append(group_key_message(host))
    (old, _), (new, keys) = told
    assert isinstance(node.hear("host", new), bytes)
    assert node.hear("host", old) == "replay"
    assert held(node).secret == keys[1]
    assert node.hear("host", host.say("all", ALL, b"x")) == b"x"
    name = group_name(held(node).secret)
    assert host.sealing.broadcast_name == node.sealing.broadcast_name == name
    assert make_fleet("theo")[1].sealing.broadcast_name == b""


def test_a_key_belongs_to_the_session_of_its_frame_not_to_the_present_one() -> None:  # R9.3-12
    """A new process of the host numbers its keys from 1 again; an old one arrives late.

    It has the higher number, but its frame is of the session before.
    """
    host, node = met()
    for _ in range(5):
        host.sealing.rekey()
        late, keys = group_key_message(host)
    assert keys[0] == 6
    host.disk.clear()
    host.boot()
    hail(node, host)
    hail(node, host)
    assert held(node).epoch < 6
    assert node.hear("host", late) == "kind"
    assert node.hear("host", host.say("all", ALL, b"x")) == b"x"


def test_of_two_keys_with_one_number_the_first_stays() -> None:  # R9.3-12
    host, node = met()
    before = held(node)
    another = write_keys(before.epoch, bytes(16), host.counter)
    assert node.hear("host", host.say("theo", 0, another)) == "replay"
    again = write_keys(before.epoch, before.secret, host.counter)
    assert node.hear("host", host.say("theo", 0, again)) == again
    assert held(node).secret == before.secret
    assert node.hear("host", host.say("all", ALL, b"x")) == b"x"


def test_a_hub_that_was_replaced_is_not_heard_any_more() -> None:
    """A stolen gateway is revoked on its boards: the key that it gave them is over, too."""
    host, theo = met(suite=2)
    assert theo.hear("host", host.say("all", ALL, b"ours")) == b"ours"
    another = someone("another", Role.HOST).public
    state = replace(theo.member_list.state, hosts=HostKeys(another, another))
    theo.member_list = MemberList(state)
    theo.boot()
    assert theo.hear("host", host.say("all", ALL, b"theirs")) == "seal"
    assert theo.sealing.due(LATER), "it asks the new one for its key"
