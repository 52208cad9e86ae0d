"""Who is a member: enrolled, rotated, revoked, and learned from the host's list."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import SecurityError, WireError
from ternmesh.security.enrolment import (
    accept_rotation,
    check_rotation_answer,
    write_rotation_request,
)
from ternmesh.security.identity import Identity, Role, make_identity, parse_rotation, rotation_text
from ternmesh.security.membership import (
    CLAIM_JUMP_MAX,
    MARK,
    MEMBERS_MAX,
    OVER_MAX,
    REVOKED_MAX,
    ROTATED_MAX,
    MemberList,
    MembersBehindGateway,
    fleet_text,
    found_fleet,
    parse_fleet,
    write_fleet,
    write_rotation,
)
from ternmesh.security.primitives import statement
from tests.ternmesh.security.trust_ends import entropy, someone

HOST, THEO, DORA = someone("greenhouse", Role.HOST), someone("theo"), someone("dora")
SHED = someone("shed", Role.GATEWAY)
FLEET = found_fleet("tomatoes", HOST.public)


def keys_of(name: str, number: object) -> Identity:
    return make_identity(name, Role.NODE, entropy(name, number))


NEXT = keys_of("theo", "next")
ROTATION = write_rotation(THEO, NEXT, FLEET.fleet)


def members(*enrolled: Identity) -> MemberList:
    made = MemberList(FLEET)
    for member in enrolled:
        made.enrol(member.public)
    return made


def fingerprints(count: int) -> tuple[bytes, ...]:
    return tuple(number.to_bytes(16, "big") for number in range(count))


def request(old: Identity, new: Identity) -> bytes:
    return write_rotation_request(write_rotation(old, new, FLEET.fleet))


def refused(fleet: MemberList, body: bytes, peer: str = "theo") -> str:
    before = fleet.state
    with pytest.raises(WireError) as caught:
        accept_rotation(body, fleet, HOST, peer)
    assert fleet.state == before
    return caught.value.reason


def test_members_are_found_by_the_bearers_name_and_the_host_by_its_own() -> None:
    fleet = members(THEO)
    assert fleet.find("theo") == THEO.public
    assert fleet.find("host") == HOST.public
    for stranger in ("greenhouse", "dora", ""):
        with pytest.raises(WireError) as caught:
            fleet.find(stranger)
        assert caught.value.reason == "unknown key"
    assert fleet.enrol(THEO.public) is False


def test_fleets_of_one_host_have_different_names() -> None:
    other = found_fleet("bees", HOST.public).fleet
    assert len(FLEET.fleet) == len(other) == 16
    assert FLEET.fleet != other
    with pytest.raises(SecurityError, match="not a host"):
        found_fleet("tomatoes", THEO.public)


@pytest.mark.parametrize(
    ("stranger", "reason"),
    [
        (someone("host"), "cannot have"),
        (someone("all"), "cannot have"),
        (someone("other", Role.HOST), "cannot have"),
        (make_identity("dora", Role.NODE, THEO.seeds), "another name"),
        (NEXT, "only a rotation signed by that key"),
    ],
)
def test_who_cannot_be_enrolled(stranger: Identity, reason: str) -> None:  # R9.5-2
    fleet = members(THEO)
    with pytest.raises(SecurityError, match=reason):
        fleet.enrol(stranger.public)
    assert fleet.state == members(THEO).state


# Rotation


def test_host_and_member_agree_on_the_new_key_also_when_the_answer_was_lost() -> None:
    fleet = members(THEO, DORA)
    new, answer = accept_rotation(write_rotation_request(ROTATION), fleet, HOST, "theo")
    assert new == fleet.find("theo") == NEXT.public
    check_rotation_answer(answer, HOST.public, fleet.fleet, ROTATION)
    state = fleet.state
    assert accept_rotation(write_rotation_request(ROTATION), fleet, HOST, "theo") == (new, answer)
    assert fleet.state == state
    assert len(answer) + 14 == 79


ROTATIONS = {
    "of another member": (request(THEO, NEXT), "dora", "unknown key"),
    "of a stranger": (request(THEO, NEXT), "stranger", "unknown key"),
    "by the new key": (request(NEXT, THEO), "theo", "unknown key"),
    "of the host": (  # R9.5-4
        request(HOST, make_identity("greenhouse", Role.HOST, entropy("new"))),
        "host",
        "unknown key",
    ),
    "to a member's keys": (
        request(THEO, make_identity("theo", Role.NODE, DORA.seeds)),
        "theo",
        "enrolment",
    ),
    "of another fleet": (
        write_rotation_request(write_rotation(THEO, NEXT, bytes(16))),
        "theo",
        "signature",
    ),
}


@pytest.mark.parametrize(("body", "peer", "reason"), ROTATIONS.values(), ids=list(ROTATIONS))
def test_a_rotation_that_is_refused(body: bytes, peer: str, reason: str) -> None:
    assert refused(members(THEO, DORA), body, peer) == reason


def test_who_has_only_one_of_the_keys_rotates_nothing() -> None:
    fleet = members(THEO)
    for at in range(16, len(ROTATION), 7):
        wrong = bytearray(ROTATION)
        wrong[at] ^= 1
        assert refused(fleet, write_rotation_request(bytes(wrong))) in ("signature", "enrolment")


def test_a_rotation_in_force_is_answered_to_its_own_member_alone() -> None:  # R9.6-5
    """A relay could otherwise play it in anybody's name, and the host would take it for news."""
    fleet = members(THEO, DORA)
    accept_rotation(request(THEO, NEXT), fleet, HOST, "theo")
    assert refused(fleet, request(THEO, NEXT), "dora") == "unknown key"
    assert refused(fleet, request(THEO, keys_of("theo", "thief"))) == "unknown key", "it is over"


