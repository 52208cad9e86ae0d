"""The files that `ternmesh broker` writes, without a broker."""

import base64
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography import x509

from ternmesh_cli import main
from ternmesh_cli.broker import texts
from ternmesh_cli.broker.texts import Account

BEGIN = ("config", "--node", "ada", "--name", "localhost")


def broker(folder: Path, *arguments: object) -> int:
    command, *rest = arguments
    words = ("broker", command, "--dir", folder, "--fleet", "attic", *rest)
    return main.main([str(word) for word in words])


def test_nft_takes_the_limits_by_address(tmp_path) -> None:
    assert broker(tmp_path, *BEGIN, "--port", 8884) == 0
    if shutil.which("nft", path="/usr/sbin:/usr/bin") is None or os.geteuid() != 0:
        pytest.skip("nft is not installed, or this is not root")
    command = ["unshare", "-n", "/usr/sbin/nft", "-c", "-f", tmp_path / "connections.nft"]
    subprocess.run(command, check=True)


def test_a_known_answer_of_the_password_hash() -> None:
    """Written by mosquitto_passwd 2.0.11 for the password `secret`."""
    line = (
        "attic~ada:$7$101$YGFcCFkOerg+VZd7$oFnlewFFtAGQJ7sqnQh2zg5nBi1yQ9bcFsSIaqKBI1EHxUIp8nK4RMqE"
        "l0sIiN+rK7AyHA85CUKteNSuDNqehQ==\n"
    )
    salt = base64.b64decode("YGFcCFkOerg+VZd7")
    assert texts.password_line(Account("attic", "ada"), "secret", salt) == line


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


@pytest.mark.parametrize("name", ["b\udcff", "b\nallow_anonymous true"])
@pytest.mark.parametrize("option", ["--dir", "--place"])
def test_a_path_that_no_configuration_can_name_is_refused(tmp_path, capsys, option, name) -> None:
    with pytest.raises(SystemExit, match="2"):
        broker(tmp_path / "b", *BEGIN, option, tmp_path / name)
    assert "choose another path" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


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
