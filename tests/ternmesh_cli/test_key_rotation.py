"""`ternmesh enrol rotate`: a board changes its keys, and is killed at every moment of it."""

import itertools
import json
import os
import threading
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from edge import joining
from host import membership
from host.desk import ROTATED_MIN_S, Desk
from ternmesh.errors import TrustError, WireError
from ternmesh.trust import rotation
from ternmesh.trust.identity import Role
from ternmesh.trust.roster import HOST, REVOKED_MAX, ROTATED_MAX, Roster
from ternmesh.wire import control, seal
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.main import main
from ternmesh_store import keyring as keyring_module
from ternmesh_store.keyring import Keyring, TrustConfig, read_identity_file
from ternmesh_store.trust_store import TrustStore
from transports.base import Arrival
from transports.link_config import LinkConfig

LINK = LinkConfig(url="mqtt://127.0.0.1:1", fleet="garden")
HOST_TOML = 'state_dir = "host"\nbundle = "keyword"\n[link]\nfleet = "garden"\n'
NODE_TOML = 'name = "ada"\nstate_dir = "ada"\nbundle = "keyword"\n[link]\nfleet = "garden"\n'


TIMES = itertools.count(0.0, 10.0)


class Killed(BaseException):
    """The process ends here."""


class NoCoordinator:
    """What stands behind the desk, and hears what the desk has passed on."""

    def __init__(self):
        self.heard = []

    def receive_frames(self, _peer, frames, _now):
        self.heard.extend(frames)

    def frames_to_send(self, _now):
        return []


class Direct:
    """A board's transport to a desk in the same thread."""

    def __init__(self, desk, peer="ada"):
        self.desk, self._peer, self._in = desk, peer, deque()

    def open(self):
        pass

    def close(self):
        pass

    def send(self, _peer, frames):
        now = next(TIMES)
        self.desk.receive_frames(self._peer, frames, now)
        for to, answers in self.desk.frames_to_send(now):
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
        ring = Keyring(self.folder / name, TrustConfig())
        ring.open()
        try:
            yield ring
        finally:
            ring.close()

    def key_on_disk(self):
        return read_identity_file(self.folder / "ada" / "identity").public

    def key_at_host(self):
        with self.open("host") as host:
            return host.roster.find("ada")


@pytest.fixture
def fleet(tmp_path):
    return Fleet(tmp_path)


def over_link(monkeypatch, fleet, act):
    """Run `act(keyring of ada)` with a link to the host's desk."""
    with fleet.open("host") as host, fleet.open("ada") as ada:
        desk = Desk(NoCoordinator(), host, Counter())
        monkeypatch.setattr(joining, "make_transport", lambda *_: Direct(desk))
        return act(ada)


def finish(ada):
    joining.finish_rotation(LINK, "ada", Path("nowhere"), ada, threading.Event())


def rotate(ada):
    ada.begin_rotation()
    assert joining.rotate(LINK, "ada", Path("nowhere"), ada)


def test_a_board_changes_its_keys_and_the_old_ones_are_over(fleet, monkeypatch):
    old = fleet.key_on_disk()
    over_link(monkeypatch, fleet, rotate)
    new = fleet.key_on_disk()
    assert new != old
    assert fleet.key_at_host() == new
    assert not (fleet.folder / "ada" / "identity.next").exists()
    with fleet.open("host") as host:
        assert host.roster.state.rotated == (("ada", old.fingerprint),), "also on disk"
        assert host.roster.state.revoked == ()
        with pytest.raises(TrustError, match="rotated"):
            host.roster.enrol(old)
    over_link(monkeypatch, fleet, rotate)
    assert fleet.key_at_host() == fleet.key_on_disk() not in (old, new)


def cuts(monkeypatch, at):
    """Whatever touches a disk or the link ends the process at the `at`-th time, before or after."""
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
        (keyring_module.os, "link"),
        (keyring_module.os, "fsync"),
        (keyring_module, "sync_folder"),
        (Path, "replace"),
        (Path, "unlink"),
        (TrustStore, "commit"),
        (Direct, "send"),
        (Direct, "receive"),
    ):
        monkeypatch.setattr(owner, name, cut(getattr(owner, name)))


