import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import SecurityError, WireError
from ternmesh.security.identity import Identity, Role, make_identity
from ternmesh.security.membership import (
    CLAIM_JUMP_MAX,
    MEMBERS_MAX,
    OVER_MAX,
    REVOKED_MAX,
    ROTATED_MAX,
    MemberList,
    found_fleet,
    write_rotation,
)
from tests.ternmesh.security.trust_ends import entropy, someone

HOST, THEO = someone("greenhouse", Role.HOST), someone("theo")
NEXT = make_identity("theo", Role.NODE, entropy("theo's next"))


def member_list(*members: Identity) -> MemberList:
    made = MemberList(found_fleet("tomatoes", HOST.public))
    for member in members:
        made.enrol(member.public)
    return made


def reason(data: bytes, fleet: MemberList) -> str:
    before = fleet.state
    with pytest.raises(WireError) as caught:
        fleet.rotate(data)
    assert fleet.state == before
    return caught.value.reason


def test_members_are_found_by_the_bearers_name_and_the_host_by_its_own() -> None:
    fleet = member_list(THEO)
    assert fleet.find("theo") == THEO.public
    assert fleet.find("host") == HOST.public
    for stranger in ("greenhouse", "dora", ""):
        with pytest.raises(WireError) as caught:
            fleet.find(stranger)
        assert caught.value.reason == "unknown key"
    assert fleet.enrol(THEO.public) is False


def test_a_state_is_a_value() -> None:
    fleet = member_list(THEO, someone("dora"))
    fleet.revoke("dora")
    again = MemberList(fleet.state)
    assert again.state == fleet.state
    with pytest.raises(WireError, match="revoked"):
        again.find("dora")


def test_fleets_of_one_host_have_different_names() -> None:
    one, other = (found_fleet(name, HOST.public).fleet for name in ("tomatoes", "bees"))
    assert len(one) == len(other) == 16
    assert one != other
    with pytest.raises(SecurityError, match="not a host"):
        found_fleet("tomatoes", THEO.public)


@pytest.mark.parametrize("name", ["host", "all"])
def test_names_that_the_bearer_uses_are_taken(name: str) -> None:  # R9.5-2
    with pytest.raises(SecurityError, match="cannot have"):
        member_list().enrol(someone(name).public)


def test_a_second_host_and_a_second_name_for_a_key_are_refused() -> None:  # R9.5-2
    fleet = member_list(THEO)
    with pytest.raises(SecurityError, match="cannot have"):
        fleet.enrol(someone("other", Role.HOST).public)
    twin = make_identity("dora", Role.NODE, THEO.seeds)
    with pytest.raises(SecurityError, match="another name"):
        fleet.enrol(twin.public)


def test_a_rotation_needs_the_old_key_and_the_new_one() -> None:
    fleet = member_list(THEO)
    rotation = write_rotation(THEO, NEXT, fleet.fleet)
    assert reason(write_rotation(NEXT, THEO, fleet.fleet), fleet) == "unknown key"
    for at in (20, len(rotation) - 100, len(rotation) - 1):
        wrong = bytearray(rotation)
        wrong[at] ^= 1
        assert reason(bytes(wrong), fleet) in ("signature", "enrolment")
    assert reason(rotation[:-1], fleet) in ("signature", "enrolment")
    assert reason(write_rotation(THEO, NEXT, bytes(16)), fleet) == "signature"
    assert fleet.rotate(rotation) == NEXT.public
    assert fleet.find("theo") == NEXT.public


def test_nobody_goes_back_to_a_key_that_was_rotated() -> None:  # R9.5-3
    fleet = member_list(THEO)
    first, back = (write_rotation(THEO, NEXT, fleet.fleet), write_rotation(NEXT, THEO, fleet.fleet))
    fleet.rotate(first)
    assert reason(first, fleet) == "unknown key"
    assert reason(back, fleet) == "revoked"


def test_the_hosts_own_keys_cannot_be_rotated() -> None:  # R9.5-4
    fleet, new = member_list(THEO), make_identity("greenhouse", Role.HOST, entropy("new host"))
    rotation = write_rotation(HOST, new, fleet.fleet)
    assert reason(rotation, fleet) == "unknown key"
    assert fleet.rotated(rotation) is None
    assert fleet.host == HOST.public


def rotate_often(fleet: MemberList, name: str) -> list[Identity]:
    """As often as a name may; its keys, the present one last."""
    keys = [someone(name)]
    for number in range(ROTATED_MAX):
        keys.append(make_identity(name, Role.NODE, entropy(name, number)))
        fleet.rotate(write_rotation(keys[-2], keys[-1], fleet.fleet))
    return keys


