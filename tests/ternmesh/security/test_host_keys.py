"""The keys of a host and its notices: any bytes give a value or our error."""

import random
from contextlib import suppress
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import SecurityError, WireError
from ternmesh.security import notices
from ternmesh.security.enrolment import EnrolmentCodes, make_code, read_answer, read_code
from ternmesh.security.enrolment import write_request as write_enrolment
from ternmesh.security.host_keys import (
    ROTATION_MAX,
    ROTATIONS_MAX,
    HostKeys,
    host_text,
    parse_host,
    read_host_keys,
    write_host_keys,
    write_host_rotation,
)
from ternmesh.security.identity import (
    FINGERPRINT_SIZE,
    HOST_MARK,
    Identity,
    Role,
    identity_text,
    make_identity,
    write_identity,
)
from ternmesh.security.keyed_sealing import FRAME_MIN
from ternmesh.security.membership import MemberList, found_fleet
from ternmesh.security.signatures import Signers
from ternmesh.wire import fragments
from ternmesh.wire.frame import Header, open_seal, seal_open
from tests.ternmesh.security.trust_ends import someone

HOSTS = [make_identity("host", Role.HOST, random.Random(i).randbytes(64)) for i in range(3)]
PUBLIC = [host.public for host in HOSTS]
FIRST = HostKeys(PUBLIC[0], PUBLIC[0])
FLEET = found_fleet("tomatoes", PUBLIC[0]).fleet
ADA = someone("ada")


def rotation(old: int, new: int) -> bytes:
    signers = Signers((PUBLIC[old],))
    return write_host_rotation(PUBLIC[old], HOSTS[new], FLEET, signers, (HOSTS[old],))


def follow(keys: HostKeys, *rotations: bytes) -> HostKeys:
    for one in rotations:
        keys = keys.follow(one, FLEET, Signers((PUBLIC[0],)))
    return keys


THIRD = follow(FIRST, rotation(0, 1), rotation(1, 2))


def test_a_rotated_host_keeps_the_name_of_its_fleet() -> None:  # R9.5-11
    assert THIRD.present == PUBLIC[2]
    assert THIRD.before == {PUBLIC[0].fingerprint, PUBLIC[1].fingerprint}
    assert found_fleet("tomatoes", THIRD).fleet == FLEET
    assert found_fleet("tomatoes", PUBLIC[2]).fleet != FLEET
    assert follow(FIRST, rotation(1, 2)) == FIRST, "one that is missing is not skipped"
    for one in (rotation(2, 0), rotation(2, 1), rotation(2, 2)):
        with pytest.raises(WireError, match="earlier key"):
            follow(THIRD, one)


def test_keys_of_hosts_as_bytes_and_text() -> None:
    assert write_host_keys(FIRST) == write_identity(PUBLIC[0]), "short while nothing has changed"
    assert host_text(FIRST) == identity_text(PUBLIC[0])
    assert parse_host(host_text(FIRST)) == FIRST
    assert read_host_keys(write_host_keys(THIRD)) == THIRD
    assert host_text(THIRD).startswith(HOST_MARK)
    assert parse_host(f" {host_text(THIRD)}\n") == HostKeys(PUBLIC[2], PUBLIC[0])
    longest = HostKeys(PUBLIC[2], PUBLIC[0], (bytes(ROTATION_MAX),) * ROTATIONS_MAX)
    assert read_host_keys(write_host_keys(longest)) == longest
    many = HostKeys(PUBLIC[2], PUBLIC[0], (b"x",) * (ROTATIONS_MAX + 1))
    node, host = write_identity(ADA.public), write_identity(PUBLIC[0])
    short = write_host_keys(longest)[:-1]
    for data in (b"", node, 2 * host, host + node, write_host_keys(many), short):
        with pytest.raises(SecurityError):
            read_host_keys(data)
    line = host_text(THIRD)
    with pytest.raises(SecurityError, match="wrong letter"):
        parse_host(line[:40] + ("A" if line[40] != "A" else "B") + line[41:])


@given(st.integers(0, len(write_host_keys(THIRD))), st.binary(max_size=200))
def test_any_bytes_are_keys_of_a_host_or_our_error(kept: int, data: bytes) -> None:
    whole = write_host_keys(THIRD)
    for content in (data, whole[:kept] + data, whole[:kept] + data + whole[kept + len(data) :]):
        try:
            found = read_host_keys(content)
        except SecurityError:
            continue
        assert write_host_keys(found) == content, "one value has one form"


