"""Commands in sentences, help and logs are those that the user types."""

import logging

import pytest

from ternmesh_cli import main
from ternmesh_cli.said import PROGRAM, LogText, as_run


def test_commands_are_named_as_they_are_run(monkeypatch) -> None:
    text = "use the ternmesh that made it, or `ternmesh enrol identity`\n  ternmesh enrol add FILE"
    monkeypatch.delenv(PROGRAM, raising=False)
    assert as_run(text) == text
    monkeypatch.setenv(PROGRAM, "./run")
    assert as_run(text) == (
        "use the ternmesh that made it, or `./run enrol identity`\n  ./run enrol add FILE"
    )


def test_help_and_errors_say_what_was_run(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv(PROGRAM, "../run")
    with pytest.raises(SystemExit):
        main.main(["enrol", "add", "--help"])
    shown = capsys.readouterr().out
    assert "usage: ../run enrol add" in shown
    assert "\n  ../run enrol identity --config host.toml" in shown
    (tmp_path / "host.toml").write_text('state_dir = "."\nbundle = "keyword"\n')
    assert main.main(["enrol", "list", "--config", str(tmp_path / "host.toml")]) == 1
    assert "run `../run enrol identity`" in capsys.readouterr().err


def test_so_do_logs(monkeypatch) -> None:
    monkeypatch.setenv(PROGRAM, "./run")
    record = logging.LogRecord("x", 20, "x", 1, "see `ternmesh %s`", ("status",), None)
    assert LogText("%(message)s").format(record) == "see `./run status`"
