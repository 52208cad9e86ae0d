"""What the owner asks of the boards, over the loopback with bare protocols for boards."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ternmesh import __version__
from ternmesh.federated.management import ACTIVITIES, LIMITS, VALUES, BoardManagement, settings_text
from ternmesh.wire.control import Report, write_control
from ternmesh.wire.frame import UNASSIGNED
from ternmesh_store.state_file import StateFile
from tests.host.test_service import SETTINGS, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(StateFile(tmp_path))
    for name in ("ada", "bob"):
        bench.join(name)
        board(bench, name).joining.management = BoardManagement(
            allowed=LIMITS, values=lambda: {"version": 4, "metric": 0.915, "activity": 2}
        )
    bench.service.protocol.settings = replace(SETTINGS, min_peers=3)  # no round begins
    bench.settle()
    yield bench
    bench.state.close()


def board(bench: Bench, name: str) -> Any:
    return bench.nodes[name].endpoint


def ask(bench: Bench, name: str, **request: Any) -> dict[str, Any]:
    """The answer, and what follows from it."""
    answer = bench.service.manage({"boards": name, **request})
    bench.settle()
    return json.loads(json.dumps(answer))


def test_settings_are_changed_one_by_one_and_kept(bench: Bench) -> None:  # R6.10-2
    ask(bench, "all", set={"pause": 1, "pace_s": 9})
    ask(bench, "ada", set={"pause": None, "silence": 0.05})
    rows = {row["name"]: row for row in ask(bench, "all")["boards"]}
    assert rows["ada"]["wanted"] == rows["ada"]["in_force"] == {"pace_s": 9, "silence": 0.05}
    assert rows["bob"]["wanted"] == rows["bob"]["in_force"] == {"pause": 1, "pace_s": 9}
    bench.boot()
    again = {row["name"]: row for row in ask(bench, "all")["boards"]}
    for name, row in rows.items():
        assert row | {"reported_s_ago": 0} == again[name] | {"reported_s_ago": 0}
    assert again["ada"]["reported_s_ago"] < 5


def test_a_muted_board_counts_nothing_until_that_ends_also_after_a_restart(bench: Bench) -> None:
    def weights() -> dict[str, float]:
        return {n.name: n.weight for n in bench.service.status().nodes}

    ask(bench, "bob", mute=True)
    assert weights() == {"ada": 1.0, "bob": 0.0}
    bench.boot()
    assert weights() == {"ada": 1.0, "bob": 0.0}
    assert "error" in ask(bench, "eve", mute=True)
    ask(bench, "all", mute=False)
    assert weights() == {"ada": 1.0, "bob": 1.0}


def test_a_report_is_readable(bench: Bench) -> None:
    bench.now += 3.0
    bench.settle()
    ask(bench, "ada", inquire=True)
    [row] = ask(bench, "ada")["boards"]
    assert row["report"] == {"version": 4, "metric": 0.915, "activity": ACTIVITIES[2]}
    assert (row["software"], row["awaited"]) == (__version__, False)


def test_numbers_that_no_board_of_this_version_sends_are_shown(bench: Bench) -> None:
    most = (1 << 32) - 1
    report = Report("9.9", 0, (most,) * len(LIMITS), (most,) * len(VALUES))
    board(bench, "ada").channel.outgoing.push("host", UNASSIGNED, [write_control(report)])
    bench.settle()
    [row] = ask(bench, "ada")["boards"]
    assert row["report"]["activity"] == row["report"]["log_level"] == most - 1
    assert (row["in_force"], settings_text(row["in_force"])) == ({}, "")


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"boards": "eve"}, "eve is no board of this run"),
        ({"boards": "ada", "set": {"shell": 1}}, "settings of a board within bounds"),
        ({"boards": "ada", "set": {"pause": 2}}, "settings of a board within bounds"),
        ({"boards": "ada", "set": {"pace_s": -1}}, "settings of a board within bounds"),
    ],
)
def test_what_is_wrong_is_one_sentence(bench: Bench, request_, sentence) -> None:
    assert sentence in bench.service.manage(request_)["error"]
    assert bench.service.protocol.session.management.boards["ada"].number == 0
