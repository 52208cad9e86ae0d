"""`ternmesh pipeline train`: its output, and its exit codes."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from host.pipeline.config import PipelineConfig, PipelineError
from ternmesh_cli import pipeline, process
from ternmesh_cli.main import main
from ternmesh_cli.process import ExitCode

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

    def __init__(
        self, config: PipelineConfig, path: Path, host: str | None, is_insecure: bool
    ) -> None:
        assert (config.stages, path.is_absolute(), host, is_insecure) == (2, True, None, False)

        self._config = config

    def start(self) -> None:
        type(self).stopped = False
        self._config.folder.mkdir(exist_ok=True)

    def reports(self, stop: object) -> Iterator[dict[str, object]]:
        yield REPORT
        if self.refusal:
            raise PipelineError(self.refusal)

    def stop(self) -> None:
        type(self).stopped = True


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pipeline, "Ranks", FakeRanks)
    path = tmp_path / "run.toml"
    path.write_text('state_dir = "state"\ndata = "text"\n')
    return path


def test_reports_are_lines(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "train", "--config", str(config)]) == 0
    shown = capsys.readouterr().out
    assert "step 10/20  loss 2.5000  1234 tokens/s  17 bytes/token forward, 16 back" in shown
    assert "idle 25%, 50%  1.5 min left" in shown
    assert FakeRanks.stopped


def test_a_refusal_is_one_sentence(config: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(FakeRanks, "refusal", "rank 1: a payload is broken")
    assert main(["pipeline", "train", "--config", str(config)]) == ExitCode.REFUSED
    assert capsys.readouterr().err == "ternmesh: rank 1: a payload is broken\n"
    assert FakeRanks.stopped


def test_a_plan_takes_the_computing_time_of_the_last_report(config: Path, capsys) -> None:
    plan = ["pipeline", "plan", "--config", str(config), "--mbit", "80", "--rtt-ms", "50"]
    assert main(plan) == ExitCode.REFUSED
    assert "nothing was trained here yet" in capsys.readouterr().err
    assert main([*plan, "--micro-batch-ms", "100"]) == 0
    given = capsys.readouterr().out
    assert "<- the least that keeps stages busy" in given
    (config.parent / "state").mkdir()
    report = {**REPORT, "micro_batch_ms": [20.0, 100.0]}
    (config.parent / "state" / "progress.jsonl").write_bytes(
        json.dumps(report).encode() + b'\n{"step": 11, "lo\xff{"step": 12}\n\n{"st'
    )
    assert main(plan) == 0
    assert capsys.readouterr().out == given


def test_an_identity_is_made_once(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["pipeline", "identity", "--config", str(config)]
    assert [main(command), main(command)] == [0, 0]
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert first.startswith("TM1:")
    assert (config.parent / "state" / "identity").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_closed_terminal_stops_a_command_unless_nohup_is_before_it(is_ignored: bool) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
        stop = process.stop_on_signals()
        assert (signal.getsignal(signal.SIGHUP) == signal.SIG_IGN) is is_ignored
        os.kill(os.getpid(), signal.SIGTERM if is_ignored else signal.SIGHUP)
        assert stop.wait(10.0)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
