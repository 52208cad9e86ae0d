"""Credentials of a broker in a file of their own."""

from dataclasses import replace

import pytest

from ternmesh.config import ConfigError
from transports.link_config import LinkConfig, link_settings
from transports.mqtt.credentials import Credentials, parse_credentials, write_credentials

OWN = {"board-1": Credentials("attic~board-1", "s3cret"), "a.b": Credentials("attic~a.b", "other")}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(write_credentials(OWN))
    path.chmod(0o600)
    return path


def test_each_role_finds_its_own(path) -> None:
    link = LinkConfig("mqtts://broker", "attic", credentials_file=path.name).anchored(path.parent)
    for role, own in OWN.items():
        settings = link_settings(link, role)
        assert (settings.username, settings.password) == (own.username, own.password)


def test_nothing_shows_a_password(path) -> None:
    link = LinkConfig("mqtts://broker", "attic", credentials_file=str(path))
    assert "s3cret" not in repr(link_settings(link, "board-1")) + repr(OWN) + repr(link)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_file_that_others_may_use_is_refused(path, mode) -> None:
    path.chmod(mode)
    link = LinkConfig("mqtts://broker", "attic", credentials_file=str(path))
    with pytest.raises(ConfigError, match=r"^\[link\]: others may use .*: chmod 600 "):
        link_settings(link, "board-1")


@pytest.mark.parametrize(
    ("url", "role", "sentence"),
    [
        ("mqtts://a:b@broker", "board-1", "keep one of them"),
        ("mqtts://broker", "board-2", r"has no table \['board-2'\]"),
    ],
)
def test_what_is_missing_or_double_is_told(path, url, role, sentence) -> None:
    with pytest.raises(ConfigError, match=sentence):
        link_settings(LinkConfig(url, "attic", credentials_file=str(path)), role)


def test_no_password_goes_over_a_network_in_the_clear_unasked(path) -> None:
    link = LinkConfig("mqtt://broker", "attic", credentials_file=str(path))
    for clear in (link, LinkConfig("mqtt://ada:s3cret@broker")):
        with pytest.raises(ConfigError, match="in the clear: write mqtts://, or set") as caught:
            link_settings(clear, "board-1")
        assert "s3cret" not in str(caught.value)
    for allowed in (replace(link, cleartext=True), replace(link, url="mqtt://127.0.0.1")):
        assert link_settings(allowed, "board-1").password is not None


@pytest.mark.parametrize("name", ["nowhere.toml", "."])
def test_a_file_that_is_none_is_told(path, name) -> None:
    link = LinkConfig("mqtts://broker", "attic", credentials_file=str(path.parent / name))
    with pytest.raises(ConfigError, match=r"is no file|cannot be read: No such file"):
        link_settings(link, "board-1")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"a = [",
        b"ada = 3",
        b"[ada]\nusername = 'x'",
        b"[ada]\nusername = ''\npassword = 's3cret'",
        b"[ada]\nusername = 'x'\npassword = 5",
        b"a = " + b"[" * 5000,
    ],
)
def test_a_damaged_file_is_a_sentence_without_its_content(text) -> None:
    with pytest.raises(ValueError, match="credentials_file") as caught:
        parse_credentials(text, "ada")
    assert "s3cret" not in str(caught.value)