def test_a_kill_at_any_moment_leaves_a_board_that_goes_on(tmp_path, monkeypatch):
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


def test_a_stranger_at_the_desk_is_told_no_at_once(fleet, monkeypatch, caplog):
    with fleet.open("host") as host, fleet.open("ada") as ada:
        refused = Counter()
        desk = Desk(NoCoordinator(), host, refused)
        monkeypatch.setattr(joining, "make_transport", lambda *_: Direct(desk, "bob"))
        ada.begin_rotation()
        with pytest.raises(TrustError, match="does not know this board's key"):
            joining.rotate(LINK, "ada", Path("nowhere"), ada)
        membership.answer(host, {"enrol": "revoke", "name": "ada"})
        monkeypatch.setattr(joining, "make_transport", lambda *_: Direct(desk))
        with pytest.raises(TrustError, match="revoked"):
            joining.rotate(LINK, "ada", Path("nowhere"), ada)
    assert "refused at the desk" in caplog.text
    assert refused == {"unknown key": 1, "revoked": 1}


def test_a_refused_code_is_told_at_once(fleet, monkeypatch):
    from ternmesh.trust.enrolment import make_code, read_code
    from ternmesh.trust.identity import make_identity

    nora = make_identity("nora", Role.NODE, os.urandom(64)).public
    with fleet.open("host") as host:
        desk = Desk(NoCoordinator(), host, Counter())
        monkeypatch.setattr(joining, "make_transport", lambda *_: Direct(desk, "nora"))

        def join(text):
            return joining.join(LINK, "nora", Path("nowhere"), nora, read_code(text))

        radio = LinkConfig(url="mqtt://broker", several=True)
        with pytest.raises(TrustError, match="by hand"):
            joining.join(radio, "nora", Path("nowhere"), nora, read_code(make_code(os.urandom(12))))
        with pytest.raises(TrustError, match="no such code is out"):
            join(make_code(os.urandom(12)))
        with pytest.raises(TrustError, match="--role"):
            join(desk.issue(Role.GATEWAY, 1e9, 0.0))
        assert join(desk.issue(Role.NODE, 1e9, 0.0)).host == host.roster.host


def test_the_desk_hears_a_peer_once_a_second_and_passes_the_rest_on(fleet):
    with fleet.open("host") as host, fleet.open("ada") as ada:
        behind = NoCoordinator()
        desk = Desk(behind, host, Counter())
        frame = seal.seal(seal.Header(0, 0), rotation.write_request(ada.begin_rotation()))
        other = seal.seal(seal.Header(0, 0), b"\x01hello")
        for now in (0.0, 0.5, 1.0):
            desk.receive_frames("ada", [frame, other, frame[:-1], b"", b"\xff" * 30], now)
        assert len(desk.frames_to_send(1.0)) == 2
        assert behind.heard == [other, frame[:-1], b"", b"\xff" * 30] * 3
        with pytest.raises(WireError):
            seal.open_seal(frame[:-1])


def ask(desk, frame, now):
    """The body that the desk answers with."""
    desk.receive_frames("ada", [frame], now)
    [(_, [answer])] = desk.frames_to_send(now)
    return seal.open_seal(answer)[1]


def test_a_member_changes_its_keys_once_an_hour(fleet):
    with fleet.open("host") as host, fleet.open("ada") as ada:
        desk, now = Desk(NoCoordinator(), host, Counter()), 0.0
        requests = []
        for _ in range(2):
            body = rotation.write_request(ada.begin_rotation())
            requests.append(seal.seal(seal.Header(0, 0), body))
            ada.finish_rotation()
        forged = requests[0][:-9] + bytes((requests[0][-9] ^ 1,))
        forged = seal.seal(seal.Header(0, 0), forged[6:])
        first, second = requests
        assert ask(desk, forged, now)[0] == control.KIND, "it does not begin the hour"
        taken = ask(desk, first, now + 1)
        assert taken[0] == rotation.ANSWER
        assert ask(desk, first, now + 5) == taken, "it is answered again"
        refusal = control.read_control(ask(desk, second, now + ROTATED_MIN_S))
        assert refusal.reason == "early"
        assert ask(desk, second, now + 1 + ROTATED_MIN_S)[0] == rotation.ANSWER
        assert host.roster.find("ada") == ada.own.public