def test_who_rotates_for_ever_takes_nobodys_place() -> None:  # R9.5-4
    fleet = member_list(THEO, someone("mallory"))
    keys = rotate_often(fleet, "mallory")
    more = make_identity("mallory", Role.NODE, entropy("one more"))
    assert reason(write_rotation(keys[-1], more, fleet.fleet), fleet) == "full"
    assert not fleet.state.revoked
    assert fleet.rotate(write_rotation(THEO, NEXT, fleet.fleet)) == NEXT.public
    fleet._revoked |= {number.to_bytes(16, "big") for number in range(REVOKED_MAX - 1)}
    fleet.revoke("mallory")
    with pytest.raises(WireError, match="revoked"):
        fleet.find("mallory")

    fleet = member_list(THEO)
    others = range(OVER_MAX - REVOKED_MAX)
    fleet._rotated |= {number.to_bytes(16, "big"): str(number) for number in others}
    assert reason(write_rotation(THEO, NEXT, fleet.fleet), fleet) == "full", "and room to revoke"


def test_none_of_the_keys_that_were_rotated_comes_back() -> None:  # R9.5-3
    fleet = member_list(someone("mallory"))
    *old, present = rotate_often(fleet, "mallory")
    again = MemberList(fleet.state)
    assert again.state == fleet.state
    for key in old:
        assert reason(write_rotation(present, key, fleet.fleet), again) == "revoked"
        assert reason(write_rotation(key, present, fleet.fleet), again) == "unknown key"
    again.revoke("mallory")
    for key in old:
        with pytest.raises(SecurityError, match="rotated"):
            again.enrol(key.public)


def test_a_rotation_changes_neither_name_nor_role_nor_takes_anothers_key() -> None:
    fleet = member_list(THEO, someone("dora"))
    with pytest.raises(ValueError, match="name and role"):
        write_rotation(THEO, someone("dora"), fleet.fleet)
    twin = make_identity("theo", Role.NODE, someone("dora").seeds)
    assert reason(write_rotation(THEO, twin, fleet.fleet), fleet) == "enrolment"


def test_a_revoked_key_stays_revoked() -> None:  # R9.5-7
    fleet = member_list(THEO, someone("dora"))
    fleet.revoke("theo")
    state = fleet.state
    fleet.revoke("theo")
    assert fleet.state == state
    with pytest.raises(WireError, match="revoked"):
        fleet.find("theo")
    with pytest.raises(SecurityError, match="revoked"):
        fleet.enrol(THEO.public)
    assert reason(write_rotation(THEO, NEXT, fleet.fleet), fleet) == "revoked"
    with pytest.raises(SecurityError, match="not enrolled"):
        fleet.revoke("yan")
    fleet._revoked |= {number.to_bytes(16, "big") for number in range(REVOKED_MAX - 1)}
    with pytest.raises(SecurityError, match="at most"):
        fleet.revoke("dora")


def test_the_lists_number_rises_with_every_change() -> None:  # R9.5-6
    fleet = member_list(THEO, someone("dora"))
    assert fleet.number == 2
    fleet.rotate(write_rotation(THEO, NEXT, fleet.fleet))
    fleet.revoke("dora")
    assert fleet.number == 4
    fleet.enrol(NEXT.public)
    fleet.revoke("dora")
    assert fleet.number == 4, "nothing has changed"


def test_the_next_change_passes_every_number_that_a_board_may_have_seen() -> None:  # R9.5-8
    fleet = member_list(THEO)
    fleet.claim(9)
    assert fleet.number == 1
    fleet.claim(5)
    fleet.claim(1 + CLAIM_JUMP_MAX + 1)  # a lie must not use the numbers up
    fleet.revoke("theo")
    assert fleet.number == 10


@given(st.binary(max_size=300))
def test_any_bytes_change_nothing(data: bytes) -> None:
    fleet = member_list(THEO)
    reason(data, fleet)
    reason(THEO.public.fingerprint + data, fleet)


def test_a_roster_is_bounded() -> None:  # R9.5-1
    fleet = member_list(THEO)
    fleet._members |= {str(number): THEO.public for number in range(MEMBERS_MAX - 1)}
    fleet.revoke("theo")
    again = make_identity("theo", Role.NODE, entropy("theo", 2)).public
    assert fleet.enrol(again), "its place is there already"
    with pytest.raises(SecurityError, match="at most"):
        fleet.enrol(someone("dora").public)
