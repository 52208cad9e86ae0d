"""`ternmesh enrol rotate`: a board changes its keys, and is killed at every moment of it."""

import itertools
import os
import threading
from collections import deque
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge import enrolment
from host import membership
from host.enrolment import ROTATION_MIN_S
from ternmesh.errors import SecurityError
from ternmesh.security.enrolment import (
    ROTATION_ANSWER,
    read_code,
    write_request,
    write_rotation_request,
)
from ternmesh.security.identity import Role
from ternmesh.security.membership import HOST
from ternmesh.wire import control
from ternmesh.wire.frame import Header, open_seal, seal_open
from ternmesh_cli.keys import enrol_fleet
from ternmesh_service import keyring as keyring_module
from ternmesh_service.identity_file import read_identity_file
from ternmesh_service.keyring import Keyring, SecurityConfig
from ternmesh_store import files as files_module
from ternmesh_store.security_store import SecurityStore
from ternmesh_store.state_file import StateFile
from tests.host.enrolment_desk import EnrolmentDesk
from transports.base import Arrival
from transports.link_config import LinkConfig

LINK = LinkConfig(url="mqtt://127.0.0.1:1", fleet="garden")


TIMES = itertools.count(0.0, 10.0)


class Killed(BaseException):
    """The process is killed."""


class Direct:
    """A board's transport to a service in the same thread."""

    def __init__(self, service, peer="ada"):
        self.service, self._peer, self._in = service, peer, deque[Arrival]()

    def open(self):
        pass

    def close(self):
        pass

    def send(self, _peer, frames):
        now = next(TIMES)
        self.service.receive_frames(self._peer, frames, now)
        for to, answers in self.service.frames_to_send():
            assert to == self._peer
            self._in.append(Arrival(HOST, tuple(answers), 0))
        return 0

    def receive(self, _timeout_s):
        return self._in.popleft() if self._in else None


class Fleet:
    """The files of a host and of the board ada, each opened as a process would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        enrol_fleet("garden", folder / "host", {"ada": folder / "ada"})

    @contextmanager
    def open(self, name):
        state = StateFile(self.folder / name)
        state.open()
        try:
            ring = Keyring(state, SecurityConfig())
            ring.open()
            yield ring
        finally:
            state.close()

    def key_on_disk(self):
        return read_identity_file(self.folder / "ada" / "identity").public

    def key_at_host(self):
        with self.open("host") as host:
            return host.member_list.find("ada")


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    monkeypatch.setattr(enrolment, "ANSWER_S", 0.01)
    return Fleet(tmp_path)


def over_link(monkeypatch, fleet, act):
    """Run `act(keyring of ada)` with a link to the host's service."""
    with fleet.open("host") as host, fleet.open("ada") as ada:
        service = EnrolmentDesk(host)
        monkeypatch.setattr(enrolment, "make_transport", lambda *_: Direct(service))
        return act(ada)


def finish(ada):
    beats = []
    is_pending = ada.rotation is not None
    enrolment.finish_rotation(LINK, "ada", ada, threading.Event(), lambda: beats.append(1))
    assert bool(beats) == is_pending, "systemd hears that the start goes on"


def rotate(ada):
    ada.begin_rotation()
    assert enrolment.rotate_keys(LINK, "ada", ada)


def test_a_board_changes_its_keys_and_the_old_ones_are_over(fleet, monkeypatch):
    old = fleet.key_on_disk()
    over_link(monkeypatch, fleet, rotate)
    new = fleet.key_on_disk()
    assert new != old
    assert fleet.key_at_host() == new
    assert not (fleet.folder / "ada" / "identity.next").exists()
    with fleet.open("host") as host:
        assert host.member_list.state.rotated == (("ada", old.fingerprint),), "also on disk"
        assert host.member_list.state.revoked == ()
        with pytest.raises(SecurityError, match="rotated"):
            host.member_list.enrol(old)
    over_link(monkeypatch, fleet, rotate)
    assert fleet.key_at_host() == fleet.key_on_disk() not in (old, new)