def test_who_has_rotated_as_often_as_it_may_can_still_be_revoked(fleet):
    with fleet.open("host") as host, fleet.open("ada") as ada:
        desk, now = Desk(NoCoordinator(), host, Counter()), 0.0
        answers = []
        for _ in range(ROTATED_MAX + 1):
            now += ROTATED_MIN_S
            body = rotation.write_request(ada.begin_rotation())
            answers.append(ask(desk, seal.seal(seal.Header(0, 0), body), now))
            ada.finish_rotation()
        assert [answer[0] for answer in answers[:-1]] == [rotation.ANSWER] * ROTATED_MAX
        assert control.read_control(answers[-1]).reason == "full"
        [member] = membership.answer(host, {"enrol": "revoke", "name": "ada"})["members"]
        assert member["revoked"]


def test_a_fleet_that_has_revoked_all_it_can_says_so(fleet):
    with fleet.open("host") as host:
        rows = tuple(number.to_bytes(16, "big") for number in range(REVOKED_MAX))
        host._roster = Roster(replace(host.roster.state, revoked=rows))
        answer = membership.answer(host, {"enrol": "revoke", "name": "ada"})
        assert "begin a new one" in answer["error"]


@pytest.fixture
def enrol(tmp_path, capsys):
    (tmp_path / "host.toml").write_text(HOST_TOML)
    (tmp_path / "ada.toml").write_text(NODE_TOML)

    def run(who, *rest):
        arguments = ["enrol", "rotate", "--config", str(tmp_path / f"{who}.toml"), "--json", *rest]
        code = main(arguments)
        shown = capsys.readouterr()
        return json.loads(shown.out) if code == 0 else (code, shown.err)

    return run


def test_the_line_can_be_carried(fleet, enrol, monkeypatch, tmp_path):
    told = enrol("ada", "--line")
    assert told["rotation"].startswith("TM1-ROTATION:")
    assert enrol("ada", "--line") == told, "it is the same until the host has answered"
    (tmp_path / "line.txt").write_text(told["rotation"])
    members = enrol("host", str(tmp_path / "line.txt"))["members"]
    over_link(monkeypatch, fleet, finish)
    assert members[0]["fingerprint"] == fleet.key_on_disk().fingerprint.hex()
    assert fleet.key_at_host() == fleet.key_on_disk()
    code, sentence = enrol("host", told["rotation"])
    assert code == 1
    assert "nobody here has" in sentence


def test_over_a_radio_the_operator_says_when_all_have_the_line(fleet, enrol, tmp_path, caplog):
    radio = NODE_TOML.replace('fleet = "garden"', 'url = "mqtt://broker"\nseveral = true')
    data = '[data]\npath = "clips"\n'
    (tmp_path / "ada.toml").write_text(radio + data)
    assert "must be carried" in enrol("ada")[1]
    assert not (tmp_path / "ada" / "identity.next").exists()
    old = fleet.key_on_disk()
    line = enrol("ada", "--line")["rotation"]
    link = LinkConfig(url="mqtt://broker", several=True)
    with fleet.open("ada") as ada:
        joining.finish_rotation(link, "ada", tmp_path, ada, threading.Event())
        assert ada.own.public == old, "its own word does not do it"
    assert "wait" in caplog.text
    enrol("host", line)
    assert enrol("ada", "--finish")["fingerprint"] == fleet.key_on_disk().fingerprint.hex()
    assert fleet.key_at_host() == fleet.key_on_disk() != old
    assert "no new keys" in enrol("ada", "--finish")[1]


def test_what_cannot_be_rotated_is_a_sentence(fleet, enrol, monkeypatch, tmp_path):
    assert enrol("host")[0] == 2
    assert "SECURITY.md" in enrol("host")[1]
    assert enrol("host", "TM1-ROTATION:AAAA")[0] == 1
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "ada"))
    (tmp_path / "ada" / "identity").rename(tmp_path / "ada" / "ternmesh-identity")
    code, sentence = enrol("ada", "--line")
    assert code == 1
    assert "LoadCredential" in sentence


def test_a_board_without_a_fleet_has_nothing_to_rotate(enrol):
    code, sentence = enrol("ada", "--line")
    assert code == 1
    assert "belongs to no fleet" in sentence
