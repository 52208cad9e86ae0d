"""A fleet with keys over the link: boards follow a host with a new key, and revoked ones stop."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ternmesh.errors import SecurityError, WireError
from ternmesh.federated.events import OLD_MEMBERS, SecurityChanged
from ternmesh.security.host_keys import ROTATIONS_MAX, write_host_rotation
from ternmesh.security.identity import Role, identity_text
from ternmesh.security.notices import rotation_frames
from ternmesh.security.session import HostRotated, ListNumber
from ternmesh.security.signatures import Signers
from ternmesh.wire import control
from ternmesh_cli.keys import enrol_fleet
from ternmesh_service.identity_file import IDENTITY, make_identity_file
from ternmesh_service.keyring import Keyring, SecurityConfig
from ternmesh_store.state_file import StateFile
from tests.host.test_service import DIMENSION, MODEL, NAMES, PLAN, Bench
from tests.ternmesh.security.trust_ends import someone


class Fleet:
    """A host and two boards in a round, with their files; each may be started again."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        enrol_fleet("garden", folder / "host", {name: folder / name for name in NAMES})
        self.config = SecurityConfig()
        self.rings = {name: self.open(name) for name in ("host", *NAMES)}
        self.bench = Bench(self.rings["host"].state, self.rings["host"])
        self.bench.work = self.record  # type: ignore[method-assign]
        self.changes: list[HostRotated] = []
        for name in NAMES:
            self.join(name)

    def open(self, folder: str) -> Keyring:
        ring = Keyring(StateFile(self.folder / folder), self.config)
        ring.state.open()
        self._stack.callback(ring.state.close)
        ring.open()
        return ring

    def record(self, driver: Any, event: object) -> None:
        self.rings[driver.endpoint.settings.name].record(event)
        if isinstance(event, SecurityChanged):
            self.changes += [one for one in event.changes if isinstance(one, HostRotated)]

    def join(self, name: str) -> None:
        """Start a board, with what its disk has."""
        self.bench.join(name, self.rings[name].security(name, MODEL, 1 << 16))

    def rotate(self) -> None:
        """Stop the host, give it a new key, and start it."""
        self.rings["host"].state.close()
        self.rings["host"] = ring = self.open("host")
        ring.rotate_host()
        self.start_host(ring)

    def start_host(self, ring: Keyring) -> None:
        self.bench.state.close()
        self.rings["host"], self.bench.keyring, self.bench.state = ring, ring, ring.state
        self.bench.boot()

    def run(self, seconds: int = 30) -> None:
        for _ in range(seconds):
            self.bench.now += 1.0
            self.bench.settle()

    def board(self, name: str = "ada") -> Any:
        return self.bench.nodes[name].endpoint

    def trusted(self, name: str = "ada") -> Any:
        """The host that a board trusts, by its disk."""
        self.rings[name].store.commit()
        return self.rings[name].store.member_list().host


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        made = Fleet(tmp_path, stack)
        made.run(10)
        assert all(made.board(name).joined for name in NAMES)
        yield made


def frames_of(fleet: Fleet) -> list[bytes]:
    return rotation_frames(fleet.rings["host"].member_list.hosts.rotations)


def rotation(fleet: Fleet, old: Any, new: Any, *keys: Any) -> bytes:
    """A rotation of the fleet's host, signed with `keys`."""
    signers = Signers(tuple(sorted((k.public for k in keys), key=lambda k: k.verify)))
    name = fleet.rings["ada"].member_list.fleet
    return write_host_rotation(old, new, name, signers, keys)


