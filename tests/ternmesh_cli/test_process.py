"""Commands in sentences, help and logs as the user types them; the TOML of the demo."""

import io
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ternmesh_cli import main
from ternmesh_cli.process import PROGRAM, LogJson, LogText, as_run, is_journal, write_toml


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


@pytest.mark.parametrize(
    ("level", "priority"), [(10, 7), (20, 6), (30, 4), (40, 3), (50, 2), (25, 6)]
)
def test_a_journal_gets_priorities_and_no_time(level, priority) -> None:
    record = logging.LogRecord("edge.node", level, "x", 1, "two\nlines of %s", ("x",), None)
    line = LogJson(journal=True).format(record)
    assert line.startswith(f"<{priority}>{{")
    assert json.loads(line[3:]) == {
        "level": record.levelname,
        "logger": "edge.node",
        "message": "two\nlines of x",
    }
    assert "\n" not in line


def test_json_has_time_and_trace() -> None:
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError as error:
        found = (type(error), error, error.__traceback__)
    line = LogJson(journal=False).format(logging.LogRecord("x", 40, "x", 1, "no", (), found))
    entry = json.loads(line)
    assert entry["time"][10] == "T"
    assert entry["exception"].splitlines()[-1] == "ZeroDivisionError: by zero"
    assert "\n" not in line


def test_a_journal_is_known_by_its_device_and_inode(monkeypatch, tmp_path) -> None:
    with (tmp_path / "log").open("w") as stream:
        found = os.fstat(stream.fileno())
        for stated, expected in (
            (None, False),
            (f"{found.st_dev}:{found.st_ino}", True),
            (f"{found.st_dev}:{found.st_ino + 1}", False),
        ):
            if stated is not None:
                monkeypatch.setenv("JOURNAL_STREAM", stated)
            assert is_journal(stream) == expected
    assert not is_journal(io.StringIO())


@pytest.mark.parametrize(
    ("journal", "log_format", "starts"),
    [
        (True, "auto", '<4>{"level"'),
        (True, "json", '<4>{"level"'),
        (True, "text", "2"),
        (False, "auto", "2"),
        (False, "json", '{"time"'),
    ],
)
def test_the_format_follows_the_setting_and_the_journal(
    tmp_path, journal, log_format, starts
) -> None:
    path = tmp_path / "log"
    script = "import logging, sys; from ternmesh_cli.process import set_up_logging, complain;"
    script += f"set_up_logging('INFO', {log_format!r}); logging.warning('x'); complain('y')"
    with path.open("w") as log:
        found = os.fstat(log.fileno())
        stream = f"{found.st_dev}:{found.st_ino}" if journal else "1:1"
        environment = {**os.environ, "JOURNAL_STREAM": stream}
        subprocess.run([sys.executable, "-c", script], stderr=log, check=True, env=environment)
    warning, complaint = path.read_text().splitlines()
    assert warning.startswith(starts)
    assert "y" in complaint
    assert complaint.startswith("ternmesh: ") == (not journal)