def cuts(monkeypatch, at):
    """End the process at the `at`-th use of a disk or the link, before or after it."""
    left = [at]

    def cut(function):
        def run(*arguments, **keywords):
            for act in (None, function):
                result = act and act(*arguments, **keywords)
                left[0] -= 1
                if left[0] == 0:
                    raise Killed
            return result

        return run

    for owner, name in (
        (os, "link"),
        (os, "fsync"),
        (keyring_module, "sync_folder"),
        (files_module, "sync_folder"),
        (Path, "replace"),
        (Path, "unlink"),
        (SecurityStore, "commit"),
        (StateFile, "checkpoint"),
        (Direct, "send"),
        (Direct, "receive"),
    ):
        monkeypatch.setattr(owner, name, cut(getattr(owner, name)))


@pytest.mark.nightly
def test_a_kill_at_any_moment_leaves_a_board_that_goes_on(tmp_path, monkeypatch):  # R9.6-6
    went_on, at = set(), 0
    while True:
        at += 1
        fleet = Fleet(tmp_path / str(at))
        old = fleet.key_on_disk()
        killed = False
        with pytest.MonkeyPatch.context() as patch:
            cuts(patch, at)
            try:
                over_link(patch, fleet, rotate)
            except Killed:
                killed = True
        over_link(monkeypatch, fleet, finish)  # what the next start of the node does first
        new = fleet.key_on_disk()
        assert fleet.key_at_host() == new
        went_on.add(new == old)
        if not killed:
            break
    assert at > 20, "the cuts were not made"
    assert went_on == {True, False}, "some cuts come before the new key is there, most after"
    assert new != old


@pytest.mark.nightly
def test_a_kill_at_any_moment_leaves_a_host_that_goes_on(tmp_path):  # R9.5-13
    """With the old key, of which nobody heard, or with the new one and what leads to it."""
    went_on, at = set(), 0
    killed = True
    while killed:
        at += 1
        fleet = Fleet(tmp_path / str(at))
        with fleet.open("host") as host:
            old = host.own.public
        with pytest.MonkeyPatch.context() as patch, fleet.open("host") as host:
            cuts(patch, at)
            try:
                host.rotate_host()
                killed = False
            except Killed:
                host.state._connection.rollback()
        with fleet.open("host") as host:  # the next start
            host.security(HOST, bytes(32), 0)
            host.check_fleet("garden")
            is_new = host.own.public != old
            hosts = host.member_list.hosts
            assert (len(hosts.rotations), hosts.before) == (
                is_new,
                {old.fingerprint} if is_new else set(),
            )
            went_on.add(is_new)
            with fleet.open("ada") as ada:
                assert [ada.follow_host(one) for one in hosts.rotations] == [True] * is_new
                assert ada.member_list.host == host.own.public
            host.rotate_host()
            assert len(host.member_list.hosts.rotations) == is_new + 1
    assert at > 10, "the cuts were not made"
    assert went_on == {True, False}


def test_a_stranger_is_refused_at_once(fleet, monkeypatch, caplog):  # R9.6-5
    with fleet.open("host") as host, fleet.open("ada") as ada:
        service = EnrolmentDesk(host)
        monkeypatch.setattr(enrolment, "make_transport", lambda *_: Direct(service, "bob"))
        ada.begin_rotation()
        with pytest.raises(SecurityError, match="does not know this key"):
            enrolment.rotate_keys(LINK, "ada", ada)
        membership.answer(host, {"enrol": "revoke", "name": "ada"})
        monkeypatch.setattr(enrolment, "make_transport", lambda *_: Direct(service))
        with pytest.raises(SecurityError, match="revoked"):
            enrolment.rotate_keys(LINK, "ada", ada)
    assert "refused to enrol or to rotate keys of bob" in caplog.text
    assert service.refused == {"unknown key": 1, "revoked": 1}