def rotate_often(fleet: MemberList, name: str) -> list[Identity]:
    """As often as a name may; its keys, the present one last."""
    keys = [someone(name)]
    for number in range(ROTATED_MAX):
        keys.append(keys_of(name, number))
        fleet.rotate(write_rotation(keys[-2], keys[-1], fleet.fleet))
    return keys


def test_none_of_the_keys_that_were_rotated_comes_back() -> None:  # R9.5-3
    fleet = members(someone("mallory"))
    *old, present = rotate_often(fleet, "mallory")
    fleet = MemberList(fleet.state)
    for key in old:
        assert refused(fleet, request(present, key), "mallory") == "revoked"
        with pytest.raises(WireError, match="no member has this key"):
            fleet.rotate(write_rotation(key, present, fleet.fleet))
    fleet.revoke("mallory")
    for key in old:
        with pytest.raises(SecurityError, match="rotated"):
            fleet.enrol(key.public)


def test_who_rotates_for_ever_takes_nobodys_place() -> None:  # R9.5-4
    fleet = members(THEO, someone("mallory"))
    keys = rotate_often(fleet, "mallory")
    assert refused(fleet, request(keys[-1], keys_of("mallory", "more")), "mallory") == "full"
    assert fleet.rotate(ROTATION) == NEXT.public
    names = tuple((str(number), key) for number, key in enumerate(fingerprints(OVER_MAX)))
    full = MemberList(replace(members(THEO).state, rotated=names[: OVER_MAX - REVOKED_MAX]))
    assert refused(full, request(THEO, NEXT)) == "full", "and room to revoke"


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes((data[-1] ^ 1,))


@pytest.mark.parametrize(
    ("change", "who", "about"),
    [
        (flipped, HOST, ROTATION),
        (bytes, DORA, ROTATION),
        (bytes, HOST, write_rotation(THEO, keys_of("theo", 1), FLEET.fleet)),
        (lambda answer: answer[:-1], HOST, ROTATION),
        (lambda answer: b"\x0d" + answer[1:], HOST, ROTATION),
    ],
    ids=["a wrong byte", "of a member", "of another rotation", "cut short", "of another kind"],
)
def test_only_the_host_says_that_a_rotation_is_in_force(
    change: Callable[[bytes], bytes], who: Identity, about: bytes
) -> None:
    _, answer = accept_rotation(request(THEO, NEXT), members(THEO), HOST, "theo")
    with pytest.raises(WireError):
        check_rotation_answer(change(answer), who.public, FLEET.fleet, about)


@given(st.binary(max_size=300))
def test_any_bytes_change_nothing(data: bytes) -> None:
    fleet = members(THEO)
    refused(fleet, data)
    refused(fleet, write_rotation_request(THEO.public.fingerprint + data))
    with pytest.raises(WireError):
        check_rotation_answer(data, HOST.public, fleet.fleet, data)


def test_a_rotation_travels_as_a_line() -> None:  # R9.6-7
    keys = [make_identity("n" * 32, Role.NODE, entropy(number)) for number in range(2)]
    longest = write_rotation(keys[0], keys[1], bytes(16))
    assert parse_rotation(f" {rotation_text(longest)}\n") == longest
    assert len(write_rotation_request(longest)) == 244
    with pytest.raises(SecurityError, match="copy it again"):
        parse_rotation(rotation_text(longest)[:-3] + "AAA")
    with pytest.raises(ValueError, match="name and role"):
        write_rotation(THEO, DORA, bytes(16))


# Revocation, and the list's number and limits


def test_a_revoked_key_stays_revoked() -> None:  # R9.5-7
    fleet = members(THEO, DORA)
    fleet.revoke("theo")
    state = fleet.state
    fleet.revoke("theo")
    assert fleet.state == state
    fleet = MemberList(state)
    with pytest.raises(WireError, match="revoked"):
        fleet.find("theo")
    with pytest.raises(SecurityError, match="revoked"):
        fleet.enrol(THEO.public)
    assert refused(fleet, request(THEO, NEXT)) == "revoked"
    with pytest.raises(SecurityError, match="not enrolled"):
        fleet.revoke("yan")


