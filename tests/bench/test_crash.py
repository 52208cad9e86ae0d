"""A few kills of `bench crash` and `soak` hold, and bugs planted on purpose are found."""

import json
import os

import pytest

from bench import crash, promises
from bench.crash import Fleet, kill_fleet
from ternmesh.federated import local_update

MADE = {"made": 1, "hash": "a1", "counted": {"7": [0, "d0", "03"]}}
JOINED = {"address": 7}
RECEIVED = {"received": 0, "row": [0, "d0", "03"]}
ADVANCED = {"version": 1, "hash": "a1", "of": [0, "d0"], "settled": "03"}


def test_a_fleet_keeps_its_promises_under_kills(mosquitto) -> None:
    starts_s: list[float] = []
    found, faults = kill_fleet(0, 3, 12, starts_s)
    assert not faults
    assert (found["runs"], found["rounds"]) == (1, 3)
    assert found["kills"] > 0
    assert len(starts_s) > crash.NODES


@pytest.mark.nightly
def test_a_board_that_settles_nothing_is_found(mosquitto, monkeypatch) -> None:
    monkeypatch.setattr(local_update, "settle_update", lambda pending, *_: pending.corrected)
    _, faults = kill_fleet(0, 2, 0, [])
    assert faults.keys() == {"other chunks settled than counted"}


def test_what_ends_by_itself_and_what_it_logs_is_found(tmp_path, monkeypatch) -> None:
    def fail(_: object) -> int:
        os.write(2, b"state.sqlite is damaged\n")
        return 1

    monkeypatch.setattr(crash, "main", fail)
    fleet = Fleet(tmp_path, "mqtt://127.0.0.1:1", 1, {"rounds": 1})
    for end in fleet.ends:
        end.start()
        os.waitid(os.P_PID, end.pid, os.WEXITED | os.WNOWAIT)
    assert fleet.stop() == {"ended by itself": 2, "log: is damaged": 2}
    for end in fleet.ends:
        end.close()


@pytest.mark.parametrize(
    ("host", "board", "broken"),
    [
        ([MADE], [JOINED, RECEIVED, ADVANCED], []),
        ([], [JOINED, RECEIVED], []),  # the round is open
        ([MADE], [JOINED, {**RECEIVED, "row": [0, "d1", "03"]}], ["acknowledged"]),
        ([MADE], [JOINED, {**RECEIVED, "row": [0, "d0", "07"]}], ["acknowledged"]),
        ([{**MADE, "counted": {}}], [JOINED, RECEIVED, ADVANCED], ["acknowledged", "other chunks"]),
        ([MADE], [JOINED, {**ADVANCED, "settled": "00"}], ["other chunks"]),
        ([MADE], [JOINED, {**ADVANCED, "settled": promises.WRONG}], ["other chunks"]),
        ([MADE], [JOINED, {**ADVANCED, "hash": "a2"}], ["taken back"]),
        ([{**MADE, "hash": "a2"}, MADE], [JOINED, ADVANCED], []),  # the first was not committed
        ([MADE, {**MADE, "made": 2}], [JOINED, ADVANCED], ["another round"]),
    ],
)
def test_broken_promises_are_found_in_events(tmp_path, host, board, broken) -> None:
    for name, lines in {"host": host, "board": board}.items():
        (tmp_path / name).mkdir()
        halved = '{"version": 1, "ha'  # by a kill
        text = "\n".join(["", halved, *map(json.dumps, lines)])
        (tmp_path / name / promises.EVENTS).write_text(text)
    found = promises.broken([tmp_path / "host"], {"board": tmp_path / "board"})
    assert len(found) == len(broken)
    for words in broken:
        assert any(words in fault for fault in found)
