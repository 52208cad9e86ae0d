"""The files that `ternmesh broker` writes, without a broker."""

import base64
import json
import os
import shutil
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import pytest
from cryptography import x509

from ternmesh_cli import main
from ternmesh_cli.broker import texts
from ternmesh_cli.broker.certificates import make_authority, make_server
from ternmesh_cli.broker.texts import Account, BrokerSettings
from transports.base import HOST
from transports.mqtt.credentials import read_credentials
from transports.mqtt.settings import MESSAGE_MAX, MqttSettings, packet_max

BEGIN = ("config", "--node", "ada", "--name", "localhost")


def broker(folder: Path, *arguments: object) -> int:
    command, *rest = arguments
    words = ("broker", command, "--dir", folder, "--fleet", "attic", *rest)
    return main.main([str(word) for word in words])


def test_the_configuration_says_what_may_not_be_left_to_defaults() -> None:
    text = texts.configuration(BrokerSettings(PurePosixPath("/etc/broker"), bind="192.0.2.1"))
    lines = text.splitlines()
    longest = packet_max(MqttSettings("mqtt://x", "f" * 32, HOST), MESSAGE_MAX)
    for line in (
        "listener 8883 192.0.2.1",
        "allow_anonymous false",
        "use_username_as_clientid true",
        "retain_available false",
        "password_file /etc/broker/passwords",
        "acl_file /etc/broker/access",
        "certfile /etc/broker/server.pem",
        f"max_packet_size {longest}",
        "max_queued_bytes 67108864",
        "persistence true",
    ):
        assert line in lines
    assert sum(line.startswith("listener") for line in lines) == 1
    assert not any(
        line.startswith(("per_listener_settings", "allow_anonymous t")) for line in lines
    )


def test_connections_and_bytes_are_limited_by_address(tmp_path) -> None:
    limits = ("--address-max", 5, "--address-rate", 200)
    free = ("--unlimited", "192.0.2.7", "--unlimited", "2001:db8::/64")
    assert broker(tmp_path, *BEGIN, "--port", 8884, *limits, *free) == 0
    text = (tmp_path / "connections.nft").read_text()
    assert text.count("tcp dport 8884 ct state new") == text.count("ct count over 5 }") == 2
    assert text.count("limit rate over 200 kbytes/second burst 1600 kbytes } drop") == 2
    accepted = [line.strip() for line in text.splitlines() if line.endswith(" accept")]
    assert accepted == [
        "iif lo accept",
        "ip saddr 192.0.2.7/32 accept",
        "ip6 saddr 2001:db8::/64 accept",
    ]
    if shutil.which("nft", path="/usr/sbin:/usr/bin") is None or os.geteuid() != 0:
        pytest.skip("nft is not installed, or this is not root")
    command = ["unshare", "-n", "/usr/sbin/nft", "-c", "-f", tmp_path / "connections.nft"]
    subprocess.run(command, check=True)


def test_only_addresses_may_be_unlimited(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit):
        broker(tmp_path / "b", *BEGIN, "--unlimited", "1.2.3.4 accept; #")
    assert "is no IP address or network" in capsys.readouterr().err


def own_certificate(folder: Path) -> None:
    """Write live.pem and live.key of another authority."""
    now = datetime.now(UTC)
    made = make_server(["localhost"], make_authority("another", now), now)
    (folder / "live.pem").write_bytes(made.public)
    (folder / "live.key").write_bytes(made.key)


def test_own_certificates_stay_where_they_are(tmp_path) -> None:
    own_certificate(tmp_path)
    files = ("--certificate", tmp_path / "live.pem", "--key", tmp_path / "live.key")
    place = ("--place", "/etc/mosquitto/fleet")
    assert broker(tmp_path / "b", "config", "--node", "ada", *files, *place) == 0
    lines = (tmp_path / "b" / "mosquitto.conf").read_text().splitlines()
    assert f"certfile {tmp_path / 'live.pem'}" in lines
    assert f"keyfile {tmp_path / 'live.key'}" in lines
    assert "password_file /etc/mosquitto/fleet/passwords" in lines
    assert not (tmp_path / "b" / "authority.key").exists()


