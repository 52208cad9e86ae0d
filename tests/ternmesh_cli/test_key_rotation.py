"""`ternmesh enrol`: the new key of a host that is killed at every moment, and refused codes."""

import itertools
import os
from collections import deque
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge import enrolment
from ternmesh.errors import SecurityError
from ternmesh.security.enrolment import ANSWER, make_code, read_code, write_request
from ternmesh.security.identity import Role, make_identity
from ternmesh.security.membership import HOST
from ternmesh.wire import control
from ternmesh.wire.frame import Header, open_seal, seal_open
from ternmesh_cli.keys import enrol_fleet
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

    def __init__(self, service):
        self.service, self._in = service, deque[Arrival]()

    def open(self):
        pass

    def close(self):
        pass

    def send(self, _peer, frames):
        now = next(TIMES)
        self.service.receive_frames("nora", frames, now)
        for to, answers in self.service.frames_to_send():
            assert to == "nora"
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


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    monkeypatch.setattr(enrolment, "ANSWER_S", 0.01)
    return Fleet(tmp_path)


def cuts(monkeypatch, at):
    """End the process at the `at`-th use of a disk, before or after it."""
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
        (files_module, "sync_folder"),
        (Path, "replace"),
        (Path, "unlink"),
        (SecurityStore, "commit"),
        (StateFile, "checkpoint"),
    ):
        monkeypatch.setattr(owner, name, cut(getattr(owner, name)))


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


@pytest.fixture
def desk(fleet, monkeypatch):
    """A host's service, and what joins it as nora with the text of a code."""
    nora = make_identity("nora", Role.NODE, os.urandom(64)).public
    with fleet.open("host") as host:
        service = EnrolmentDesk(host)

        def join(text, link=LINK, transport=Direct):
            monkeypatch.setattr(enrolment, "make_transport", lambda *_: transport(service))
            return enrolment.join(link, "nora", StateFile(Path("nowhere")), nora, read_code(text))

        yield host, service, nora, join


def test_a_refused_code_fails_at_once(desk):
    host, service, _, join = desk
    some = make_code(os.urandom(12))
    with pytest.raises(SecurityError, match="by hand"):
        join(some, LinkConfig(url="mqtt://broker", multipath=True))
    with pytest.raises(SecurityError, match="this code is not valid"):
        join(some)
    with pytest.raises(SecurityError, match="--role"):
        join(service.issue(Role.GATEWAY, 1e9, 0.0))
    assert join(service.issue(Role.NODE, 1e9, 0.0)).host == host.member_list.host


def test_forged_requests_take_no_place_of_the_board_in_whose_name_they_are(desk):  # R9.6-4
    _, service, nora, _ = desk
    code = read_code(service.issue(Role.NODE, 1e9, 0.0))
    body = write_request(nora, code)
    forged = [seal_open(Header(0, 0), body[:-1] + bytes((body[-1] ^ i,))) for i in range(1, 9)]
    service.receive_frames("nora", forged, 0.0)
    service.receive_frames("nora", [seal_open(Header(0, 0), body)], 0.1)
    kinds = [open_seal(frame)[1][0] for _, [frame] in service.frames_to_send()]
    assert kinds == [control.KIND, ANSWER], "one refusal, and the answer"


def test_a_refusal_that_an_answer_follows_is_nothing(desk, monkeypatch):  # R9.6-4
    class Forged(Direct):
        """Somebody refuses every request first."""

        def send(self, peer, frames):
            refusal = control.write_control(control.Refusal(0, "code"))
            self._in.append(Arrival(HOST, (seal_open(Header(0, 0), refusal),), 0))
            return super().send(peer, frames)

    host, service, _, join = desk
    monkeypatch.setattr(enrolment, "ANSWER_S", 20.0)
    assert join(service.issue(Role.NODE, 1e9, 0.0), transport=Forged).host == host.member_list.host


def test_a_host_that_cannot_write_keeps_its_key(fleet, monkeypatch):
    with fleet.open("host") as host:
        old = host.own

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("ternmesh_service.identity_file.replace_private_file", full)
        with pytest.raises(SecurityError, match="the host keeps its key"):
            host.rotate_host()
        assert (host.own, host.member_list.host) == (old, old.public)
