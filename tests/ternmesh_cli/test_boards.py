"""A host looks after its boards: real processes over a real broker, asked with our own commands."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ternmesh import __version__
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.main import main
from ternmesh_cli.process import ExitCode
from tests.programs import PATIENCE_S, Process, board_settings, host_settings, running
from transports.mqtt.embedded_broker import EmbeddedBroker

BOARDS = ("theo", "nicolas")
PACE = {"pace_s": 1}  # boards that never wait take all of the machine


class Fleet:
    """A host of a run without end and two boards; nicolas lets nobody pause it."""

    def __init__(self, folder: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        enrol_fleet("ternmesh", folder / "host", {name: folder / name for name in BOARDS})
        link = {"url": url}
        settings = host_settings(link, rounds=100_000, min_peers=1, deadline_s=600)
        self.host = Process("host", folder / "host", settings)
        remote: dict[str, dict[str, object]] = {
            "theo": {},
            "nicolas": {"allow": ["log_level", "pace_s"]},
        }
        self.boards = {
            name: Process("node", folder / name, board_settings(name, link, remote=remote[name]))
            for name in BOARDS
        }
        self._capsys = capsys

    def command(self, name: str, *words: str) -> dict[str, Any]:
        """The answer of a command about the boards, as JSON."""
        assert main([name, "--config", str(self.host.config), "--json", *words]) == 0
        return json.loads(self._capsys.readouterr().out)

    def rows(self, *words: str) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in self.command("settings", *words)["boards"]}


@pytest.fixture
def fleet(tmp_path, capsys, eventually) -> Iterator[Fleet]:
    with EmbeddedBroker() as broker:
        fleet = Fleet(tmp_path, broker.url, capsys)
        with running(fleet.host, *fleet.boards.values()):
            eventually(fleet.host.status, PATIENCE_S)
            both = lambda: {n["name"] for n in fleet.host.status()["nodes"]} == set(BOARDS)  # noqa: E731
            eventually(both, PATIENCE_S)
            yield fleet


@pytest.mark.nightly  # tests/host/test_management.py is in one process
def test_a_host_looks_after_its_boards(fleet: Fleet, eventually, capsys, monkeypatch) -> None:
    theo, nicolas = fleet.boards["theo"], fleet.boards["nicolas"]
    fleet.rows("all", "pace_s=1")
    eventually(lambda: theo.status()["history"][1:], PATIENCE_S)

    # A report
    [row] = fleet.command("status", "--node", "theo")["boards"]
    assert (row["software"], row["awaited"]) == (__version__, False)
    report = row["report"]
    assert report["memory_mib"] > 10
    assert report["disk_free_mb"] > 1
    assert report["log_level"] == "info"
    assert report["rounds_trained"] >= 1
    config = str(fleet.host.config)
    assert main(["status", "--config", config, "--node", "theo"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("report of theo, ")
    assert f"software         {__version__}" in shown

    assert main(["status", "--config", config, "--node", "all"]) == 0
    shown = capsys.readouterr().out
    assert "\n\nreport of theo, " in shown
    assert "report of nicolas, " in shown

    # Settings for all, of which nicolas takes one; nobody sets them on all by mistake
    assert main(["settings", "--config", config, "pause=on"]) == ExitCode.REFUSED
    assert "pause=on is no board of this run" in capsys.readouterr().err
    rows = fleet.rows("all", "pause=on", "log_level=debug")
    assert rows["theo"]["in_force"] == {**PACE, "pause": 1, "log_level": 0}
    assert rows["nicolas"]["in_force"] == {**PACE, "log_level": 0}
    assert rows["nicolas"]["wanted"] == {**PACE, "pause": 1, "log_level": 0}
    assert theo.status()["activity"] == "paused by the host"
    assert nicolas.status()["refused"]["settings"] == 1
    assert re.search("set by the host: .*pause=on.* log_level=debug", theo.log)
    eventually(lambda: " DEBUG " in nicolas.log, PATIENCE_S)
    assert main(["settings", "--config", config]) == 0
    shown = capsys.readouterr().out
    assert "its [remote] does not allow pause" in shown
    assert main(["status", "--config", config]) == 0
    assert re.search(r"^theo +paused ", capsys.readouterr().out, re.MULTILINE)

    # A board that is away takes them when it comes back; till then there is its last report
    monkeypatch.setattr("ternmesh_cli.settings.TAKEN_S", 0.0)
    monkeypatch.setattr("ternmesh_cli.status.REPORT_S", 1.0)
    theo.kill9()
    assert fleet.rows("theo", "log_level=info")["theo"]["behind"]
    assert main(["status", "--config", config, "--node", "theo"]) == 0
    assert "no answer within 1 s, so this is its last: report of theo" in capsys.readouterr().out

    # They hold while everything dies, and theo follows the run without a part in it
    fleet.host.kill9()
    for process in (fleet.host, theo):
        process.start()
    eventually(lambda: (now := theo.status()) and now["joined"], PATIENCE_S)
    before = fleet.host.status()["version"]
    eventually(lambda: fleet.host.status()["version"] >= before + 3, PATIENCE_S)
    [*_, last] = fleet.host.status()["history"]
    assert last["counted"] == ["nicolas"]
    assert theo.status()["activity"] == "paused by the host"
    assert fleet.rows()["theo"]["in_force"] == {**PACE, "pause": 1, "log_level": 1}
    fleet.rows("theo", "pause=default")
    eventually(lambda: "theo" in fleet.host.status()["history"][-1]["counted"], PATIENCE_S)

    # Who was revoked is out, also after a new start, and is not served
    assert main(["enrol", "revoke", "--config", config, "theo"]) == 0
    capsys.readouterr()
    eventually(lambda: "revoked" in theo.status()["activity"], PATIENCE_S)
    theo.kill9()
    theo.start()
    eventually(lambda: (now := theo.status()) and "revoked" in now["activity"], PATIENCE_S)
    for name, *words in (["settings", "theo", "pause=on"], ["status", "--node", "theo"]):
        assert main([name, "--config", config, *words]) == ExitCode.REFUSED
        assert "theo is no board of this run" in capsys.readouterr().err