def test_the_name_of_an_own_certificate_may_lead_to_the_newest(tmp_path) -> None:
    own_certificate(tmp_path)
    (tmp_path / "newest.pem").symlink_to("live.pem")
    files = ("--certificate", tmp_path / "newest.pem", "--key", tmp_path / "live.key")
    assert broker(tmp_path / "b", "config", "--node", "ada", *files) == 0
    assert f"certfile {tmp_path / 'newest.pem'}\n" in (tmp_path / "b/mosquitto.conf").read_text()


@pytest.mark.parametrize(("certificate", "key"), [(".", "."), ("live.pem", "missing")])
def test_what_is_no_certificate_with_its_key_is_refused(
    tmp_path, capsys, certificate: str, key: str
) -> None:
    own_certificate(tmp_path)
    files = ("--certificate", tmp_path / certificate, "--key", tmp_path / key)
    assert broker(tmp_path / "b", "config", "--node", "ada", *files) == 2
    assert "are no certificate and its key" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_a_known_answer_of_the_password_hash() -> None:
    """Written by mosquitto_passwd 2.0.11 for the password `secret`."""
    line = (
        "attic~ada:$7$101$YGFcCFkOerg+VZd7$oFnlewFFtAGQJ7sqnQh2zg5nBi1yQ9bcFsSIaqKBI1EHxUIp8nK4RMqE"
        "l0sIiN+rK7AyHA85CUKteNSuDNqehQ==\n"
    )
    salt = base64.b64decode("YGFcCFkOerg+VZd7")
    assert texts.password_line(Account("attic", "ada"), "secret", salt) == line


def test_a_folder_with_files_of_others_is_left_alone(tmp_path) -> None:
    (tmp_path / "passwords").write_text("precious")
    assert broker(tmp_path, *BEGIN) == 2
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


