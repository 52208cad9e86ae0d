"""`ternmesh pipeline train`: what it prints, and how it ends."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from host.pipeline import launch
from host.pipeline.config import PipelineConfig
from host.pipeline.errors import PipelineError
from ternmesh_cli.main import MISUSED, REFUSED, main

REPORT = {
    "step": 10,
    "steps": 20,
    "loss": 2.5,
    "tokens_per_s": 1234.0,
    "boundary_bytes_per_token": {"forward": 17.0, "back": 16.0},
    "bubble": [0.25, 0.5],
    "left_s": 90.0,
}


class FakeRanks:
    refusal = ""
    stopped = False

    def __init__(self, config: PipelineConfig, path: Path) -> None:
        assert (config.stages, path.is_absolute()) == (2, True)

    def start(self) -> None:
        type(self).stopped = False

    def reports(self, stop: object) -> Iterator[dict[str, object]]:
        yield REPORT
        if self.refusal:
            raise PipelineError(self.refusal)

    def stop(self) -> None:
        type(self).stopped = True


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(launch, "Ranks", FakeRanks)
    path = tmp_path / "run.toml"
    path.write_text('state_dir = "state"\ndata = "text"\n')
    return path


def test_reports_are_lines_for_people_or_programs(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "train", "--config", str(config)]) == 0
    said = capsys.readouterr().out
    assert "step 10/20  loss 2.5000  1234 tokens/s  17 bytes/token forward, 16 back" in said
    assert "idle 25%, 50%  1.5 min left" in said
    assert main(["pipeline", "train", "--config", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == REPORT
    assert FakeRanks.stopped


def test_a_refusal_is_one_sentence(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeRanks, "refusal", "rank 1: a payload is broken")
    assert main(["pipeline", "train", "--config", str(config)]) == REFUSED
    assert capsys.readouterr().err == "ternmesh: rank 1: a payload is broken\n"
    assert FakeRanks.stopped


def test_a_wrong_setting_is_one_sentence(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text('state_dir = "state"\ndata = "text"\nstages = 99\n')
    assert main(["pipeline", "train", "--config", str(config)]) == MISUSED
    assert "stages is 99: it must be 2 to 64" in capsys.readouterr().err
