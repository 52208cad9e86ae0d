"""Identity files, the trust store, and what an operator is told."""

import os
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from host import membership
from ternmesh.config import ConfigError
from ternmesh.errors import SecurityError, WireError
from ternmesh.federated.events import SecurityChanged
from ternmesh.security.authenticator import OPEN
from ternmesh.security.identity import Role, identity_text, make_identity, quantum_text
from ternmesh.security.key_derivation import SUITE_HOP
from ternmesh.security.keyed_sealing import KeyedSealing
from ternmesh.security.membership import HOST, found_fleet, write_fleet
from ternmesh.security.session import CloneCount, SealingState
from ternmesh.wire.frame import BROADCAST
from ternmesh_service.identity_file import IDENTITY, make_identity_file, read_identity_file
from ternmesh_service.keyring import Keyring, NoKeyring, SecurityConfig, choose_keyring, hop_keys
from ternmesh_store.database import StoreError
from ternmesh_store.files import GITIGNORE, create_private_file
from ternmesh_store.state_file import SECURITY, STATE, StateFile
from ternmesh_store.store import END, HOP
from transports.link_config import LinkConfig

MODEL = bytes(32)


@pytest.fixture
def pair(tmp_path):
    """Open keyrings of a host and of the node ada, who know each other."""
    rings = []
    for name, role in ((HOST, Role.HOST), ("ada", Role.NODE)):
        make_identity_file(tmp_path / name / IDENTITY, name, role)
        rings.append(opened(tmp_path / name))
    host, node = rings
    fleet = found_fleet("garden", host.own.public)
    host.adopt(fleet)
    node.adopt(fleet)
    host.member_list.enrol(node.own.public)
    host.keep_member_list()
    yield host, node
    for ring in rings:
        ring.state.close()


def opened(folder: Path) -> Keyring:
    state = StateFile(folder)
    state.open(keep=(SECURITY,))
    ring = Keyring(state, SecurityConfig())
    ring.open()
    return ring


