"""`ternmesh logs` with a journalctl of the test: few machines that run tests have a journal."""

import json
import os
from pathlib import Path

import pytest

from ternmesh_cli.main import main

ENTRIES = [
    {"MESSAGE": "Started the board.", "PRIORITY": "6", "__REALTIME_TIMESTAMP": "1000000"},
    {
        "MESSAGE": json.dumps({"level": "WARNING", "logger": "a", "message": "disk ~ full"}),
        "PRIORITY": "4",
        "_SYSTEMD_UNIT": "ternmesh-node.service",
    },
    {"MESSAGE": json.dumps({"message": "failed", "exception": "Traceback"}), "PRIORITY": "3"},
    {"MESSAGE": list("bytes \u00e9".encode()), "PRIORITY": "6"},
    {"MESSAGE": "42"},
    {"MESSAGE": None},
]


@pytest.fixture
def journal(tmp_path, monkeypatch):
    """Puts a journalctl into the path that prints these entries, and returns its arguments."""

    def place(entries: list[object]) -> Path:
        text = "\n".join(json.dumps(entry) for entry in entries)
        (tmp_path / "entries").write_text(f"{text}\n" if text else "")
        program = tmp_path / "journalctl"
        program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {tmp_path}/entries\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return tmp_path / "asked"

    return place


def test_entries_are_readable_and_the_unit_is_that_of_the_settings(journal, tmp_path, capsys):
    asked = journal(ENTRIES)
    (tmp_path / "host.toml").write_text('state_dir = "s"\n')
    config = ["--config", str(tmp_path / "host.toml")]
    assert main(["logs", *config, "-f", "-p", "warning", "-n", "7"]) == 0
    for word in ("--unit=ternmesh-host", "--priority=warning", "--lines=7", "--follow", "--all"):
        assert word in asked.read_text().split()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("systemd: Started the board.")
    assert lines[1].endswith("ternmesh-node: ! disk ~ full")
    assert lines[2].endswith("! failed")
    assert lines[3] == "Traceback"
    assert lines[4].endswith(": bytes é")
    assert lines[5].endswith(": 42")
    main(["logs"])
    assert "--unit=ternmesh-*" in asked.read_text()


def test_without_a_journal_or_entries_there_is_one_sentence(journal, monkeypatch, capsys, tmp_path):
    journal([])
    assert main(["logs"]) == 1
    assert "the journal shows nothing" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert main(["logs"]) == 1
    shown = capsys.readouterr().err
    assert (shown.count("\n"), "this machine has no journal" in shown) == (1, True)
