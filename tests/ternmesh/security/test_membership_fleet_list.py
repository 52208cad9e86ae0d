"""The host's list of its fleet: what is taken from it, and from whose."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import SecurityError, WireError
from ternmesh.security.identity import Identity, Role, make_identity
from ternmesh.security.membership import (
    MARK,
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


def someone(name: str, role: Role = Role.NODE, key: int = 0) -> Identity:
    return make_identity(name, role, hashlib.sha512(f"{name} {key}".encode()).digest())


HOST, SHED, ADA = (someone("greenhouse", Role.HOST), someone("shed", Role.GATEWAY), someone("ada"))


def learned(state_of: MemberList, host: MemberList) -> MemberList:
    """What a member list is after the list of the host."""
    found = MemberList(state_of.state)
    found.learn(write_fleet(HOST, host.state))
    return found


def rosters() -> tuple[MemberList, MemberList]:
    """The host's, with two members, and that of somebody who knows the host alone."""
    fleet = found_fleet("tomatoes", HOST.public)
    host = MemberList(fleet)
    for member in (SHED, ADA):
        host.enrol(member.public)
    return host, MemberList(fleet)


def test_members_are_learned_from_the_hosts_list() -> None:
    host, other = rosters()
    data = write_fleet(HOST, host.state)
    assert parse_fleet(fleet_text(data) + "\n") == data
    assert other.learn(data)
    assert (other.state.members, other.number) == (host.state.members, 2)
    assert other.find("shed") == SHED.public
    assert not other.learn(data), "it is no news"


def test_who_was_revoked_stays_out_whatever_an_old_list_says() -> None:  # R9.5-7
    host, other = rosters()
    old = write_fleet(HOST, host.state)
    host.revoke("ada")
    other.learn(write_fleet(HOST, host.state))
    assert not other.learn(old)
    assert other.number == 3
    with pytest.raises(WireError):
        other.find("ada")
    assert other.find("shed") == SHED.public


def test_a_known_key_is_replaced_only_when_the_host_says_that_it_is_over() -> None:  # R9.5-5
    host, other = rosters()
    other = learned(other, host)
    new = someone("ada", key=1)
    twin = MemberList(found_fleet("tomatoes", HOST.public))
    twin.enrol(new.public)
    before = other.state
    with pytest.raises(SecurityError, match="another key"):
        other.learn(write_fleet(HOST, twin.state))
    assert other.state == before
    host.rotate(write_rotation(ADA, new, host.fleet))
    assert learned(other, host).find("ada") == new.public


def test_a_list_names_every_key_that_a_member_has_left_behind() -> None:
    """Else a gateway that heard of none of them in between would go on with a revoked board."""
    host, other = rosters()
    other, key = learned(other, host), ADA
    for number in range(1, ROTATED_MAX + 1):
        new = someone("ada", key=number)
        host.rotate(write_rotation(key, new, host.fleet))
        key = new
    host.revoke("ada")
    with pytest.raises(WireError, match="revoked"):
        learned(other, host).find("ada")
    assert learned(host, host).state == host.state, "to the host its own list is no news"


def test_nobody_elses_list_is_taken() -> None:
    host, other = rosters()
    mallory = someone("mallory", Role.HOST)
    elsewhere = MemberList(found_fleet("cucumbers", HOST.public))
    for data in (write_fleet(mallory, host.state), write_fleet(HOST, elsewhere.state), b"", b"x"):
        with pytest.raises(SecurityError, match="not signed by this end's host"):
            other.learn(data)
    for text in ("", "TM1:ABC", MARK + "!", MARK + "Q"):
        with pytest.raises(SecurityError, match=r"list of a fleet"):
            parse_fleet(text)


@pytest.mark.parametrize(
    "content", [bytes(3), bytes(4) + b"\xff\xff", bytes(6) + b"\xff\xff", bytes(9)]
)
def test_a_list_that_the_host_signed_is_still_checked(content: bytes) -> None:
    _, other = rosters()
    with pytest.raises(SecurityError, match="not signed"):
        other.learn(content + HOST.sign(statement("members", other.fleet, content)))


@given(data=st.data())
def test_a_changed_byte_is_found(data: st.DataObject) -> None:
    host, other = rosters()
    content = bytearray(write_fleet(HOST, host.state))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SecurityError):
        other.learn(bytes(content))


def test_behind_a_gateway_the_hosts_name_is_the_gateways() -> None:
    host, other = rosters()
    other = learned(other, host)
    behind = MembersBehindGateway(other, "shed")
    assert (behind.find("host"), behind.fleet) == (SHED.public, other.fleet)
    assert behind.find("ada") == ADA.public
    with pytest.raises(SecurityError, match="which is a node"):
        MembersBehindGateway(other, "ada")
    with pytest.raises(SecurityError, match="enrol import"):
        MembersBehindGateway(other, "barn")
