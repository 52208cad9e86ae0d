"""The fuzz command and the helpers of its targets."""

import sys

import pytest

from fuzz import __main__ as command
from fuzz.target import Target, joined, parts, steps
from ternmesh.errors import WireError


def test_parts_give_back_what_was_joined() -> None:
    items = [b"", b"a", bytes(255)]
    assert list(parts(joined(items))) == items
    assert list(parts(b"\x05ab")) == [b"ab"]


def test_steps_have_a_choice_a_body_and_a_time() -> None:
    first, second = steps(joined([b"\x21body", b"\x10"]))
    assert (first.choice, first.body, first.now) == (0x21, b"body", 1.0)
    assert (second.body, second.now) == (b"", 1.5)
    assert first.frame(3, is_raw=True) == b"body"


def test_only_the_errors_of_a_target_pass() -> None:
    def call(data: bytes) -> None:
        raise WireError("length", "refused") if data else KeyError("not ours")

    Target("planted", lambda: [], call).run(b"a")
    with pytest.raises(KeyError):
        Target("planted", lambda: [], call).run(b"")


def test_an_unknown_target_is_refused_with_the_names_that_exist(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["fuzz", "nothing"])
    with pytest.raises(SystemExit):
        command.main()
    assert "no target nothing; there are coding, erasure" in capsys.readouterr().err
