"""Rotation over the link: what the host takes, what a member believes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import SecurityError, WireError
from ternmesh.security.enrolment import (
    accept_rotation,
    check_rotation_answer,
    write_rotation_request,
)
from ternmesh.security.identity import Role, make_identity, parse_rotation, rotation_text
from ternmesh.security.membership import MemberList, found_fleet, write_rotation
from tests.ternmesh.security.trust_ends import entropy, someone

HOST, THEO, DORA = someone("greenhouse", Role.HOST), someone("theo"), someone("dora")
NEXT = make_identity("theo", Role.NODE, entropy("next"))


def begin() -> MemberList:
    fleet = MemberList(found_fleet("tomatoes", HOST.public))
    fleet.enrol(THEO.public)
    fleet.enrol(DORA.public)
    return fleet


def refused(fleet: MemberList, body: bytes, peer: str = "theo") -> str:
    before = fleet.state
    with pytest.raises(WireError) as caught:
        accept_rotation(body, fleet, HOST, peer)
    assert fleet.state == before
    return caught.value.reason


def test_host_and_member_agree_on_the_new_key_also_when_the_answer_was_lost() -> None:
    fleet = begin()
    asked = write_rotation(THEO, NEXT, fleet.fleet)
    new, answer = accept_rotation(write_rotation_request(asked), fleet, HOST, "theo")
    assert new == fleet.find("theo") == NEXT.public
    check_rotation_answer(answer, HOST.public, fleet.fleet, asked)
    state = fleet.state
    assert accept_rotation(write_rotation_request(asked), fleet, HOST, "theo") == (new, answer)
    assert fleet.state == state
    assert len(answer) + 14 == 79


def test_who_has_only_one_of_the_keys_rotates_nothing() -> None:
    fleet = begin()
    asked = write_rotation(THEO, NEXT, fleet.fleet)
    for at in range(16, len(asked), 7):
        wrong = bytearray(asked)
        wrong[at] ^= 1
        assert refused(fleet, write_rotation_request(bytes(wrong))) in ("signature", "enrolment")
    assert refused(fleet, write_rotation_request(asked), "dora") == "unknown key"
    assert refused(fleet, write_rotation_request(asked), "stranger") == "unknown key"
    assert refused(fleet, write_rotation_request(write_rotation(THEO, NEXT, bytes(16))))


def test_a_rotation_in_force_is_answered_to_its_own_member_alone() -> None:  # R9.6-5
    """A relay could otherwise play it in anybody's name, and the host would take it for news."""
    fleet = begin()
    asked = write_rotation_request(write_rotation(THEO, NEXT, fleet.fleet))
    accept_rotation(asked, fleet, HOST, "theo")
    assert refused(fleet, asked, "dora") == "unknown key"
    assert refused(fleet, asked, "stranger") == "unknown key"


def test_a_key_that_is_over_rotates_nothing() -> None:
    """Who has stolen a key that was rotated since cannot ask for another one."""
    fleet = begin()
    accept_rotation(
        write_rotation_request(write_rotation(THEO, NEXT, fleet.fleet)), fleet, HOST, "theo"
    )
    other = make_identity("theo", Role.NODE, entropy("thief"))
    stolen = write_rotation(THEO, other, fleet.fleet)
    assert refused(fleet, write_rotation_request(stolen)) == "unknown key"


def test_only_the_host_says_that_a_rotation_is_in_force() -> None:
    fleet = begin()
    asked = write_rotation(THEO, NEXT, fleet.fleet)
    _, answer = accept_rotation(write_rotation_request(asked), fleet, HOST, "theo")
    other = write_rotation(THEO, make_identity("theo", Role.NODE, entropy(1)), fleet.fleet)
    for body, who, about in (
        (answer[:-1] + bytes((answer[-1] ^ 1,)), HOST, asked),
        (answer, DORA, asked),
        (answer, HOST, other),
        (answer[:-1], HOST, asked),
        (b"\x0d" + answer[1:], HOST, asked),
    ):
        with pytest.raises(WireError):
            check_rotation_answer(body, who.public, fleet.fleet, about)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    fleet = begin()
    refused(fleet, data)
    refused(fleet, write_rotation_request(THEO.public.fingerprint + data))
    with pytest.raises(WireError):
        check_rotation_answer(data, HOST.public, fleet.fleet, data)


def test_a_rotation_travels_as_a_line() -> None:  # R9.6-7
    asked = write_rotation(THEO, NEXT, bytes(16))
    line = rotation_text(asked)
    assert line.startswith("TM1-ROTATION:")
    assert parse_rotation(f" {line}\n") == asked
    with pytest.raises(SecurityError, match="copy it again"):
        parse_rotation(line[:-3] + "AAA")
    longest = (
        make_identity("n" * 32, Role.NODE, entropy("a")),
        make_identity("n" * 32, Role.NODE, entropy("b")),
    )
    asked = write_rotation(*longest, bytes(16))
    assert parse_rotation(rotation_text(asked)) == asked
    assert len(write_rotation_request(asked)) == 244