@given(st.integers(0, len(rotation(0, 1)) - 1), st.integers(1, 255))
def test_a_rotation_with_a_wrong_byte_changes_nothing(at: int, flip: int) -> None:  # R9.5-10
    data = bytearray(rotation(0, 1))
    data[at] ^= flip
    if at < FINGERPRINT_SIZE:
        assert FIRST.follow(bytes(data), FLEET, Signers((PUBLIC[0],))) == FIRST
        return
    with pytest.raises(WireError) as refused:
        FIRST.follow(bytes(data), FLEET, Signers((PUBLIC[0],)))
    assert refused.value.reason in ("signature", "enrolment", "reference")


def test_a_host_must_hold_the_key_that_it_changes_to() -> None:  # R9.5-10
    not_its_own = Identity(PUBLIC[1], HOSTS[2].seeds)
    alone = Signers((PUBLIC[0],))
    data = write_host_rotation(PUBLIC[0], not_its_own, FLEET, alone, (HOSTS[0],))
    with pytest.raises(WireError) as refused:
        FIRST.follow(data, FLEET, alone)
    assert refused.value.reason == "signature"


def test_a_rotation_comes_in_frames_that_every_bearer_carries() -> None:  # R9.6-12
    frames = notices.rotation_frames(THIRD.rotations)
    assert max(map(len, frames)) <= FRAME_MIN
    assert all(notices.is_notice(frame) and notices.is_rotation(frame) for frame in frames)
    random.Random(3).shuffle(frames)
    reader, follow = notices.RotationReader(), MagicMock(return_value=True)
    for frame in (*frames[:3], *frames):
        reader.take(frame, follow, 0.0)
    assert {call.args[0] for call in follow.mock_calls} == set(THIRD.rotations)


def forged_fragments(frames: list[bytes], count: int) -> list[bytes]:
    """Fragments of the same object with other content."""
    bodies = [open_seal(frames[number % len(frames)])[1] for number in range(count)]
    ends = (bytes([number] * 2) for number in range(count))
    return [
        seal_open(Header(0, 0), body[:-2] + end) for body, end in zip(bodies, ends, strict=True)
    ]


def test_forged_fragments_do_not_hold_up_a_rotation() -> None:
    frames = notices.rotation_frames(THIRD.rotations[:1])
    reader, follow = notices.RotationReader(), MagicMock(return_value=True)
    for frame in (*forged_fragments(frames, 16), *frames):
        with suppress(WireError):
            reader.take(frame, follow, 0.0)
    follow.assert_called_once_with(THIRD.rotations[0])


def test_a_fragment_that_anybody_sends_costs_little(monkeypatch: Any) -> None:  # R9.6-14
    reader, name = notices.RotationReader(), MagicMock(wraps=fragments._name)
    frames = notices.rotation_frames((bytes(ROTATION_MAX),))
    flood = (*frames[:-1], *forged_fragments(frames, 3 * len(frames)))
    monkeypatch.setattr(fragments, "_name", name)
    for frame in flood:
        name.reset_mock()
        with suppress(WireError):
            reader.take(frame, lambda _: True, 0.0)
        assert sum(len(call.args[0]) for call in name.mock_calls) <= 1 << 16


def test_a_notice_is_for_one_key_of_one_fleet() -> None:  # R9.6-8
    own = ADA.public.fingerprint
    frame = notices.write_notice(HOSTS[0], FLEET, own)
    assert notices.is_notice(frame)
    assert not notices.is_rotation(frame)
    notices.check_notice(frame, PUBLIC[0], FLEET, own)
    for data, host, fleet, key in (
        (frame, PUBLIC[1], FLEET, own),
        (frame, PUBLIC[0], bytes(16), own),
        (frame, PUBLIC[0], FLEET, bytes(16)),
    ):
        with pytest.raises(WireError) as refused:
            notices.check_notice(data, host, fleet, key)
        assert refused.value.reason == "signature"


def test_a_code_gives_the_present_key_and_the_name_of_the_fleet() -> None:  # R9.6-17
    codes, code = EnrolmentCodes(), make_code(bytes(range(12)))
    codes.issue(code, Role.NODE, 10.0, 0.0)
    member_list = MemberList(found_fleet("tomatoes", THIRD))
    request = write_enrolment(ADA.public, read_code(code))
    _, answer = codes.accept(request, member_list, 1.0)
    found = read_answer(answer, ADA.public, read_code(code))
    assert (found.fleet, found.host) == (FLEET, PUBLIC[2])
    assert found_fleet("tomatoes", found.hosts).fleet == FLEET