def test_secrets_are_for_their_owner_alone(tmp_path) -> None:
    assert broker(tmp_path / "b", *BEGIN) == 0
    for path in [tmp_path / "b", *(tmp_path / "b").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        public = path.suffix in (".conf", ".nft", ".pem")
        assert mode == (0o644 if public else 0o700 if path.is_dir() else 0o600), path


def test_a_password_stands_in_one_file_and_nowhere_else(tmp_path, capsys) -> None:
    assert broker(tmp_path, *BEGIN, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["username"] for row in answer["accounts"]] == ["attic~host", "attic~ada"]
    assert answer["url"] == "mqtts://localhost:8883"
    password = read_credentials(tmp_path / "credentials" / "ada.credentials.toml", "ada").password
    assert password is not None
    assert len(password) == 32
    holders = [path for path in tmp_path.rglob("*") if path.is_file()]
    found = [path.name for path in holders if password.encode() in path.read_bytes()]
    assert (found, password in json.dumps(answer)) == (["ada.credentials.toml"], False)


def test_passwords_may_be_shown_once_instead(tmp_path, capsys) -> None:
    assert broker(tmp_path, *BEGIN, "--show", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert all(len(row["password"]) == 32 for row in answer["accounts"])
    assert (answer["files"], list((tmp_path / "credentials").iterdir())) == ([], [])


def test_a_gateway_gets_the_credentials_of_its_boards(tmp_path) -> None:
    assert broker(tmp_path, *BEGIN, "--gateway", "shed=bob,cleo") == 0
    assert {path.name for path in (tmp_path / "credentials").iterdir()} == {
        "host.credentials.toml",
        "ada.credentials.toml",
        "shed.credentials.toml",
    }
    path = tmp_path / "credentials" / "shed.credentials.toml"
    assert read_credentials(path, "cleo").username == "attic~cleo"


def test_a_board_that_is_removed_leaves_its_gateways_file(tmp_path) -> None:
    assert broker(tmp_path, *BEGIN, "--gateway", "shed=bob,cleo") == 0
    path = tmp_path / "credentials" / "shed.credentials.toml"
    kept = read_credentials(path, "cleo")
    assert broker(tmp_path, "remove", "--node", "bob") == 0
    assert read_credentials(path, "cleo") == kept
    with pytest.raises(ValueError, match="no table"):
        read_credentials(path, "bob")
    assert path.stat().st_mode & 0o777 == 0o600
    assert broker(tmp_path, "remove", "--node", "cleo") == 0
    assert not path.exists()


def test_no_credentials_file_is_written_over(tmp_path) -> None:
    assert broker(tmp_path, *BEGIN) == 0
    folder = tmp_path / "credentials"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    barn = ["broker", "add", "--dir", str(tmp_path), "--fleet", "barn", "--node", "ada"]
    assert main.main(barn) == 0
    assert {path: path.read_bytes() for path in before} == before
    assert len(list(folder.iterdir())) == 2 + len(before)


def test_who_is_added_or_removed_leaves_the_others_as_they_were(tmp_path, capsys) -> None:
    assert broker(tmp_path, *BEGIN) == 0
    own = "admin:$7$101$c2FsdHNhbHRzYWx0$aGFzaA==\n"
    rule = "user admin\ntopic read $SYS/#\npattern read %u\n"
    (tmp_path / "passwords").open("a").write(own)
    (tmp_path / "access").open("a").write(rule)
    before = [(tmp_path / name).read_text() for name in ("passwords", "access")]
    assert broker(tmp_path, "add", "--node", "bob") == 0
    after = [(tmp_path / name).read_text() for name in ("passwords", "access")]
    assert all(new.startswith(old) for old, new in zip(before, after, strict=True))
    assert after[0].count("\n") == before[0].count("\n") + 1
    assert "topic write ternmesh/attic/up/bob\n" in after[1]
    assert broker(tmp_path, "remove", "--node", "bob") == 0
    assert [(tmp_path / name).read_text() for name in ("passwords", "access")] == before
    capsys.readouterr()
    assert not (tmp_path / "credentials" / "bob.credentials.toml").exists()
    assert broker(tmp_path, "remove", "--node", "bob") == 2
    assert "has no account attic~bob" in capsys.readouterr().err
    assert broker(tmp_path, "remove", "--node", "host") == 2
    assert "the host needs its account" in capsys.readouterr().err
    assert "attic~host:" in (tmp_path / "passwords").read_text()


def test_files_for_another_place_must_be_copied_before_the_reload(tmp_path, capsys) -> None:
    assert broker(tmp_path, *BEGIN, "--place", "/etc/mosquitto/attic") == 0
    for change, files in (
        (("add", "--node", "bob"), "passwords and access"),
        (("remove", "--node", "bob"), "passwords and access"),
    ):
        capsys.readouterr()
        assert broker(tmp_path, *change) == 0
        shown = capsys.readouterr().out
        assert f"Copy {files} from {tmp_path} to /etc/mosquitto/attic on the broker" in shown


def test_a_second_fleet_gets_a_host_of_its_own(tmp_path) -> None:
    assert broker(tmp_path, *BEGIN) == 0
    assert (
        main.main(["broker", "add", "--dir", str(tmp_path), "--fleet", "barn", "--node", "a"]) == 0
    )
    names = [account.username for account in texts.accounts((tmp_path / "passwords").read_text())]
    assert names == ["attic~host", "attic~ada", "barn~host", "barn~a"]


def test_the_certificate_is_for_all_names(tmp_path) -> None:
    assert broker(tmp_path, *BEGIN, "--name", "192.0.2.7", "--name", "fe80::1") == 0
    found = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert len(names.get_values_for_type(x509.IPAddress)) == 2
    usage = found.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not usage.ca
    authority = x509.load_pem_x509_certificate((tmp_path / "authority.pem").read_bytes())
    found.verify_directly_issued_by(authority)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("config", "--node", "ada"), "--name is missing"),
        ((*BEGIN, "--certificate", "a.pem"), "belong together"),
        ((*BEGIN, "--node", "ada"), "a node is named twice"),
        ((*BEGIN, "--node", "host"), "attic~host is the host's account"),
        ((*BEGIN, "--node", "a/b"), "must be 1 to 32 letters"),
        ((*BEGIN, "--node", "a~b"), "must be 1 to 32 letters"),
        ((*BEGIN, "--node", "all"), "a node may not be called 'all'"),
        ((*BEGIN, "--gateway", "ada=bob"), "a gateway may not have a board's name: ada"),
        (("add",), "no node to add"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_one_sentence_and_exit_code_2(
    tmp_path, capsys, arguments, sentence
) -> None:
    assert broker(tmp_path / "b", *arguments) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("command", [BEGIN, ("add",)], ids=["config", "add"])
@pytest.mark.parametrize("name", ["../../esc", "a/b", "g" * 250, "\xfc", "all"])
def test_a_gateway_is_called_as_a_node_may_be(tmp_path, capsys, command, name: str) -> None:
    folder = tmp_path / "deep" / "er" / "b"
    if command == ("add",):
        assert broker(folder, *BEGIN) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit, match="2"):
        broker(folder, *command, "--gateway", f"{name}=bob")
    assert "node" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["b\udcff", "b\nallow_anonymous true"])
