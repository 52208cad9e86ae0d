"""Identity files, the trust store, and what an operator is told."""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from ternmesh.config import ConfigError
from ternmesh.errors import TrustError, WireError
from ternmesh.swarm.events import TrustChanged
from ternmesh.trust.identity import Role, make_identity
from ternmesh.trust.neighbours import write_fleet
from ternmesh.trust.notary import OPEN
from ternmesh.trust.roster import HOST, found_fleet
from ternmesh.trust.session import CloneCount
from ternmesh.wire.seal import BROADCAST
from ternmesh_store.database import StoreError
from ternmesh_store.keyring import (
    IDENTITY,
    Keyring,
    NoKeyring,
    TrustConfig,
    choose_keyring,
    hop_keys,
    make_identity_file,
    read_identity_file,
)
from ternmesh_store.trust_store import END, HOP

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
    state = host.store.sealing(END)
    assert [peer.name for peer in state.peers] == ["ada"]
    assert state.group is not None
    host.close()
    again = Keyring(tmp_path / HOST, TrustConfig())
    again.open()
    assert again.store.sealing(END) == state
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


def test_both_layers_keep_their_own_state(pair, tmp_path):
    host, node = pair
    for ring, name in ((host, HOST), (node, "ada")):
        hop = hop_keys(ring, name)
        sealing = hop.sealing(0)
        sealing.meet("ada" if ring is host else HOST)
        hop.record(sealing.changes())
        hop.commit()
    assert host.store.sealing(END).peers == ()
    [kept] = host.store.sealing(HOP).peers
    assert (kept.name, kept.epoch) == ("ada", 1)
    assert host.store.sealing(HOP).group is not None
    host.trust(HOST, MODEL, 0).sealing.meet("ada")
    assert host.store.sealing(HOP).peers == (kept,)
    assert hop_keys(host, HOST).sealing(0).seal("ada", 1, 0, b"body")[0] >> 2 & 7 == 2
    with pytest.raises(TrustError, match="identity of ada, not bob"):
        hop_keys(node, "bob").sealing(0)
    assert hop_keys(NoKeyring(), "ada") is None


def test_clones_that_a_link_has_seen_are_kept(pair, tmp_path):
    host, _ = pair
    host.store.record(HOP, (CloneCount("ada", 3),))
    host.store.record(END, (CloneCount("ada", 1),))
    host.store.commit()
    hop_keys(host, HOST).sealing(0)
    host.trust(HOST, MODEL, 0)
    assert host.status()["clones"] == {"ada": 4}


def test_who_is_revoked_hears_no_broadcast_of_either_layer(pair):
    host, _ = pair
    hop, end = hop_keys(host, HOST).sealing(0), host.trust(HOST, MODEL, 0).sealing
    before = [sealing.seal("all", BROADCAST, 0, b"body") for sealing in (hop, end)]
    host.rekey()
    after = [sealing.seal("all", BROADCAST, 0, b"body") for sealing in (hop, end)]
    assert all(one != other for one, other in zip(before, after, strict=True))


def test_a_store_of_an_older_version_is_refused(pair, tmp_path):
    host, _ = pair
    host.close()
    path = tmp_path / HOST / "trust.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 1")
    with pytest.raises(StoreError, match=r"another version of ternmesh \(format 1"):
        Keyring(tmp_path / HOST, TrustConfig()).open()


def test_a_board_behind_a_gateway_speaks_to_that(pair, tmp_path):
    host, node = pair
    shed = make_identity("shed", Role.GATEWAY, os.urandom(64))
    with pytest.raises(TrustError, match=r"shed is not enrolled.*enrol import"):
        hop_keys(node, "ada", "shed").sealing(0)
    host.roster.enrol(shed.public)
    node.learn(write_fleet(host.own, host.roster.state))
    again = Keyring(tmp_path / "ada", TrustConfig())
    node.close()
    again.open()
    sealing = hop_keys(again, "ada", "shed").sealing(0)
    sealing.meet(HOST)
    [kept] = [change for change in sealing.changes() if getattr(change, "name", "") == HOST]
    assert kept.fingerprint == shed.public.fingerprint
    with pytest.raises(TrustError, match="which is a node"):
        hop_keys(again, "ada", "ada").sealing(0)
    again.close()


def test_a_rule_for_signers_is_checked_before_anything_starts():
    TrustConfig(signers=("a", "b"), threshold=2).check(has_radio=True)
    for rule in (TrustConfig(threshold=2), TrustConfig(signers=("a", "a"))):
        with pytest.raises(ConfigError, match="threshold"):
            rule.check(has_radio=False)


def test_a_quantum_signature_over_a_radio_is_refused_with_its_price():
    TrustConfig(quantum="x").check(has_radio=False)
    with pytest.raises(ConfigError, match=r"2,438 bytes.*13 radio frames.*quantum_on_radio = true"):
        TrustConfig(quantum="x").check(has_radio=True)
    TrustConfig(quantum="x", quantum_on_radio=True).check(has_radio=True)


def test_a_fleet_of_another_name_is_refused_at_the_start(pair):
    for ring in pair:
        ring.check_fleet("garden")
        with pytest.raises(TrustError, match=r"link\.fleet is 'gardens'.*another name"):
            ring.check_fleet("gardens")
    NoKeyring().check_fleet("whatever")
