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


def test_each_role_finds_its_own_and_nothing_shows_a_password(path) -> None:
    link = LinkConfig("mqtts://broker", "attic", credentials_file=path.name).anchored(path.parent)
    for role, own in OWN.items():
        settings = link_settings(link, role)
        assert (settings.username, settings.password) == (own.username, own.password)
        assert "s3cret" not in repr(settings) + repr(own) + repr(link)


@pytest.mark.parametrize(
    ("url", "name", "mode", "role", "sentence"),
    [
        *(
            ("mqtts://broker", "own.toml", mode, "board-1", "others may use .*: chmod 600 ")
            for mode in (0o640, 0o604, 0o644, 0o660)
        ),
        ("mqtts://a:b@broker", "own.toml", 0o600, "board-1", "keep one of them"),
        ("mqtts://broker", "own.toml", 0o600, "board-2", r"has no table \['board-2'\]"),
        ("mqtts://broker", "none.toml", 0o600, "board-1", "cannot be read: No such file"),
        ("mqtts://broker", ".", 0o600, "board-1", "is no file"),
        ("mqtt://broker", "own.toml", 0o600, "board-1", "in the clear: write mqtts://, or set"),
    ],
)
def test_credentials_that_cannot_be_used_are_a_sentence(
    path, url, name, mode, role, sentence
) -> None:
    path.chmod(mode)
    link = LinkConfig(url, "attic", credentials_file=str(path.parent / name))
    with pytest.raises(ConfigError, match=rf"^\[link\]: .*{sentence}") as caught:
        link_settings(link, role)
    assert "s3cret" not in str(caught.value)


def test_a_password_goes_in_the_clear_where_that_is_asked_for_or_stays_here(path) -> None:
    link = LinkConfig("mqtt://broker", "attic", credentials_file=str(path))
    for allowed in (replace(link, cleartext=True), replace(link, url="mqtt://127.0.0.1")):
        assert link_settings(allowed, "board-1").password == "s3cret"
    with pytest.raises(ConfigError, match="in the clear") as caught:
        link_settings(LinkConfig("mqtt://ada:s3cret@broker"), "ada")
    assert "s3cret" not in str(caught.value)


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
