"""Host and boards as processes on a real mosquitto; the host dies in a round, keys change.

That no promise breaks while all of them and the broker are killed shows tests/bench/test_crash.py.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ternmesh_cli.keys import enrol_fleet
from ternmesh_service.config_file import load_model_package
from ternmesh_store.host_store import HostStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile
from tests.programs import PATIENCE_S, Process, board_settings, host_settings, running

BOARDS = ("theo", "nicolas", "yweweler")
ROUNDS = 6


class Fleet:
    """The processes, and common checks."""

    def __init__(self, folder: Path, url: str, eventually: Callable, *options: str) -> None:
        enrol_fleet("ternmesh", folder / "host", {name: folder / name for name in BOARDS})
        link = {"url": url}
        settings = host_settings(link, rounds=ROUNDS, min_peers=3, deadline_s=600)
        self.host = Process("host", folder / "host", settings, *options)
        self.boards = {
            name: Process("node", folder / name, board_settings(name, link)) for name in BOARDS
        }
        self.all = (self.host, *self.boards.values())
        self.leaves = "--until-finished" in options
        self._eventually = eventually

    def wait_for(self, process: Process, condition: Callable[[dict[str, Any]], object]) -> None:
        """Wait until the status of a process fulfils a condition."""
        self._eventually(lambda: (now := process.status()) and condition(now), PATIENCE_S)

    def hold_open(self, name: str) -> dict[str, Any]:
        """Stop a board after the first round, and wait until the host has all other updates."""
        self.wait_for(self.host, lambda status: status["version"] >= 1)
        self.boards[name].send(signal.SIGSTOP)
        others = set(BOARDS) - {name}
        self.wait_for(self.host, lambda status: others <= delivered(status))
        status = self.host.status()
        assert status["phase"] == "open"
        assert name not in delivered(status), "the round would not stay open: stop it earlier"
        return status

    def finish(self, run: str) -> None:
        """Wait for the end of the run, and check that all have the same result."""
        for process in self.all:
            self.wait_for(process, lambda status: status["version"] == ROUNDS)
            assert process.status()["run"] == run
        status = self.host.status()
        assert status["phase"] == "finished"
        assert [item["version"] for item in status["history"]] == list(range(1, ROUNDS + 1))
        for item in status["history"]:
            assert set(item["counted"]) == set(item["bytes_up"]) == set(BOARDS)
            assert item["bytes_down"] > 0
        for board in self.boards.values():
            board.stop(signal.SIGINT)
        if self.leaves:
            self.host.wait_for_end()
        else:
            self.host.stop()
        self.check_files()

    def check_files(self) -> None:
        """Check that all files hold the same global adapter."""
        package = load_model_package("keyword")
        file = StateFile(self.host.folder)
        file.open()
        theirs = HostStore(file).load(package.model_hash()).state
        file.close()
        assert theirs.version == ROUNDS
        assert theirs.model_q24.any()
        for board in self.boards.values():
            file = StateFile(board.folder)
            file.open()
            ours = NodeStore(file).load(package.model_hash(), package.dimension)
            file.close()
            assert (ours.version, ours.global_hash) == (ROUNDS, theirs.global_hash)
            assert ours.model_q24.tobytes() == theirs.model_q24.tobytes()


def delivered(status: dict[str, Any]) -> set[str]:
    """The nodes whose updates the host has."""
    return {node["name"] for node in status["nodes"] if node["delivered"] == "whole"}


@pytest.fixture
def new_fleet(tmp_path, mosquitto, eventually) -> Callable[..., Any]:
    @contextmanager
    def start(*options: str) -> Iterator[Fleet]:
        fleet = Fleet(tmp_path, mosquitto.url, eventually, *options)
        with running(*fleet.all):
            yield fleet

    return start


def test_a_host_that_is_killed_goes_on_in_the_same_round_and_leaves_when_all_is_done(new_fleet):
    with new_fleet("--until-finished") as fleet:
        before = fleet.hold_open("theo")
        fleet.host.kill9()
        fleet.host.start()
        fleet.wait_for(fleet.host, lambda status: True)
        after = fleet.host.status()
        for key in ("run", "version", "global_hash"):
            assert after[key] == before[key]
        assert delivered(after) == delivered(before), "updates with a receipt are on its disk"
        fleet.boards["theo"].send(signal.SIGCONT)
        fleet.finish(before["run"])
