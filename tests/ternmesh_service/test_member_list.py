"""A gateway takes the host's membership list over its network by itself."""

from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import MagicMock

import pytest

from host import membership
from host.enrolment import LIST_MIN_S
from ternmesh.errors import WireError
from ternmesh.security.enrolment import write_list_request
from ternmesh.security.host_keys import write_host_rotation
from ternmesh.security.identity import Role, identity_text, make_identity
from ternmesh.security.notices import is_rotation, rotation_frames
from ternmesh.security.signatures import Signers
from ternmesh.wire import fragments
from ternmesh.wire.frame import FRAME_MAX, UNASSIGNED, Header, seal_open
from ternmesh_cli.keys import enrol_fleet
from ternmesh_service.keyring import Keyring, SecurityConfig
from ternmesh_service.member_list import ASK_S, MemberListClient
from ternmesh_store.state_file import StateFile
from tests.host.enrolment_desk import EnrolmentDesk
from tests.ternmesh.security.trust_ends import someone

BOARD, GONE = "ada", "bo"


class Fleet:
    """A host with its service, and a gateway with its client."""

    def __init__(self, folder: Path) -> None:
        enrol_fleet(
            "garden",
            folder / "host",
            {n: folder / n for n in (BOARD, GONE)},
            {"shed": folder / "shed"},
        )
        self.files = [StateFile(folder / name) for name in ("host", "shed", GONE)]
        self.host, self.gateway, self.gone = (Keyring(f, SecurityConfig()) for f in self.files)
        for ring in (self.host, self.gateway, self.gone):
            ring.state.open()
            ring.open()
        self.service = EnrolmentDesk(self.host)
        self.refused = self.service.refused
        self.client = MemberListClient(self.gateway)
        self.now = 0.0

    def ask(self, frame: bytes) -> list[bytes]:
        self.service.receive_frames(BOARD, [frame], self.now)
        return [frame for _, frames in self.service.frames_to_send() for frame in frames]

    def turn(self) -> list[bytes]:
        """Let a minute pass; the frames of the answer."""
        self.now += ASK_S
        frame = self.client.request(self.now)
        assert frame is not None
        assert self.client.request(self.now + 1) is None
        answers = self.ask(frame)
        assert self.client.receive(answers, self.now) == [a for a in answers if is_rotation(a)]
        return answers

    def revoke(self) -> None:
        membership.answer(self.host, {"enrol": "revoke", "name": GONE})


@pytest.fixture
def fleet(tmp_path: Path) -> Any:
    made = Fleet(tmp_path)
    yield made
    for file in made.files:
        file.close()


def test_a_revoked_board_is_revoked_on_the_gateway_within_a_minute(fleet: Fleet) -> None:  # R9.6-11
    assert fleet.turn() == [], "the lists are equal"
    assert fleet.gateway.member_list.find(GONE)
    fleet.revoke()
    assert len(fleet.turn()) == 1
    with pytest.raises(WireError, match="revoked"):
        fleet.gateway.member_list.find(GONE)
    assert fleet.gateway.store.member_list().state == fleet.gateway.member_list.state
    for number in range(100):
        line = identity_text(someone(f"board-{number}").public)
        assert "error" not in membership.answer(fleet.host, {"enrol": "add", "identity": line})
    assert len(fleet.turn()) == 2, "a long list comes in pieces"
    assert fleet.gateway.member_list.find("board-99")
    assert fleet.gateway.member_list.number == fleet.host.member_list.number
    assert fleet.turn() == []


def test_only_a_gateway_of_the_fleet_is_given_the_list(fleet: Fleet) -> None:  # R9.6-10
    """It names the whole fleet."""
    fleet.revoke()
    name = fleet.host.member_list.fleet
    own, stranger = fleet.gateway.own, someone("barn", Role.GATEWAY)
    good = write_list_request(own, name, 0)
    for body, reason in (
        (write_list_request(stranger, name, 0), "unknown key"),
        (write_list_request(fleet.gone.own, name, 0), "revoked"),
        (write_list_request(own, bytes(16), 0), "other host"),
        (good[:-1], "length"),
        (good + b"x", "length"),
    ):
        fleet.now += 1.0
        answers = fleet.ask(seal_open(Header(UNASSIGNED, 0), body))
        assert len(b"".join(answers)) < 100, "a refusal at most"
        assert fleet.refused[reason], reason
    fleet.now += 1.0
    assert len(fleet.ask(seal_open(Header(UNASSIGNED, 0), good))) == 1
    fleet.now += LIST_MIN_S / 2
    assert fleet.ask(seal_open(Header(UNASSIGNED, 0), good)) == [], "a copy draws no more of it"


def test_forged_pieces_change_nothing_and_other_frames_pass(fleet: Fleet) -> None:
    before = fleet.gateway.member_list.state
    forged = fragments.split(bytes(range(256)) * 20, FRAME_MAX)
    frames = [seal_open(Header(UNASSIGNED, 0), body) for body in forged]
    others = [seal_open(Header(5, 0), forged[0]), b"", frames[0][:5]]
    damaged = frames[0][:-1] + b"\0"
    assert fleet.client.receive([*frames, *others, damaged], 0.0) == others
    assert fleet.gateway.member_list.state == before
    fleet.revoke()
    assert len(fleet.turn()) == 1
    assert fleet.gateway.member_list.number == fleet.host.member_list.number


def test_a_gateway_follows_a_host_with_a_new_key_and_passes_it_on(fleet: Fleet) -> None:  # R9.6-11
    fleet.turn()
    fleet.host.rotate_host()
    answers = fleet.turn()
    passed = [frame for frame in answers if is_rotation(frame)]
    assert 0 < len(passed) == len(answers) - 1, "the list comes behind"
    assert fleet.gateway.member_list.host == fleet.host.own.public
    assert fleet.gateway.member_list.number == fleet.host.member_list.number
    assert fleet.gateway.store.member_list().state == fleet.gateway.member_list.state
    assert fleet.turn() == [], "it has all of it"
    fleet.revoke()
    fleet.turn()
    with pytest.raises(WireError, match="revoked"):
        fleet.gateway.member_list.find(GONE)


def test_a_gateway_refuses_forged_rotations(fleet: Fleet, monkeypatch: Any) -> None:
    # R9.5-10, R9.6-14
    before = fleet.gateway.member_list.state
    checks = MagicMock(side_effect=fleet.gateway.follow_host)
    monkeypatch.setattr(fleet.gateway, "follow_host", checks)
    for number in range(100):
        thief = make_identity("host", Role.HOST, Random(number).randbytes(64))
        rule = Signers((thief.public,))
        forged = write_host_rotation(before.host, thief, before.fleet, rule, (thief,))
        frames = rotation_frames((forged,))
        frames.append(frames[0][:-1])
        passed = fleet.client.receive(frames, number / 100)
        assert passed == frames, "its boards check for themselves"
    assert fleet.gateway.member_list.state == before
    assert 40 <= checks.call_count <= 50, "in a second"