def test_a_fleet_is_bounded() -> None:  # R9.5-1
    fleet = MemberList(replace(members(THEO, DORA).state, revoked=fingerprints(REVOKED_MAX - 1)))
    fleet.revoke("theo")
    with pytest.raises(SecurityError, match="at most"):
        fleet.revoke("dora")
    many = tuple(replace(THEO.public, name=str(number)) for number in range(MEMBERS_MAX - 1))
    fleet = MemberList(replace(FLEET, members=(THEO.public, *many)))
    fleet.revoke("theo")
    assert fleet.enrol(NEXT.public), "its place is there already"
    with pytest.raises(SecurityError, match="at most"):
        fleet.enrol(DORA.public)


def test_the_lists_number_rises_with_every_change() -> None:  # R9.5-6
    fleet = members(THEO, DORA)
    assert fleet.number == 2
    fleet.rotate(ROTATION)
    fleet.revoke("dora")
    assert fleet.number == 4
    fleet.enrol(NEXT.public)
    fleet.revoke("dora")
    assert fleet.number == 4, "nothing has changed"


def test_the_next_change_passes_every_number_that_a_board_may_have_seen() -> None:  # R9.5-8
    fleet = members(THEO)
    fleet.claim(9)
    assert fleet.number == 1
    fleet.claim(5)
    fleet.claim(1 + CLAIM_JUMP_MAX + 1)  # a lie must not use the numbers up
    fleet.revoke("theo")
    assert fleet.number == 10


# The host's list


def learned(by: MemberList, host: MemberList) -> MemberList:
    """What a member list is after the list of the host."""
    found = MemberList(by.state)
    found.learn(write_fleet(HOST, host.state))
    return found


def test_members_are_learned_from_the_hosts_list() -> None:
    host, other = members(SHED, THEO), members()
    data = write_fleet(HOST, host.state)
    assert parse_fleet(fleet_text(data) + "\n") == data
    assert other.learn(data)
    assert other.state == host.state
    assert not other.learn(data), "it is no news"


def test_who_was_revoked_stays_out_whatever_an_old_list_says() -> None:  # R9.5-7
    host, other = members(SHED, THEO), members()
    old = write_fleet(HOST, host.state)
    host.revoke("theo")
    other.learn(write_fleet(HOST, host.state))
    assert not other.learn(old)
    assert other.number == 3
    with pytest.raises(WireError):
        other.find("theo")
    assert other.find("shed") == SHED.public


def test_a_known_key_is_replaced_only_when_the_host_says_that_it_is_over() -> None:  # R9.5-5
    host = members(SHED, THEO)
    other = learned(members(), host)
    before = other.state
    with pytest.raises(SecurityError, match="another key"):
        other.learn(write_fleet(HOST, members(NEXT).state))
    assert other.state == before
    host.rotate(ROTATION)
    assert learned(other, host).find("theo") == NEXT.public


def test_a_list_names_every_key_that_a_member_has_left_behind() -> None:
    """Else a gateway that heard of none of them in between would go on with a revoked board."""
    host = members(THEO)
    other = learned(members(), host)
    rotate_often(host, "theo")
    host.revoke("theo")
    with pytest.raises(WireError, match="revoked"):
        learned(other, host).find("theo")
    assert learned(host, host).state == host.state, "to the host its own list is no news"


def by_host(content: bytes) -> bytes:
    return content + HOST.sign(statement("members", FLEET.fleet, content))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        write_fleet(someone("mallory", Role.HOST), members(THEO).state),
        write_fleet(HOST, replace(members(THEO).state, fleet=bytes(16))),
        by_host(bytes(3)),
        by_host(bytes(4) + b"\xff\xff"),  # 65,535 members in 6 bytes: R1-2
        by_host(bytes(6) + b"\xff\xff"),
        by_host(bytes(9)),
    ],
)
def test_a_list_that_is_refused(data: bytes) -> None:
    with pytest.raises(SecurityError, match="not signed by this end's host"):
        members().learn(data)


@pytest.mark.parametrize("text", ["", "TM1:ABC", MARK + "!", MARK + "Q"])
def test_a_line_that_is_no_list(text: str) -> None:
    with pytest.raises(SecurityError, match=r"list of a fleet"):
        parse_fleet(text)


def test_behind_a_gateway_the_hosts_name_is_the_gateways() -> None:
    fleet = members(SHED, THEO)
    behind = MembersBehindGateway(fleet, "shed")
    assert (behind.find("host"), behind.fleet) == (SHED.public, fleet.fleet)
    assert behind.find("theo") == THEO.public
    for name, match in (("theo", "which is a node"), ("barn", "enrol import")):
        with pytest.raises(SecurityError, match=match):
            MembersBehindGateway(fleet, name)
