"""Commands in sentences, help and logs as the user types them; the TOML of the demo."""

import logging
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ternmesh_cli import main
from ternmesh_cli.process import PROGRAM, LogText, as_run, write_toml


def test_commands_in_sentences(monkeypatch) -> None:
    text = "use the ternmesh that made it, or `ternmesh enrol identity`\n  ternmesh enrol add FILE"
    monkeypatch.delenv(PROGRAM, raising=False)
    assert as_run(text) == text
    monkeypatch.setenv(PROGRAM, "./run")
    assert as_run(text) == (
        "use the ternmesh that made it, or `./run enrol identity`\n  ./run enrol add FILE"
    )


def test_help_and_errors(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv(PROGRAM, "../run")
    with pytest.raises(SystemExit):
        main.main(["enrol", "add", "--help"])
    shown = capsys.readouterr().out
    assert "usage: ../run enrol add" in shown
    assert "\n  ../run enrol identity --config host.toml" in shown
    (tmp_path / "host.toml").write_text('state_dir = "."\nmodel = "keyword"\n')
    assert main.main(["enrol", "list", "--config", str(tmp_path / "host.toml")]) == 1
    assert "run `../run enrol identity`" in capsys.readouterr().err


def test_logs(monkeypatch) -> None:
    monkeypatch.setenv(PROGRAM, "./run")
    record = logging.LogRecord("x", 20, "x", 1, "see `ternmesh %s`", ("status",), None)
    assert LogText("%(message)s").format(record) == "see `./run status`"


def test_toml_without_what_is_none():
    assert write_toml({"": {"a": 1, "b": None}, "t": {"c": ("x",), "d": True}}) == (
        'a = 1\n[t]\nc = ["x"]\nd = true\n'
    )


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("test", "usage: ./run test"),  # without an installation
        ("host", "set PYTHON to one (tried: python-that-is-not-there)"),
    ],
)
def test_the_script_installs_nothing_where_it_can_know_better(command, shown, tmp_path):
    shutil.copy(Path(__file__).parents[2] / "run", tmp_path)
    env = {**os.environ, "PYTHON": "python-that-is-not-there"}
    done = subprocess.run(
        [tmp_path / "run", command, "--help"], env=env, capture_output=True, text=True, timeout=60
    )
    assert shown in done.stdout + done.stderr
    assert not (tmp_path / ".venv").exists()
