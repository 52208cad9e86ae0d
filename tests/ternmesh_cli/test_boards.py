"""A host looks after its boards: real processes over a real broker, asked with our own commands."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models.zoo import fsdd_path
from ternmesh import __version__
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.main import main
from ternmesh_cli.process import ExitCode
from tests.ternmesh_cli.test_fleet import HOST_CONFIG, NODE_CONFIG, PATIENCE_S, Process
from transports.mqtt.embedded_broker import EmbeddedBroker

BOARDS = ("theo", "nicolas")


class Fleet:
    """A host of a run without end and two boards; nicolas lets nobody pause it."""

    def __init__(self, folder: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        enrol_fleet("ternmesh", folder / "host", {name: folder / name for name in BOARDS})
        text = HOST_CONFIG.format(url=url, rounds=100_000, announce_s=1)
        text = text.replace("min_peers = 3", "min_peers = 1")
        self.host = Process("host", folder / "host", text)
        self.boards = {}
        for name in BOARDS:
            text = NODE_CONFIG.format(name=name, url=url, clips=fsdd_path("train"))
            if name == "nicolas":
                text += '[remote]\nallow = ["log_level"]\n'
            self.boards[name] = Process("node", folder / name, text)
        self._capsys = capsys

    def command(self, *words: str) -> dict[str, Any]:
        """The answer of a command about the boards, as JSON."""
        name, *rest = words
        config = str(self.host.folder / "config.toml")
        assert main([name, "--config", config, "--json", *rest]) == 0
        return json.loads(self._capsys.readouterr().out)

    def rows(self, *words: str) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in self.command("settings", *words)["boards"]}


@pytest.fixture
def fleet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], eventually: Callable[..., None]
) -> Iterator[Fleet]:
    with EmbeddedBroker() as broker:
        fleet = Fleet(tmp_path, broker.url, capsys)
        members = (fleet.host, *fleet.boards.values())
        try:
            for member in members:
                member.start()
            eventually(lambda: fleet.host.status(), PATIENCE_S)
            both = lambda: {n["name"] for n in fleet.host.status()["nodes"]} == set(BOARDS)  # noqa: E731
            eventually(both, PATIENCE_S)
            yield fleet
        finally:
            for member in members:
                if member.process is not None and member.process.poll() is None:
                    member.process.kill()
                    member.process.wait(PATIENCE_S)


def test_a_host_looks_after_its_boards(
    fleet: Fleet, eventually: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    theo, nicolas = fleet.boards["theo"], fleet.boards["nicolas"]
    eventually(lambda: theo.status()["history"][1:], PATIENCE_S)

    # A report
    [row] = fleet.command("status", "--node", "theo")["boards"]
    assert (row["software"], row["awaited"]) == (__version__, False)
    report = row["report"]
    assert report["memory_mib"] > 10
    assert report["disk_free_mb"] > 1
    assert report["log_level"] == "info"
    assert report["rounds_trained"] >= 1
    config = str(fleet.host.folder / "config.toml")
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
    assert rows["theo"]["in_force"] == {"pause": 1, "log_level": 0}
    assert rows["nicolas"]["in_force"] == {"log_level": 0}
    assert rows["nicolas"]["wanted"] == {"pause": 1, "log_level": 0}
    assert theo.status()["activity"] == "paused by the host"
    assert nicolas.status()["refused"]["settings"] == 1
    assert "set by the host: pause=on log_level=debug" in theo.log
    eventually(lambda: " DEBUG " in nicolas.log, PATIENCE_S)
    assert main(["settings", "--config", config]) == 0
    shown = capsys.readouterr().out
    assert "its [remote] does not allow pause" in shown
    assert main(["status", "--config", config]) == 0
    assert re.search(r"^theo +paused ", capsys.readouterr().out, re.MULTILINE)

    # They hold while everything dies, and theo follows the run without a part in it
    for process in (fleet.host, theo):
        process.kill9()
        process.start()
    eventually(lambda: (now := theo.status()) and now["joined"], PATIENCE_S)
    before = fleet.host.status()["version"]
    eventually(lambda: fleet.host.status()["version"] >= before + 3, PATIENCE_S)
    [*_, last] = fleet.host.status()["history"]
    assert last["counted"] == ["nicolas"]
    assert theo.status()["activity"] == "paused by the host"
    assert fleet.rows()["theo"]["in_force"] == {"pause": 1, "log_level": 0}

    # A board that is away takes them when it comes back; till then there is its last report
    theo.kill9()
    rows = fleet.rows("theo", "pause=default", "pace_s=1")
    assert rows["theo"]["behind"]
    assert main(["status", "--config", config, "--node", "theo"]) == 0
    assert "no answer within 10 s, so this is its last: report of theo" in capsys.readouterr().out
    theo.start()
    taken = {"log_level": 0, "pace_s": 1}
    eventually(lambda: fleet.rows()["theo"]["in_force"] == taken, PATIENCE_S)
    eventually(lambda: "theo" in fleet.host.status()["history"][-1]["counted"], PATIENCE_S)

    # Who was revoked is not served
    assert main(["enrol", "revoke", "--config", config, "theo"]) == 0
    capsys.readouterr()
    for words in (["settings", "theo", "pause=on"], ["status", "--node", "theo"]):
        name, *rest = words
        assert main([name, "--config", config, *rest]) == ExitCode.REFUSED
        assert "theo is no board of this run" in capsys.readouterr().err
