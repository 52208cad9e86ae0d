"""The host's list of its fleet: what is taken from it, and from whose."""

import base64
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
    found_fleet,
    read_fleet,
    write_fleet,
    write_revocations,
    write_rotation,
)


def someone(name: str, role: Role = Role.NODE, key: int = 0) -> Identity:
    return make_identity(name, role, hashlib.sha512(f"{name} {key}".encode()).digest())


HOST, SHED, ADA = (someone("greenhouse", Role.HOST), someone("shed", Role.GATEWAY), someone("ada"))


def rosters() -> tuple[MemberList, MemberList]:
    """The host's, with two members, and that of somebody who knows the host alone."""
    fleet = found_fleet("tomatoes", HOST.public)
    host = MemberList(fleet)
    for member in (SHED, ADA):
        host.enrol(member.public)
    return host, MemberList(fleet)


def test_members_are_learned_from_the_hosts_list() -> None:
    host, other = rosters()
    learned = read_fleet(write_fleet(HOST, host.state) + "\n", other)
    assert learned.members == host.state.members
    assert MemberList(learned).find("shed") == SHED.public
    assert read_fleet(write_fleet(HOST, host.state), MemberList(learned)) == learned


def test_who_was_revoked_stays_out_whatever_an_old_list_says() -> None:  # R9.5-7
    host, other = rosters()
    old = write_fleet(HOST, host.state)
    host.revoke(write_revocations(HOST, host.fleet, 1, [ADA.public.fingerprint]))
    learned = MemberList(read_fleet(write_fleet(HOST, host.state), other))
    again = MemberList(read_fleet(old, learned))
    for member_list in (learned, again):
        with pytest.raises(WireError):
            member_list.find("ada")
    assert again.find("shed") == SHED.public


def test_a_known_key_is_replaced_only_when_the_host_says_that_it_is_over() -> None:  # R9.5-5
    host, other = rosters()
    other = MemberList(read_fleet(write_fleet(HOST, host.state), other))
    new = someone("ada", key=1)
    twin = MemberList(found_fleet("tomatoes", HOST.public))
    twin.enrol(new.public)
    with pytest.raises(SecurityError, match="another key"):
        read_fleet(write_fleet(HOST, twin.state), other)
    host.rotate(write_rotation(ADA, new, host.fleet))
    learned = MemberList(read_fleet(write_fleet(HOST, host.state), other))
    assert learned.find("ada") == new.public


def test_a_list_names_every_key_that_a_member_has_left_behind() -> None:
    """Else a gateway that heard of none of them in between would go on with a revoked board."""
    host, other = rosters()
    other, key = MemberList(read_fleet(write_fleet(HOST, host.state), other)), ADA
    for number in range(1, ROTATED_MAX + 1):
        new = someone("ada", key=number)
        host.rotate(write_rotation(key, new, host.fleet))
        key = new
    host.revoke(write_revocations(HOST, host.fleet, 1, [key.public.fingerprint]))
    text = write_fleet(HOST, host.state)
    learned = MemberList(read_fleet(text, other))
    with pytest.raises(WireError, match="revoked"):
        learned.find("ada")
    assert read_fleet(text, host) == host.state, "to the host its own list is no news"


def test_nobody_elses_list_is_taken() -> None:
    host, other = rosters()
    mallory = someone("mallory", Role.HOST)
    elsewhere = MemberList(found_fleet("cucumbers", HOST.public))
    for text in (write_fleet(mallory, host.state), write_fleet(HOST, elsewhere.state)):
        with pytest.raises(SecurityError, match="not signed by this end's host"):
            read_fleet(text, other)
    for text in ("", "TM1:ABC", MARK + "!", MARK + "QQ"):
        with pytest.raises(SecurityError, match=r"list of a fleet"):
            read_fleet(text, other)


@given(data=st.data())
def test_a_changed_byte_is_found(data: st.DataObject) -> None:
    host, other = rosters()
    line = bytearray(base64.b64decode(write_fleet(HOST, host.state).removeprefix(MARK)))
    at = data.draw(st.integers(0, len(line) - 1))
    line[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SecurityError):
        read_fleet(MARK + base64.b64encode(line).decode(), other)


def test_behind_a_gateway_the_hosts_name_is_the_gateways() -> None:
    host, other = rosters()
    other = MemberList(read_fleet(write_fleet(HOST, host.state), other))
    behind = MembersBehindGateway(other, "shed")
    assert (behind.find("host"), behind.fleet) == (SHED.public, other.fleet)
    assert behind.find("ada") == ADA.public
    with pytest.raises(SecurityError, match="which is a node"):
        MembersBehindGateway(other, "ada")
    with pytest.raises(SecurityError, match="enrol import"):
        MembersBehindGateway(other, "barn")
