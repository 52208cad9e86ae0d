"""Identity files, the trust store, and what an operator is told."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from ternmesh.config import ConfigError
from ternmesh.errors import TrustError, WireError
from ternmesh.swarm.events import TrustChanged
from ternmesh.trust.identity import Role, make_identity
from ternmesh.trust.notary import OPEN
from ternmesh.trust.roster import HOST, found_fleet
from ternmesh_store.database import StoreError
from ternmesh_store.keyring import (
    IDENTITY,
    Keyring,
    NoKeyring,
    TrustConfig,
    choose_keyring,
    make_identity_file,
    read_identity_file,
)

MODEL = bytes(32)


@pytest.fixture
def pair(tmp_path):
    """Open keyrings of a host and of the node ada, who know each other."""
    rings = []
    for name, role in ((HOST, Role.HOST), ("ada", Role.NODE)):
        make_identity_file(tmp_path / name / IDENTITY, name, role)
        rings.append(Keyring(tmp_path / name, TrustConfig()))
        rings[-1].open()
    host, node = rings
    fleet = found_fleet("garden", host.own.public)
    host.adopt(fleet)
    node.adopt(fleet)
    host.roster.enrol(node.own.public)
    host.keep_roster()
    yield host, node
    for ring in rings:
        ring.close()


def test_an_identity_file_is_its_owners_alone(tmp_path):
    path = tmp_path / "state" / IDENTITY
    made = make_identity_file(path, "ada", Role.NODE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_identity_file(path) == made
    with pytest.raises(TrustError, match="File exists"):
        make_identity_file(path, "ada", Role.NODE)
    path.chmod(0o640)
    with pytest.raises(TrustError, match="others may read"):
        read_identity_file(path)


def test_without_an_identity_the_sentence_says_what_to_do(tmp_path):
    with pytest.raises(TrustError, match=r"ternmesh enrol identity.*--insecure"):
        Keyring(tmp_path, TrustConfig()).open()


def test_a_systemd_credential_is_taken_before_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    assert TrustConfig().path(tmp_path) == tmp_path / IDENTITY
    path = tmp_path / "credentials" / "ternmesh-identity"
    make_identity_file(path, "ada", Role.NODE)
    path.chmod(0o440)  # as systemd makes them
    assert TrustConfig().path(tmp_path) == path
    assert read_identity_file(path).public.name == "ada"
    assert TrustConfig(identity_file="other").path(tmp_path) == tmp_path / "other"


def test_doing_without_keys_off_this_machine_takes_saying_it_twice(tmp_path, caplog):
    without = TrustConfig(insecure=True)
    keys = choose_keyring(tmp_path, without, insecure=False, is_loopback=True)
    assert isinstance(keys, Keyring), "the file alone does not do it"
    with pytest.raises(ConfigError, match="insecure = true"):
        choose_keyring(tmp_path, TrustConfig(), insecure=True, is_loopback=False)
    assert not caplog.records
    for config, is_loopback in ((TrustConfig(), True), (without, False)):
        ring = choose_keyring(tmp_path, config, insecure=True, is_loopback=is_loopback)
        assert isinstance(ring, NoKeyring)
        assert ring.trust("ada", MODEL, 0) is OPEN
        assert "INSECURE" in caplog.records.pop().message


def test_the_store_is_its_owners_alone_and_in_one_hand(pair, tmp_path):
    assert (tmp_path / HOST / "trust.sqlite").stat().st_mode & 0o777 == 0o600
    with pytest.raises(StoreError, match="another process"):
        Keyring(tmp_path / HOST, TrustConfig()).open()


def test_a_damaged_store_is_not_begun_anew(pair, tmp_path):
    host, _ = pair
    host.close()
    path = tmp_path / HOST / "trust.sqlite"
    path.write_bytes(os.urandom(8192))
    with pytest.raises(StoreError, match="damaged"):
        Keyring(tmp_path / HOST, TrustConfig()).open()
    assert len(path.read_bytes()) == 8192


def test_sessions_and_windows_are_found_again(pair, tmp_path):
    host, node = pair
    ours, theirs = node.trust("ada", MODEL, 0).sealing, host.trust(HOST, MODEL, 0).sealing
    frames = []
    for counter in range(1, 5):  # the first contact: hello, sync, hello, sync
        frame = ours.seal(HOST, 0, counter, b"\x01hello")
        frames.append(frame)
        with suppress(WireError):  # "sync", at first
            theirs.open("ada", frame)
        for peer, context, body in theirs.due(float(10 * counter)):
            ours.open(HOST, theirs.seal(peer, context, counter, body))
    for ring, sealing in ((node, ours), (host, theirs)):
        changes = sealing.changes()
        assert changes
        ring.record(TrustChanged(changes))
        ring.commit()
    state = host.store.sealing()
    assert [peer.name for peer in state.peers] == ["ada"]
    assert state.group is not None
    host.close()
    again = Keyring(tmp_path / HOST, TrustConfig())
    again.open()
    assert again.store.sealing() == state
    sealing = again.trust(HOST, MODEL, 4096).sealing
    for frame in frames:
        with pytest.raises(WireError):
            sealing.open("ada", frame)
    again.close()


def test_keys_of_another_name_are_refused(pair):
    _, node = pair
    with pytest.raises(TrustError, match="identity of ada, not bob"):
        node.trust("bob", MODEL, 0)


def test_an_end_belongs_to_one_fleet(pair, tmp_path):
    _, node = pair
    stranger = make_identity(HOST, Role.HOST, os.urandom(64))
    with pytest.raises(TrustError, match="another fleet"):
        node.adopt(found_fleet("garden", stranger.public))
    make_identity_file(tmp_path / "bob" / IDENTITY, "bob", Role.NODE)
    ring = Keyring(tmp_path / "bob", TrustConfig())
    ring.open()
    with pytest.raises(TrustError, match="belongs to no fleet"):
        ring.trust("bob", MODEL, 0)
    ring.close()


def test_the_roster_and_who_was_revoked_survive(pair, tmp_path):
    from host import membership

    host, _ = pair
    before = membership.answer(host, {"enrol": "list"})
    assert [row["name"] for row in before["members"]] == ["ada"]
    assert not before["members"][0]["revoked"]
    after = membership.answer(host, {"enrol": "revoke", "name": "ada"})
    assert after["members"][0]["revoked"]
    host.close()
    again = Keyring(tmp_path / HOST, TrustConfig())
    again.open()
    assert membership.answer(again, {"enrol": "list"}) == after
    again.close()


def test_what_a_host_cannot_do_is_a_sentence(pair):
    from host import membership

    host, _ = pair
    assert "not enrolled" in membership.answer(host, {"enrol": "revoke", "name": "eve"})["error"]
    assert "TM1:" in membership.answer(host, {"enrol": "add", "identity": "nonsense"})["error"]
    assert "nothing" in membership.answer(host, {"enrol": "dance"})["error"]
    assert "--insecure" in membership.answer(NoKeyring(), {"enrol": "list"})["error"]
    assert Path(host.store.path).exists()
