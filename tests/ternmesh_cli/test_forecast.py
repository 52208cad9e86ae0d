"""`ternmesh forecast` on the shipped model of ten words and the clips of its three voices."""

import json
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from edge import simulation
from edge.trainer import Trainer
from models.zoo import rooms_path
from ternmesh_cli import main
from ternmesh_cli.demo.fleet import BOARDS, MODEL, ROWS, RUN
from ternmesh_cli.process import write_toml

ASKED = ("--region", "EU868", "--frequency", "869.525", "--boards", "6", "--loss", "0.2")
MESH = ("--dialect", "meshcore", "--sf", "8", "--bandwidth", "62.5", "--hops", "1")


def config_of(folder: Path, voice: str, **changes: Any) -> str:
    """The settings of a board that has heard one voice."""
    tables = {
        table: {"path": str(rooms_path()), **ROWS, "where": {"speaker": voice, "part": part}}
        for table, part in (("data", "heard"), ("evaluate", "reported"))
    }
    return write(folder, voice, {"name": voice}, {**tables, **changes})


def write(folder: Path, name: str, top: dict[str, Any], tables: dict[str, Any]) -> str:
    path = folder / f"{name}.toml"
    top |= {"state_dir": str(folder / name), "model": MODEL}
    path.write_text(write_toml({"": top, "link": {"url": "mqtt://nowhere"}, **tables}))
    return str(path)


class Forecasts:
    """Asks for forecasts of the three voices."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys
        self.configs = [config_of(folder, voice) for voice in BOARDS]

    def run(self, *options: str, rounds: int = 1, **limits: float) -> tuple[int, str, str]:
        """The exit code, and what is printed."""
        host = write(self._folder, "host", {}, {"run": {**RUN, "rounds": rounds, **limits}})
        words = ["forecast", "--config", *self.configs, "--host-config", host, *ASKED, *options]
        return (main.main(words), *self._capsys.readouterr())

    def told(self, *options: str, rounds: int = 1) -> Any:
        code, out, _ = self.run(*MESH, "--json", *options, rounds=rounds)
        assert code == 0
        return json.loads(out)

    def refused(self, *options: str, rounds: int = 1) -> str:
        code, _, sentence = self.run(*options, rounds=rounds)
        assert code == 2
        return sentence


@pytest.fixture
def forecasts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Forecasts:
    return Forecasts(tmp_path, capsys)


def test_voices_learn_from_each_other_and_one_seed_gives_one_forecast(forecasts: Forecasts) -> None:
    told = forecasts.told(rounds=6)
    first, last = told["rounds"][0], told["rounds"][-1]
    assert first["accuracy"] < 0.6
    assert last["accuracy"] > 0.8
    assert last["loss"] < first["loss"]
    cost = told["traffic"]
    expected = [cost["before_h"] + number * cost["hours"] for number in range(1, 7)]
    assert [row["hours"] for row in told["rounds"]] == pytest.approx(expected)
    assert forecasts.told(rounds=6) == told
    assert cost["hours"] > 65 / 60 * cost["host_s"] / 18, "a frame counts for 65 minutes"


def test_each_sample_is_dealt_to_one_board(forecasts: Forecasts, monkeypatch) -> None:
    dealt: list[list[int]] = []

    def make_trainer(step: Any, part: Any, *rest: Any) -> Trainer:
        dealt.append(sorted(part._indexes))
        return Trainer(step, part, *rest)

    monkeypatch.setattr(simulation, "Trainer", make_trainer)
    forecasts.told("--boards", "7")
    assert list(map(len, dealt)) == [47, 47, 46, 70, 70, 70, 70]
    for boards in (dealt[:3], dealt[3:5], dealt[5:]):
        assert sorted(chain(*boards)) == list(range(140))


def test_its_bytes_are_about_those_that_a_fleet_was_measured_to_send(forecasts: Forecasts) -> None:
    """`bench mesh`, six boards: an update and a global update, without the link's own frames."""
    cost = forecasts.told()["traffic"]
    assert (cost["bytes_up"], cost["bytes_down"]) == pytest.approx((485, 921), rel=0.1)


@pytest.mark.parametrize(
    "options", [("--hops", "2"), ("--sf", "9"), ("--boards", "9"), ("--share", "0.0004")]
)
def test_a_round_takes_longer_over(forecasts: Forecasts, options: tuple[str, ...]) -> None:
    before, after = (forecasts.told(*more)["traffic"] for more in ((), options))
    assert after["hours"] > before["hours"] > 0
    assert after["before_h"] > before["before_h"] > 0


def test_without_a_duty_cycle_a_round_takes_the_airtime_of_all(forecasts: Forecasts) -> None:
    free = ("--region", "unregulated", "--frequency", "433", "--share", "1", "--hops", "2")
    cost = forecasts.told(*free)["traffic"]
    airtime_s = cost["host_s"] + 6 * cost["board_s"]
    assert cost["hours"] == pytest.approx(3 * airtime_s / 3600), "two repeaters send all again"
    assert cost["before_h"] < cost["hours"]


def test_a_person_gets_a_table_in_days_and_what_a_round_costs(forecasts: Forecasts) -> None:
    told = forecasts.told(rounds=2)
    code, out, progress = forecasts.run(*MESH, rounds=2)
    _, _, second, costs, note = out.splitlines()
    days, right = told["rounds"][1]["hours"] / 24, told["rounds"][1]["accuracy"]
    assert second.split()[:3] == ["2", f"{days:.3g}", f"{right:.1%}"]
    assert f"{told['traffic']['bytes_up']:,} bytes up" in costs
    assert "for 0.50% of an hour" in costs
    assert note.startswith("simulated")
    least_s = ceil(3600 * told["traffic"]["hours"])
    assert f"2 boards; this forecast is for all: set it to at least {least_s}\n" in progress
    for limits in ({"deadline_s": least_s - 1, "min_peers": 6}, {"deadline_s": least_s}):
        assert "deadline_s" not in forecasts.run(*MESH, **limits)[2]
    assert (code, "round 2 of 2" in progress) == (0, True)


def test_what_cannot_be_forecast_is_a_sentence(forecasts: Forecasts, tmp_path: Path) -> None:
    assert "a run with an end: give [run] rounds" in forecasts.refused(rounds=0)
    assert "3 settings files need as many boards" in forecasts.refused("--boards", "2")
    few = {"speaker": "theo", "part": "heard", "index": 10}
    data = {"path": str(rooms_path()), **ROWS, "where": few}
    forecasts.configs = [config_of(tmp_path, "theo", data=data)]
    assert "7 samples are too few for 8 boards" in forecasts.refused("--boards", "8")
    forecasts.configs = [config_of(tmp_path, "nicolas", evaluate={})]
    assert "files in [data] and [evaluate] path" in forecasts.refused()