def test_an_identity_file_is_its_owners_alone(tmp_path, monkeypatch):
    path = tmp_path / "state" / IDENTITY
    made = make_identity_file(path, "ada", Role.NODE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert (path.parent / GITIGNORE).exists()
    assert read_identity_file(path) == made
    with pytest.raises(SecurityError, match="File exists"):
        make_identity_file(path, "ada", Role.NODE)
    path.chmod(0o640)
    with pytest.raises(SecurityError, match="others may read"):
        read_identity_file(path)
    with pytest.raises(SecurityError, match=r"ternmesh enrol identity.*--insecure"):
        opened(tmp_path / "empty")
    with pytest.raises(SecurityError, match=r"cannot be read \(Is a directory\): it must be"):
        read_identity_file(path.parent)


def test_a_systemd_credential_is_taken_before_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    assert SecurityConfig().path(tmp_path) == tmp_path / IDENTITY
    path = tmp_path / "credentials" / "ternmesh-identity"
    make_identity_file(path, "ada", Role.NODE)
    path.chmod(0o440)  # as systemd makes them
    assert SecurityConfig().path(tmp_path) == path
    assert read_identity_file(path).public.name == "ada"
    assert SecurityConfig(identity_file="other").path(tmp_path) == tmp_path / "other"


def test_doing_without_keys_off_this_machine_takes_saying_it_twice(tmp_path, caplog):
    without = SecurityConfig(insecure=True)
    here, elsewhere = LinkConfig("mqtt://localhost"), LinkConfig("mqtt://broker")
    keys = choose_keyring(StateFile(tmp_path), without, here, insecure=False)
    assert isinstance(keys, Keyring), "the file alone does not do it"
    with pytest.raises(ConfigError, match="insecure = true"):
        choose_keyring(StateFile(tmp_path), SecurityConfig(), elsewhere, insecure=True)
    assert not caplog.records
    for config, link in ((SecurityConfig(), here), (without, elsewhere)):
        ring = choose_keyring(StateFile(tmp_path), config, link, insecure=True)
        assert isinstance(ring, NoKeyring)
        assert ring.security("ada", MODEL, 0) is OPEN
        assert "INSECURE" in caplog.records.pop().message


def test_a_store_is_its_owners_alone_and_is_not_begun_anew(pair, tmp_path):
    path = tmp_path / HOST / STATE
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(StoreError, match="another process"):
        opened(tmp_path / HOST)
    pair[0].state.close()
    path.write_bytes(os.urandom(8192))
    with pytest.raises(StoreError, match="damaged"):
        opened(tmp_path / HOST)
    assert len(path.read_bytes()) == 8192


def test_sessions_and_windows_are_found_again(pair, tmp_path):
    host, node = pair
    ours, theirs = node.security("ada", MODEL, 0).sealing, host.security(HOST, MODEL, 0).sealing
    frames = []
    for counter in range(1, 5):  # the first contact: hello, sync, hello, sync
        frame = ours.seal(HOST, 0, counter, b"\x01hello")
        frames.append(frame)
        with suppress(WireError):  # "sync", at first
            theirs.open("ada", frame)
        for peer, address, body in theirs.due(float(10 * counter)):
            ours.open(HOST, theirs.seal(peer, address, counter, body))
    for ring, sealing in ((node, ours), (host, theirs)):
        changes = sealing.changes()
        assert changes
        ring.record(SecurityChanged(changes))
        ring.state.commit()
    state = host.store.sealing(END)
    assert [peer.name for peer in state.peers] == ["ada"]
    assert state.group is None  # the hub makes a new key in every process
    host.state.close()
    again = opened(tmp_path / HOST)
    assert again.store.sealing(END) == state
    sealing = again.security(HOST, MODEL, 4096).sealing
    for frame in frames:
        with pytest.raises(WireError):
            sealing.open("ada", frame)
    again.state.close()


def test_an_end_has_one_name_and_belongs_to_one_fleet(pair, tmp_path):
    _, node = pair
    with pytest.raises(SecurityError, match="identity of ada, not bob"):
        node.security("bob", MODEL, 0)
    for ring in pair:
        ring.check_fleet("garden")
        with pytest.raises(SecurityError, match=r"link\.fleet is 'gardens'.*another name"):
            ring.check_fleet("gardens")
    NoKeyring().check_fleet("whatever")
    stranger = make_identity(HOST, Role.HOST, os.urandom(64))
    with pytest.raises(SecurityError, match="another fleet"):
        node.adopt(found_fleet("garden", stranger.public))
    make_identity_file(tmp_path / "bob" / IDENTITY, "bob", Role.NODE)
    ring = opened(tmp_path / "bob")
    with pytest.raises(SecurityError, match="belongs to no fleet"):
        ring.security("bob", MODEL, 0)
    ring.state.close()


def test_who_was_revoked_is_known_even_without_the_wal(pair, tmp_path):
    host, _ = pair
    [row] = membership.answer(host, {"enrol": "list"})["members"]
    assert (row["name"], row["revoked"]) == ("ada", False)
    after = membership.answer(host, {"enrol": "revoke", "name": "ada"})
    assert after["members"][0]["revoked"]
    for name in (STATE, IDENTITY):
        create_private_file(tmp_path / "copy" / name, (tmp_path / HOST / name).read_bytes())
    copy = opened(tmp_path / "copy")
    assert membership.answer(copy, {"enrol": "list"}) == after
    copy.state.close()


def test_what_a_host_cannot_do_is_a_sentence(pair):
    host, _ = pair
    for request, sentence in (
        ({"enrol": "add", "identity": "nonsense"}, "TM1:"),
        ({"enrol": "dance"}, "nothing"),
    ):
        assert sentence in membership.answer(host, request)["error"]
    assert "--insecure" in membership.answer(NoKeyring(), {"enrol": "list"})["error"]


def test_both_layers_keep_their_own_state(pair, tmp_path):
    host, node = pair
    links = [hop_keys(ring, name) for ring, name in ((node, "ada"), (host, HOST))]
    ends = [link.sealing(0) for link in links]
    for number in range(4):  # an opening, a question, an answer, the broadcast key
        sender, receiver = ends if number % 2 == 0 else ends[::-1]
        [(peer, address, body)] = sender.due(1e6 * number)
        with suppress(WireError):
            name = HOST if sender is ends[1] else "ada"
            receiver.open(name, sender.seal(peer, address, number, body))
    for link, sealing in zip(links, ends, strict=True):
        link.record(sealing.changes())
        link.keyring.state.commit()
    assert host.store.sealing(END).peers == ()
    [kept] = host.store.sealing(HOP).peers
    assert kept.name == "ada"
    assert node.store.sealing(HOP).group is not None
    with pytest.raises(SecurityError, match="identity of ada, not bob"):
        hop_keys(node, "bob").sealing(0)
    assert hop_keys(NoKeyring(), "ada") is None
    host.store.record(HOP, (CloneCount("ada", 3),))
    host.store.record(END, (CloneCount("ada", 1),))
    host.store.commit()
    hop_keys(host, HOST).sealing(0)
    host.security(HOST, MODEL, 0)
    assert host.status().clones == {"ada": 4}


def test_who_is_revoked_hears_no_broadcast_of_either_layer(pair):
    host, _ = pair
    hop, end = hop_keys(host, HOST).sealing(0), host.security(HOST, MODEL, 0).sealing
    before = [sealing.seal("all", BROADCAST, 0, b"body") for sealing in (hop, end)]
    host.rekey()
    after = [sealing.seal("all", BROADCAST, 0, b"body") for sealing in (hop, end)]
    assert all(one != other for one, other in zip(before, after, strict=True))


def test_a_board_behind_a_gateway_speaks_to_that(pair, tmp_path):
    host, node = pair
    shed = make_identity("shed", Role.GATEWAY, os.urandom(64))
    with pytest.raises(SecurityError, match=r"shed is not enrolled.*enrol import"):
        hop_keys(node, "ada", "shed").sealing(0)
    host.member_list.enrol(shed.public)
    node.learn(write_fleet(host.own, host.member_list.state))
    node.state.close()
    again = opened(tmp_path / "ada")
    sealing = hop_keys(again, "ada", "shed").sealing(0)
    [(peer, address, body)] = sealing.due(0.0)
    frame = sealing.seal(peer, address, 0, body)
    gateway = KeyedSealing(
        shed, host.member_list, SUITE_HOP, os.urandom(32), 0, SealingState(), hub=None
    )
    with pytest.raises(WireError, match="does not know this process yet"):  # the keys fit
        gateway.open("ada", frame)
    with pytest.raises(SecurityError, match="which is a node"):
        hop_keys(again, "ada", "ada").sealing(0)
    again.state.close()


LINES = tuple(
    identity_text(make_identity(name, Role.NODE, os.urandom(64)).public) for name in ("a", "b")
)
QUANTUM = quantum_text(bytes(1312))


@pytest.mark.parametrize(
    ("rule", "has_radio", "sentence"),
    [
        ({"signers": LINES, "threshold": 2}, True, None),
        ({"quantum": QUANTUM}, False, None),
        ({"quantum": QUANTUM, "quantum_on_radio": True}, True, None),
        ({"threshold": 2}, False, "threshold"),
        ({"signers": ("a", "a")}, False, "threshold"),
        ({"signers": ("TM1:AAAA",)}, False, "^security.signers: this "),
        ({"quantum": "xx"}, False, "^security.quantum: this "),
        ({"quantum": QUANTUM}, True, r"2,438 bytes.*13 radio frames.*quantum_on_radio = true"),
    ],
)
def test_a_rule_for_signers_is_checked_before_anything_starts(rule, has_radio, sentence):
    refused = pytest.raises(ConfigError, match=sentence) if sentence else nullcontext()
    with refused:
        SecurityConfig(**rule).check(has_radio=has_radio)