def test_boards_follow_a_host_with_a_new_key(fleet: Fleet, caplog: Any) -> None:
    # R9.5-11, R9.6-12, R9.6-13
    caplog.set_level(logging.INFO)
    old, name = fleet.rings["host"].own.public, fleet.rings["host"].member_list.fleet
    number, run = fleet.rings["host"].member_list.number, fleet.board().run
    fleet.rotate()
    new = fleet.rings["host"].own.public
    assert new != old
    assert fleet.rings["host"].member_list.fleet == name, "the fleet keeps its name"
    assert fleet.rings["host"].member_list.number == number + 1
    fleet.run()
    for board in NAMES:
        assert fleet.trusted(board) == new
        assert (fleet.board(board).joined, fleet.board(board).run) == (True, run)
        assert fleet.rings[board].member_list.fleet == name
        fleet.rings[board].check_fleet("garden")
    assert len(fleet.changes) == len(NAMES), "each has taken it once"
    sent = fleet.bench.service.driver.traffic["ada"].frames_out
    fleet.run(100)
    assert fleet.board().phase != control.GATHERING
    more = fleet.bench.service.driver.traffic["ada"].frames_out - sent
    assert more < 20, "who has the key is told no more"


def test_the_sessions_of_the_old_key_are_forgotten(fleet: Fleet) -> None:  # R9.6-13
    bob, host = fleet.rings["bob"], fleet.rings["host"]
    bob.store.commit()
    assert [peer.name for peer in bob.store.sealing("end").peers] == ["host"]
    assert host.store.sealing("end").peers
    host.rotate_host()
    assert host.store.sealing("end").peers == ()
    bob.record(SecurityChanged((HostRotated(host.member_list.hosts),)))
    bob.store.commit()
    state = bob.store.sealing("end")
    assert (state.peers, state.group) == ((), None)


def test_a_board_that_was_away_follows_several_rotations(fleet: Fleet) -> None:  # R9.6-12
    away = fleet.bench.nodes.pop("ada")
    for _ in range(3):
        fleet.rotate()
        fleet.run()
    assert fleet.board("bob").joined
    fleet.bench.nodes["ada"] = away
    fleet.run(100)
    assert fleet.trusted() == fleet.rings["host"].own.public
    assert fleet.board().joined
    hosts = fleet.rings["ada"].member_list.hosts
    assert len(hosts.rotations) == 3
    assert hosts == fleet.rings["host"].member_list.hosts


def test_only_the_last_rotations_are_kept(fleet: Fleet) -> None:  # R9.5-12
    ring = fleet.rings["host"]
    for _ in range(ROTATIONS_MAX + 2):
        ring.rotate_host()
    hosts = ring.member_list.hosts
    assert len(hosts.rotations) == ROTATIONS_MAX
    ring.state.close()
    again = fleet.open("host")
    assert again.member_list.hosts == hosts
    again.check_fleet("garden")


def test_a_rotation_that_is_forged_or_old_changes_nothing(fleet: Fleet) -> None:
    # R9.5-10, R9.5-11
    host, stranger = fleet.rings["host"].own, someone("host", Role.HOST)
    thief = someone("bob")
    board = fleet.board()
    good = rotation(fleet, host.public, stranger, host)
    for data, reason in (
        (rotation(fleet, host.public, stranger, thief), "signature"),
        (good[:150] + bytes((good[150] ^ 1,)) + good[151:], "signature"),
        (good[:-1] + b"\x02", "enrolment"),
        (rotation(fleet, host.public, someone("ada"), host), "enrolment"),
        (rotation(fleet, host.public, someone("host"), host), "enrolment"),
        (good[:-1] + b"\0", "reference"),
    ):
        fleet.bench.now += 1.0
        before = board.refused[reason]
        board.receive_frames("host", rotation_frames((data,)), fleet.bench.now)
        assert board.refused[reason] == before + 1, reason
        assert fleet.rings["ada"].member_list.host == host.public
    fleet.rotate()
    fleet.run()
    old = frames_of(fleet)
    fleet.rotate()
    fleet.run()
    new = fleet.rings["host"].own.public
    for frames in (old, frames_of(fleet), rotation_frames((good,))):
        fleet.bench.now += 1.0
        board.receive_frames("host", frames, fleet.bench.now)
        assert fleet.rings["ada"].member_list.host == new, "it never goes back"
    back = rotation(fleet, new, host, fleet.rings["host"].own)
    board.receive_frames("host", rotation_frames((back,)), fleet.bench.now + 1.0)
    assert board.refused["revoked"] == 1, "the host signs it, and an earlier key stays over"
    assert fleet.rings["ada"].member_list.host == new