def test_a_refused_code_fails_at_once(fleet, monkeypatch):
    from ternmesh.security.enrolment import make_code, read_code
    from ternmesh.security.identity import make_identity

    nora = make_identity("nora", Role.NODE, os.urandom(64)).public
    with fleet.open("host") as host:
        service = EnrolmentDesk(host)
        monkeypatch.setattr(enrolment, "make_transport", lambda *_: Direct(service, "nora"))

        def join(text):
            return enrolment.join(LINK, "nora", StateFile(Path("nowhere")), nora, read_code(text))

        radio = LinkConfig(url="mqtt://broker", multipath=True)
        with pytest.raises(SecurityError, match="by hand"):
            enrolment.join(
                radio,
                "nora",
                StateFile(Path("nowhere")),
                nora,
                read_code(make_code(os.urandom(12))),
            )
        with pytest.raises(SecurityError, match="this code is not valid"):
            join(make_code(os.urandom(12)))
        with pytest.raises(SecurityError, match="--role"):
            join(service.issue(Role.GATEWAY, 1e9, 0.0))
        assert join(service.issue(Role.NODE, 1e9, 0.0)).host == host.member_list.host


def test_forged_requests_take_no_place_of_the_board_in_whose_name_they_are(fleet):  # R9.6-4
    with fleet.open("host") as host, fleet.open("ada") as ada:
        service = EnrolmentDesk(host)
        text = service.issue(Role.NODE, 1e9, 0.0)
        requests = [
            seal_open(Header(0, 0), write_request(ada.own.public, read_code(text))),
            seal_open(Header(0, 0), write_rotation_request(ada.begin_rotation())),
        ]
        for now, request in zip((0.0, 10.0), requests, strict=True):
            _, body = open_seal(request)
            forged = [
                seal_open(Header(0, 0), body[:-1] + bytes((body[-1] ^ i,))) for i in range(1, 9)
            ]
            service.receive_frames("ada", forged, now)
            service.receive_frames("ada", [request], now + 0.1)
            kinds = [open_seal(frame)[1][0] for _, [frame] in service.frames_to_send()]
            assert kinds == [control.KIND, body[0] + 1], "one refusal, and the answer"


def test_a_refusal_that_an_answer_follows_is_nothing(fleet, monkeypatch):  # R9.6-4
    class Forged(Direct):
        """Somebody refuses every request first."""

        def send(self, peer, frames):
            refusal = control.write_control(control.Refusal(0, "code"))
            self._in.append(Arrival(HOST, (seal_open(Header(0, 0), refusal),), 0))
            return super().send(peer, frames)

    with fleet.open("host") as host, fleet.open("ada") as ada:
        service = EnrolmentDesk(host)
        monkeypatch.setattr(enrolment, "make_transport", lambda *_: Forged(service))
        monkeypatch.setattr(enrolment, "ANSWER_S", 20.0)
        ada.begin_rotation()
        assert enrolment.rotate_keys(LINK, "ada", ada)


def ask(service, frame, now):
    """The body that the service answers with."""
    service.receive_frames("ada", [frame], now)
    [(_, [answer])] = service.frames_to_send()
    return open_seal(answer)[1]


def test_a_member_changes_its_keys_once_an_hour(fleet):  # R9.6-5
    with fleet.open("host") as host, fleet.open("ada") as ada:
        service, now = EnrolmentDesk(host), 0.0
        requests = []
        for _ in range(2):
            body = write_rotation_request(ada.begin_rotation())
            requests.append(seal_open(Header(0, 0), body))
            ada.finish_rotation()
        forged = requests[0][:-9] + bytes((requests[0][-9] ^ 1,))
        forged = seal_open(Header(0, 0), forged[6:])
        first, second = requests
        assert ask(service, forged, now)[0] == control.KIND, "it does not begin the hour"
        taken = ask(service, first, now + 1)
        assert taken[0] == ROTATION_ANSWER
        assert ask(service, first, now + 5) == taken, "it is answered again"
        refusal = control.read_control(ask(service, second, now + ROTATION_MIN_S))
        assert refusal.reason == "early"
        assert ask(service, second, now + 1 + ROTATION_MIN_S)[0] == ROTATION_ANSWER
        assert host.member_list.find("ada") == ada.own.public


def test_a_host_that_cannot_write_keeps_its_key(fleet, monkeypatch):
    with fleet.open("host") as host:
        old = host.own

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("ternmesh_service.identity_file.replace_private_file", full)
        with pytest.raises(SecurityError, match="the host keeps its key"):
            host.rotate_host()
        assert (host.own, host.member_list.host) == (old, old.public)
