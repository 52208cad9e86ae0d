"""Who is a member: enrolled, revoked, and learned from the host's list."""

from dataclasses import replace

import pytest

from ternmesh.errors import SecurityError, WireError
from ternmesh.security import membership
from ternmesh.security.identity import Identity, Role, make_identity
from ternmesh.security.primitives import statement
from tests.ternmesh.security.trust_ends import entropy, someone

HOST, THEO, DORA = someone("greenhouse", Role.HOST), someone("theo"), someone("dora")
SHED = someone("shed", Role.GATEWAY)
FLEET = membership.found_fleet("tomatoes", HOST.public)


NEXT = make_identity("theo", Role.NODE, entropy("theo", "next"))


def members(*enrolled: Identity) -> membership.MemberList:
    made = membership.MemberList(FLEET)
    for member in enrolled:
        made.enrol(member.public)
    return made


def fingerprints(count: int) -> tuple[bytes, ...]:
    return tuple(number.to_bytes(16, "big") for number in range(count))


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
    other = membership.found_fleet("bees", HOST.public).fleet
    assert len(FLEET.fleet) == len(other) == 16
    assert FLEET.fleet != other
    with pytest.raises(SecurityError, match="not a host"):
        membership.found_fleet("tomatoes", THEO.public)


@pytest.mark.parametrize(
    ("stranger", "reason"),
    [
        (someone("host"), "cannot have"),
        (someone("all"), "cannot have"),
        (someone("other", Role.HOST), "cannot have"),
        (make_identity("dora", Role.NODE, THEO.seeds), "another name"),
        (NEXT, "enrol revoke"),
    ],
)
def test_who_cannot_be_enrolled(stranger: Identity, reason: str) -> None:  # R9.5-2
    fleet = members(THEO)
    with pytest.raises(SecurityError, match=reason):
        fleet.enrol(stranger.public)
    assert fleet.state == members(THEO).state


# Revocation, and the list's number and limits


def test_a_revoked_key_stays_revoked() -> None:  # R9.5-7
    fleet = members(THEO, DORA)
    fleet.revoke("theo")
    state = fleet.state
    fleet.revoke("theo")
    assert fleet.state == state
    fleet = membership.MemberList(state)
    with pytest.raises(WireError, match="revoked"):
        fleet.find("theo")
    with pytest.raises(SecurityError, match="revoked"):
        fleet.enrol(THEO.public)
    with pytest.raises(SecurityError, match="not enrolled"):
        fleet.revoke("yan")


def test_a_fleet_is_bounded() -> None:  # R9.5-1
    fleet = membership.MemberList(
        replace(members(THEO, DORA).state, revoked=fingerprints(membership.REVOKED_MAX - 1))
    )
    fleet.revoke("theo")
    with pytest.raises(SecurityError, match="at most"):
        fleet.revoke("dora")
    many = tuple(
        replace(THEO.public, name=str(number)) for number in range(membership.MEMBERS_MAX - 1)
    )
    fleet = membership.MemberList(replace(FLEET, members=(THEO.public, *many)))
    fleet.revoke("theo")
    assert fleet.enrol(NEXT.public), "its place is there already"
    with pytest.raises(SecurityError, match="at most"):
        fleet.enrol(DORA.public)


def test_the_lists_number_rises_with_every_change() -> None:  # R9.5-6
    fleet = members(THEO, DORA)
    assert fleet.number == 2
    fleet.revoke("theo")
    assert fleet.enrol(NEXT.public)
    assert fleet.number == 4
    assert not fleet.enrol(NEXT.public)
    assert fleet.number == 4, "nothing has changed"


def test_the_next_change_passes_every_number_that_a_board_may_have_seen() -> None:  # R9.5-8
    fleet = members(THEO)
    fleet.claim(9)
    assert fleet.number == 1
    fleet.claim(5)
    fleet.claim(1 + membership.CLAIM_JUMP_MAX + 1)  # a lie must not use the numbers up
    fleet.revoke("theo")
    assert fleet.number == 10


# The host's list


def learned(by: membership.MemberList, host: membership.MemberList) -> membership.MemberList:
    """What a member list is after the list of the host."""
    found = membership.MemberList(by.state)
    found.learn(membership.write_fleet(HOST, host.state))
    return found


def test_members_are_learned_from_the_hosts_list() -> None:
    host, other = members(SHED, THEO), members()
    data = membership.write_fleet(HOST, host.state)
    assert membership.parse_fleet(membership.fleet_text(data) + "\n") == data
    assert other.learn(data)
    assert other.state == host.state
    assert not other.learn(data), "it is no news"


def test_who_was_revoked_stays_out_whatever_an_old_list_says() -> None:  # R9.5-7
    host, other = members(SHED, THEO), members()
    old = membership.write_fleet(HOST, host.state)
    host.revoke("theo")
    other.learn(membership.write_fleet(HOST, host.state))
    assert not other.learn(old)
    assert other.number == 3
    with pytest.raises(WireError):
        other.find("theo")
    assert other.find("shed") == SHED.public


def test_a_known_key_is_replaced_only_when_the_host_says_that_it_is_over() -> None:  # R9.5-5
    host = members(SHED, THEO)
    other = learned(members(), host)
    before = other.state
    with pytest.raises(SecurityError, match="another board is enrolled as theo"):
        other.learn(membership.write_fleet(HOST, members(NEXT).state))
    assert other.state == before
    host.revoke("theo")
    host.enrol(NEXT.public)
    assert learned(other, host).find("theo") == NEXT.public


def by_host(content: bytes) -> bytes:
    return content + HOST.sign(statement("members", FLEET.fleet, content))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        membership.write_fleet(someone("mallory", Role.HOST), members(THEO).state),
        membership.write_fleet(HOST, replace(members(THEO).state, fleet=bytes(16))),
        by_host(bytes(3)),
        by_host(bytes(4) + b"\xff\xff"),  # 65,535 members in 6 bytes: R1-2
        by_host(bytes(6) + b"\xff\xff"),
        by_host(bytes(9)),
    ],
)
def test_a_list_that_is_refused(data: bytes) -> None:
    with pytest.raises(SecurityError, match="not signed by this end's host"):
        members().learn(data)


@pytest.mark.parametrize("text", ["", "TM1:ABC", membership.MARK + "!", membership.MARK + "Q"])
def test_a_line_that_is_no_list(text: str) -> None:
    with pytest.raises(SecurityError, match=r"list of a fleet"):
        membership.parse_fleet(text)


def test_behind_a_gateway_the_hosts_name_is_the_gateways() -> None:
    fleet = members(SHED, THEO)
    behind = membership.MembersBehindGateway(fleet, "shed")
    assert (behind.find("host"), behind.fleet) == (SHED.public, fleet.fleet)
    assert behind.find("theo") == THEO.public
    for name, match in (("theo", "which is a node"), ("barn", "enrol import")):
        with pytest.raises(SecurityError, match=match):
            membership.MembersBehindGateway(fleet, name)
