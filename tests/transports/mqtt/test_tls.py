"""TLS with a real broker and authorities of our own."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ternmesh.config import ConfigError
from transports.base import HOST
from transports.link_config import LinkConfig, link_settings

WAIT_S = 20.0
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")


class Authority:
    """A name that signs certificates; all files are in `folder`."""

    def __init__(self, openssl: str, folder: Path, name: str) -> None:
        self.openssl, self.folder, self.name = openssl, folder, name
        self.file = folder / f"{name}.pem"
        self._run(
            *("req", "-x509", *NEW_KEY, "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", "keyUsage=critical,keyCertSign"),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem"),
        )

    def sign(self, name: str, *, days: int = 2) -> tuple[Path, Path]:
        """A certificate and its key for the DNS name `name`."""
        (self.folder / "extensions").write_text(f"subjectAltName=DNS:{name}\n")
        key, certificate = f"{name}{days}.key", f"{name}{days}.pem"
        self._run(
            *("req", "-new", *NEW_KEY, "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", key, "-out", "request"),
        )
        self._run(
            *("x509", "-req", "-in", "request", "-days", str(days), "-extfile", "extensions"),
            *("-CA", f"{self.name}.pem", "-CAkey", f"{self.name}.key", "-out", certificate),
        )
        return self.folder / certificate, self.folder / key

    def lock(self, key: Path) -> Path:
        """The key with a passphrase."""
        self._run("ec", "-in", key.name, "-aes128", "-passout", "pass:word", "-out", "locked.key")
        return self.folder / "locked.key"

    def _run(self, *arguments: str) -> None:
        command = [self.openssl, *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Authority]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: apt install openssl")
    return lambda name: Authority(openssl, tmp_path_factory.mktemp(name), name)


def tls_url(broker) -> str:
    return broker.url.replace("mqtt://127.0.0.1", "mqtts://localhost")


@pytest.fixture(scope="module")
def barn(authority: Callable[[str], Authority]) -> Authority:
    """Who signs the certificates of this fleet."""
    return authority("barn")


def test_a_private_authority_is_trusted_and_no_other(
    new_mosquitto, mosquitto, new_end, eventually, authority, barn
) -> None:
    certificate, key = barn.sign("localhost")
    broker = new_mosquitto(f"certfile {certificate}\nkeyfile {key}")
    url, ca = tls_url(broker), str(barn.file)
    host, ada = (new_end(url, role, ca_file=ca) for role in (HOST, "ada"))
    elsewhere = authority("elsewhere")
    stranger = new_end(url, "eve", ca_file=str(elsewhere.file))
    public = new_end(url, "ida")
    other_name = new_end(broker.url.replace("mqtt:", "mqtts:"), "bob", ca_file=ca)
    plain = new_end(url.replace("mqtts:", "mqtt:"), "cleo")
    eventually(lambda: host.connected and ada.connected)
    ada.send(HOST, [b"x" * 60_000])
    assert host.receive(WAIT_S).frames == (b"x" * 60_000,)
    for end, sentence in (
        (stranger, f"localhost:{broker.port} is signed by no authority in {elsewhere.file}"),
        (public, "is signed by no authority in the system's certificates"),
        (other_name, f"certificate of mqtts://127.0.0.1:{broker.port} is for another name"),
        (plain, "is it a port for TLS (mqtts://)?"),
        (new_end(tls_url(mosquitto), "dan"), "is it a port for TLS"),
    ):
        eventually(lambda end=end, text=sentence: text in str(end.status().last_error))
        assert not end.connected


def test_a_broker_may_ask_for_a_certificate(new_mosquitto, new_end, eventually, barn) -> None:
    certificate, key = barn.sign("localhost")
    lines = (f"certfile {certificate}", f"keyfile {key}", f"cafile {barn.file}")
    broker = new_mosquitto("\n".join([*lines, "require_certificate true"]))
    url, ca = tls_url(broker), str(barn.file)
    own, own_key = map(str, barn.sign("ada"))
    ada = new_end(url, "ada", ca_file=ca, certificate_file=own, key_file=own_key)
    nobody = new_end(url, "eve", ca_file=ca)
    eventually(lambda: ada.connected)
    sentence = "does it ask for a certificate (certificate_file)?"
    eventually(lambda: sentence in str(nobody.status().last_error))
    assert not nobody.connected


def test_a_certificate_that_is_over_is_told(new_mosquitto, new_end, eventually, barn) -> None:
    try:
        certificate, key = barn.sign("localhost", days=-1)
    except subprocess.CalledProcessError:
        pytest.skip("this openssl makes no certificate of yesterday")
    broker = new_mosquitto(f"certfile {certificate}\nkeyfile {key}")
    ada = new_end(tls_url(broker), "ada", ca_file=str(barn.file))
    sentence = "is not valid now (certificate has expired): renew it, or set the clock"
    eventually(lambda: sentence in str(ada.status().last_error))


def test_files_that_hold_no_certificates_are_named(barn, tmp_path) -> None:
    certificate, key = map(str, barn.sign("ada"))
    link = LinkConfig("mqtts://localhost", certificate_file=certificate, key_file=key)
    assert link_settings(link, "ada").tls_files.key == key
    locked, empty = str(barn.lock(Path(key))), tmp_path / "empty.pem"
    empty.write_text("")
    for change, sentence in (
        (
            {"ca_file": str(empty)},
            f"ca_file {empty} holds no certificates: no certificate or crl found",
        ),
        ({"certificate_file": str(empty)}, f"certificate_file {empty} and key_file"),
        ({"key_file": locked}, "the key without a passphrase"),
        ({"key_file": str(tmp_path / "nowhere")}, "No such file"),
        ({"key_file": None}, "certificate_file and key_file belong together"),
    ):
        fields = {"certificate_file": certificate, "key_file": key} | change
        with pytest.raises(ConfigError, match=r"\[link\]: ") as caught:
            link_settings(LinkConfig("mqtts://localhost", **fields), "ada")
        assert sentence in str(caught.value)


def test_relative_paths_of_a_link_start_from_a_folder(tmp_path) -> None:
    link = LinkConfig("mqtts://localhost", ca_file="ca.pem", certificate_file="/own.pem")
    found = link.anchored(tmp_path)
    assert found.ca_file == str(tmp_path / "ca.pem")
    assert (found.certificate_file, found.key_file) == ("/own.pem", None)
