"""TLS with a real broker and authorities of our own."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from ternmesh.config import ConfigError
from ternmesh_cli.broker import certificates
from ternmesh_cli.broker.certificates import SERVER_DAYS, Certificate, make_authority, make_server
from transports.base import HOST
from transports.link_config import LinkConfig, link_settings

WAIT_S = 20.0
NOW = datetime.now(UTC)
BARN = make_authority("barn", NOW)

Keep = Callable[[str, Certificate], tuple[str, str]]


@pytest.fixture
def keep(tmp_path) -> Keep:
    """Writes a certificate and its key, and returns their paths."""

    def write(name: str, made: Certificate) -> tuple[str, str]:
        paths = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        for path, content in zip(paths, (made.public, made.key), strict=True):
            path.write_bytes(content)
        return str(paths[0]), str(paths[1])

    return write


def self_signed(name: str) -> Certificate:
    """The certificate of a client; `make_server` makes those of servers alone."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), certificates._named(name)
    builder = certificates._builder(subject, subject, key.public_key(), NOW, 1)
    signed = builder.sign(key, hashes.SHA256())
    return Certificate(certificates._pem(signed), certificates._key_pem(key))


def tls_url(broker) -> str:
    return broker.url.replace("mqtt://127.0.0.1", "mqtts://localhost")


def test_a_private_authority_is_trusted_and_no_other(
    new_mosquitto, mosquitto, new_end, eventually, keep
) -> None:
    certificate, key = keep("localhost", make_server(["localhost"], BARN, NOW))
    broker = new_mosquitto(f"certfile {certificate}\nkeyfile {key}")
    url, (ca, _) = tls_url(broker), keep("barn", BARN)
    host, ada = (new_end(url, role, ca_file=ca) for role in (HOST, "ada"))
    elsewhere, _ = keep("elsewhere", make_authority("elsewhere", NOW))
    stranger = new_end(url, "eve", ca_file=elsewhere)
    public = new_end(url, "ida")
    other_name = new_end(broker.url.replace("mqtt:", "mqtts:"), "bob", ca_file=ca)
    plain = new_end(url.replace("mqtts:", "mqtt:"), "cleo")
    eventually(lambda: host.connected and ada.connected)
    ada.send(HOST, [b"x" * 60_000])
    assert host.receive(WAIT_S).frames == (b"x" * 60_000,)
    for end, sentence in (
        (stranger, f"localhost:{broker.port} is signed by no authority in {elsewhere}"),
        (public, "is signed by no authority in the system's certificates"),
        (other_name, f"certificate of mqtts://127.0.0.1:{broker.port} is for another name"),
        (plain, "is it a port for TLS (mqtts://)?"),
        (new_end(tls_url(mosquitto), "dan"), "is it a port for TLS"),
    ):
        eventually(lambda end=end, text=sentence: text in str(end.status().last_error))
        assert not end.connected


def test_a_broker_may_ask_for_a_certificate(new_mosquitto, new_end, eventually, keep) -> None:
    certificate, key = keep("localhost", make_server(["localhost"], BARN, NOW))
    own, own_key = keep("ada", self_signed("ada"))
    lines = (f"certfile {certificate}", f"keyfile {key}", f"cafile {own}")
    broker = new_mosquitto("\n".join([*lines, "require_certificate true"]))
    url, (ca, _) = tls_url(broker), keep("barn", BARN)
    ada = new_end(url, "ada", ca_file=ca, certificate_file=own, key_file=own_key)
    nobody = new_end(url, "eve", ca_file=ca)
    eventually(lambda: ada.connected)
    sentence = "does it ask for a certificate (certificate_file)?"
    eventually(lambda: sentence in str(nobody.status().last_error))
    assert not nobody.connected


def test_a_certificate_that_is_over_is_told(new_mosquitto, new_end, eventually, keep) -> None:
    over = make_server(["localhost"], BARN, NOW - timedelta(days=SERVER_DAYS + 1))
    certificate, key = keep("localhost", over)
    broker = new_mosquitto(f"certfile {certificate}\nkeyfile {key}")
    ada = new_end(tls_url(broker), "ada", ca_file=keep("barn", BARN)[0])
    sentence = "is not valid now (certificate has expired): renew it, or set the clock"
    eventually(lambda: sentence in str(ada.status().last_error))


def test_files_that_hold_no_certificates_are_named(keep, tmp_path) -> None:
    made = make_server(["ada"], BARN, NOW)
    certificate, key = keep("ada", made)
    link = LinkConfig("mqtts://localhost", certificate_file=certificate, key_file=key)
    assert link_settings(link, "ada").tls_files.key == key
    locked, empty = tmp_path / "locked.key", tmp_path / "empty.pem"
    private, word = load_pem_private_key(made.key, None), BestAvailableEncryption(b"word")
    locked.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, word))
    empty.write_text("")
    for change, sentence in (
        (
            {"ca_file": str(empty)},
            f"ca_file {empty} holds no certificates: no certificate or crl found",
        ),
        ({"certificate_file": str(empty)}, f"certificate_file {empty} and key_file"),
        ({"key_file": str(locked)}, "the key without a passphrase"),
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
