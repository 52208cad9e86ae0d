"""Host and boards as processes on a real mosquitto; the host dies in a round.

That no promise breaks while all of them and the broker are killed shows tests/bench/test_crash.py.
"""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ternmesh_cli.keys import enrol_fleet
from ternmesh_service.config_file import load_model_package
from ternmesh_store.host_store import HostStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile
from tests.mosquitto import Mosquitto
from tests.programs import PATIENCE_S, Process, board_settings, host_settings, running

BOARDS = ("theo", "nicolas", "yweweler")
ROUNDS = 4


def delivered(status: dict[str, Any]) -> set[str]:
    """The nodes whose updates the host has."""
    return {node["name"] for node in status["nodes"] if node["delivered"] == "whole"}


def check_files(host: Process, boards: list[Process]) -> None:
    """All files hold the same global adapter."""
    package = load_model_package("keyword")
    file = StateFile(host.folder)
    file.open()
    theirs = HostStore(file).load(package.model_hash()).state
    file.close()
    assert theirs.version == ROUNDS
    assert theirs.model_q24.any()
    for board in boards:
        file = StateFile(board.folder)
        file.open()
        ours = NodeStore(file).load(package.model_hash(), package.dimension)
        file.close()
        assert (ours.version, ours.global_hash) == (ROUNDS, theirs.global_hash)
        assert ours.model_q24.tobytes() == theirs.model_q24.tobytes()


def test_a_host_that_is_killed_goes_on_in_the_same_round_and_leaves_when_all_is_done(
    tmp_path: Path, mosquitto: Mosquitto, eventually: Callable[..., None]
) -> None:
    enrol_fleet("ternmesh", tmp_path / "host", {name: tmp_path / name for name in BOARDS})
    link = {"url": mosquitto.url}
    settings = host_settings(link, rounds=ROUNDS, min_peers=3, deadline_s=600)
    host = Process("host", tmp_path / "host", settings, "--until-finished")
    boards = [Process("node", tmp_path / name, board_settings(name, link)) for name in BOARDS]

    def wait_for(process: Process, condition: Callable[[dict[str, Any]], object]) -> None:
        eventually(lambda: (now := process.status()) and condition(now), PATIENCE_S)

    with running(host, *boards):
        wait_for(host, lambda status: status["version"] >= 1)
        boards[0].send(signal.SIGSTOP)
        wait_for(host, lambda status: set(BOARDS[1:]) <= delivered(status))
        before = host.status()
        assert before["phase"] == "open"
        assert "theo" not in delivered(before), "the round would not stay open: stop it earlier"
        host.kill9()
        host.start()
        wait_for(host, lambda status: True)
        after = host.status()
        for key in ("run", "version", "global_hash"):
            assert after[key] == before[key]
        assert delivered(after) == delivered(before), "updates with a receipt are on its disk"
        boards[0].send(signal.SIGCONT)
        for process in (host, *boards):
            wait_for(process, lambda status: status["version"] == ROUNDS)
            assert process.status()["run"] == before["run"]
        status = host.status()
        assert status["phase"] == "finished"
        assert [item["version"] for item in status["history"]] == list(range(1, ROUNDS + 1))
        for item in status["history"]:
            assert set(item["counted"]) == set(item["bytes_up"]) == set(BOARDS)
            assert item["bytes_down"] > 0
        host.wait_for_end()
        for board in boards:
            board.stop(signal.SIGINT)
    check_files(host, boards)
