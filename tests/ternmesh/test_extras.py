"""How an extra is added says what works for this installation."""

import json
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from ternmesh import extras
from ternmesh.extras import how_to_install

PIP = f"{sys.executable} -m pip install"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file:///srv/my%20clone", "dir_info": {"editable": True}},
         f"{PIP} -e '/srv/my clone[peft]'"),
        ({"url": "file:///srv/t-1-py3-none-any.whl", "archive_info": {}},
         f"{PIP} '/srv/t-1-py3-none-any.whl[peft]'"),
        (None, f"{PIP} 'FILE.whl[peft]'"),
    ],
)  # fmt: skip
def test_the_command_names_what_is_installed(origin, command, monkeypatch) -> None:
    text = None if origin is None else json.dumps(origin)
    installed = SimpleNamespace(read_text=lambda _: text)
    monkeypatch.setattr(metadata, "distribution", lambda _: installed)
    assert how_to_install("peft") == command


def test_without_pip_a_guide_is_named(monkeypatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    assert "docs/install.md" in how_to_install("peft")