def test_a_thief_of_the_host_alone_cannot_rotate_where_signers_must(fleet: Fleet, tmp_path) -> None:
    # R9.5-10
    fleet.bench.state.close()
    laptop = make_identity_file(tmp_path / "host" / "laptop", "laptop", Role.NODE)
    host = fleet.rings["host"].own
    lines = (identity_text(host.public), identity_text(laptop.public))
    fleet.config = SecurityConfig(signers=lines, threshold=2, signer_files=("laptop",))
    for name in ("host", *NAMES):
        fleet.rings[name].state.close()
        fleet.rings[name] = fleet.open(name)
    ada, stolen = fleet.rings["ada"], someone("host", Role.HOST)
    alone = rotation(fleet, host.public, stolen, host)
    twice = alone[:-1] + alone[-66:-1] + b"\x02"
    with_another = rotation(fleet, host.public, stolen, host, someone("mallory"))
    for data in (alone, twice, with_another):
        with pytest.raises(WireError) as refused:
            ada.follow_host(data)
        assert refused.value.reason == "signature"
    assert ada.member_list.host == host.public
    for number in range(2):
        fleet.rings["host"].rotate_host()
        good = fleet.rings["host"].member_list.hosts.rotations[number]
        assert (ada.follow_host(good), ada.follow_host(good)) == (True, False)
        # The lists of signers still name the first key: it stands for the host.
        for name in ("host", "ada"):
            keys = fleet.rings[name].signers.keys
            assert {key.fingerprint for key in keys} == {
                laptop.public.fingerprint,
                fleet.rings["host"].own.public.fingerprint,
            }
        fleet.rings["host"].security("host", MODEL, 0)  # enough private keys are here


def test_a_board_that_is_killed_as_it_takes_the_key_takes_it_again(fleet: Fleet) -> None:
    """What it has sealed for the new key was never sent: the commit comes first."""
    old = fleet.rings["host"].own.public
    fleet.rotate()
    ring = fleet.rings["ada"]
    ring.store.commit()
    while ring.member_list.host == old:
        fleet.run(1)
    ring.state._connection.rollback()  # a power cut before the commit
    ring.state.close()
    fleet.rings["ada"] = fleet.open("ada")
    assert fleet.rings["ada"].member_list.host == old
    fleet.join("ada")
    fleet.run()
    assert fleet.trusted() == fleet.rings["host"].own.public
    assert fleet.board().joined


def test_a_host_that_is_an_old_copy_hears_of_it_and_ends(fleet: Fleet, tmp_path: Path) -> None:
    # R9.6-15
    ring = fleet.rings["host"]
    ring.state.checkpoint()
    shutil.copytree(tmp_path / "host", tmp_path / "copy")
    away = fleet.bench.nodes.pop("bob")
    fleet.rotate()
    fleet.run()
    assert fleet.board().joined
    fleet.start_host(fleet.open("copy"))  # restored, with the old key
    with pytest.raises(SecurityError, match="boards have taken a newer one"):
        fleet.run(200)
    assert fleet.trusted() != fleet.rings["host"].own.public
    fleet.bench.nodes["bob"] = away
    fleet.rings["host"].state.close()
    again = fleet.open("copy")
    with pytest.raises(SecurityError, match="boards have taken a newer one"):
        again.security("host", MODEL, 0)


def test_a_copy_of_a_rotation_does_not_end_the_host_that_it_leads_to(fleet: Fleet) -> None:
    fleet.rotate()
    old = frames_of(fleet)
    fleet.run()
    forged = rotation(
        fleet, fleet.rings["host"].own.public, someone("host", Role.HOST), someone("mallory")
    )
    refused = fleet.bench.service.protocol.refused
    for frames in (old, rotation_frames((forged,))):
        fleet.bench.service.driver.endpoint.receive_frames("ada", frames, fleet.bench.now)
    assert refused["signature"] == 1
    fleet.run()
    assert fleet.board().joined