@pytest.mark.parametrize("option", ["--dir", "--certificate", "--key", "--place"])
def test_a_path_that_no_configuration_can_name_is_refused(
    tmp_path, capsys, option: str, name: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        broker(tmp_path / "b", *BEGIN, option, tmp_path / name)
    assert "choose another path" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [BEGIN, ("add", "--node", "bob"), ("remove", "--node", "bob"), ("renew",)],
    ids=["config", "add", "remove", "renew"],
)
@pytest.mark.parametrize("name", ["loop", "n" * 256])
def test_a_folder_that_cannot_be_is_exit_code_1(tmp_path, capsys, command, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    start = ["broker", command[0], "--dir", str(tmp_path / name), *command[1:]]
    assert main.main(start) == 1
    answer = capsys.readouterr().err
    assert answer.startswith("ternmesh: cannot write /") or "cannot be read (" in answer
    assert str(tmp_path / name) in answer


def test_a_credentials_file_that_must_stay_is_a_sentence(tmp_path, capsys, monkeypatch) -> None:
    assert broker(tmp_path, *BEGIN) == 0
    unlink = Path.unlink

    def refuse(path: Path, **options: bool) -> None:
        if path.name == "ada.credentials.toml":
            raise PermissionError(13, "Permission denied")
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert broker(tmp_path, "remove", "--node", "ada") == 1
    assert "ada.credentials.toml (Permission denied)" in capsys.readouterr().err


def test_a_file_keeps_its_mode_and_its_owner(tmp_path, monkeypatch) -> None:
    """A broker that runs as another user can still read changed files."""
    given: list[tuple[int, int]] = []
    monkeypatch.setattr("os.fchown", lambda _, user, group: given.append((user, group)))
    assert broker(tmp_path, *BEGIN) == 0
    (tmp_path / "passwords").chmod(0o640)
    given.clear()
    assert broker(tmp_path, "add", "--node", "bob") == 0
    assert broker(tmp_path, "remove", "--node", "ada") == 0
    owned = (tmp_path / "passwords").stat()
    assert owned.st_mode & 0o777 == 0o640
    assert (tmp_path / "access").stat().st_mode & 0o777 == 0o600
    assert given == [(owned.st_uid, owned.st_gid)] * 4


def test_an_owner_that_cannot_be_kept_is_a_sentence(tmp_path, capsys, monkeypatch) -> None:
    """Mosquitto could not read a file that belongs to the caller."""
    assert broker(tmp_path, *BEGIN) == 0
    before = (tmp_path / "access").read_bytes()

    def refuse(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.fchown", refuse)
    assert broker(tmp_path, "add", "--node", "bob") == 1
    assert "access (Operation not permitted)" in capsys.readouterr().err
    assert (tmp_path / "access").read_bytes() == before


def test_a_folder_is_not_written_over(tmp_path, capsys) -> None:
    assert broker(tmp_path, *BEGIN) == 0
    before = (tmp_path / "passwords").read_bytes()
    assert broker(tmp_path, *BEGIN) == 2
    assert "`ternmesh broker add`" in capsys.readouterr().err
    assert (tmp_path / "passwords").read_bytes() == before


def test_a_folder_that_is_not_there_is_exit_code_1(tmp_path, capsys) -> None:
    assert broker(tmp_path, "add", "--node", "bob") == 1
    assert "`ternmesh broker config` makes it" in capsys.readouterr().err


def test_a_node_is_added_to_the_only_fleet_there_is(tmp_path: Path) -> None:
    start = ["broker", "config", "--dir", str(tmp_path), "--fleet", "attic", "--name", "b"]
    assert main.main([*start, "--node", "ada"]) == 0
    host = (tmp_path / "credentials" / "host.credentials.toml").read_bytes()
    assert main.main(["broker", "add", "--dir", str(tmp_path), "--node", "bob"]) == 0
    assert "attic~bob" in (tmp_path / "passwords").read_text()
    assert (tmp_path / "credentials" / "host.credentials.toml").read_bytes() == host
    barn = ["broker", "add", "--dir", str(tmp_path), "--fleet", "barn", "--node", "a"]
    assert main.main(barn) == 0
    assert main.main(["broker", "add", "--dir", str(tmp_path), "--node", "eve"]) == 2