def test_a_new_broadcast_key_reaches_the_others_at_once(fleet: Fleet) -> None:  # R9.3-11
    """However long the round is open yet."""
    bench = fleet.bench
    bob: Any = bench.nodes["bob"].endpoint
    host = bench.service.protocol
    before = host.channel.sealing.broadcast_name
    assert bob.channel.sealing.broadcast_name == before
    assert "error" not in bench.service.manage({"enrol": "revoke", "name": "ada"})
    bench.settle()
    assert bob.channel.sealing.broadcast_name == host.channel.sealing.broadcast_name != before


@pytest.mark.parametrize("is_first_lost", [False, True])
def test_a_revoked_board_is_told_and_sends_no_more(fleet: Fleet, is_first_lost, caplog) -> None:
    # R9.6-8, R9.6-9
    caplog.set_level(logging.INFO)
    bench = fleet.bench
    ada: Any = bench.nodes["ada"]
    bench.service.manage({"enrol": "revoke", "name": "ada"})
    if is_first_lost:
        bench.service.poll(0.0)
        assert ada.transport.receive(0.0) is not None
    ada.endpoint.submit(0, np.full(DIMENSION, 0.01, np.float32), bench.now)
    for _ in range(100):
        bench.now += 10.0
        bench.settle()
    assert ada.endpoint.joining.revoked
    assert not fleet.board("bob").joining.revoked
    assert ada.endpoint.refused["revoked"] >= 1
    assert caplog.text.count("ada is revoked: its update does not count") == 1
    assert "must be sent again" not in caplog.text
    shown = bench.node("ada")
    assert (shown.revoked, shown.active) == (True, False)
    before = ada.traffic["host"].frames_out, bench.service.driver.traffic["ada"].frames_out
    for _ in range(1000):
        bench.now += 36.0
        bench.settle()
    assert ada.traffic["host"].frames_out - before[0] <= 10, "a hello an hour"
    assert bench.service.driver.traffic["ada"].frames_out - before[1] <= 10


def test_a_board_comes_back_with_a_new_key(fleet: Fleet, tmp_path: Path) -> None:
    """At its place in the run."""
    bench, rings = fleet.bench, fleet.rings
    before = bench.node("ada").address
    bench.service.manage({"enrol": "revoke", "name": "ada"})
    (tmp_path / "ada" / IDENTITY).unlink()
    new = make_identity_file(tmp_path / "ada" / IDENTITY, "ada", Role.NODE)
    line = identity_text(new.public)
    assert "error" not in bench.service.manage({"enrol": "add", "identity": line})
    rings["ada"].open()
    bench.join("ada", rings["ada"].security("ada", MODEL, 0))
    for _ in range(5):
        bench.now += 2.0
        bench.settle()
    shown = bench.node("ada")
    assert (shown.revoked, shown.active, shown.address) == (False, True, before)


def announced(bench: Bench) -> None:
    bench.now += PLAN.announce_s
    bench.settle()


def test_a_membership_list_that_is_an_old_copy_is_found_out(fleet: Fleet, caplog: Any) -> None:
    # R9.5-8, R9.5-9
    """Else a revoked board would count again when an old state_dir is put back."""
    bench, rings = fleet.bench, fleet.rings
    host = rings["host"]
    old = host.member_list.state
    bench.service.manage({"enrol": "revoke", "name": "ada"})
    announced(bench)
    bob: Any = bench.nodes["bob"].endpoint
    assert bob.channel.authenticator.list_number == 3
    rings["bob"].record(SecurityChanged((ListNumber(3),)))
    assert rings["bob"].store.member_list().number == 3
    assert bob.refused[OLD_MEMBERS] == 0

    bench.service.protocol.channel.authenticator._member_list._take(old)  # restored
    announced(bench)
    assert bob.refused[OLD_MEMBERS] == 0, "within one process of the host a number may come late"
    bob.joining._is_restart(b"another process", bench.now)
    with caplog.at_level("ERROR"):
        announced(bench)
    assert bob.refused[OLD_MEMBERS] == 1
    assert bench.service.protocol.refused[OLD_MEMBERS] == 1
    assert "revoke and enrol again" in caplog.text
    bench.service.manage({"enrol": "revoke", "name": "ada"})
    assert host.member_list.number == 4, "above all that a board has seen"
    announced(bench)
    announced(bench)
    assert bob.refused[OLD_MEMBERS] == 1
