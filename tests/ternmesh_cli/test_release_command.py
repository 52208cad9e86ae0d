"""`ternmesh release`, and a running node that takes a good release and leaves a bad one."""

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from models.zoo import fsdd_path
from ternmesh_cli import main
from ternmesh_cli.keys import enrol_fleet
from ternmesh_service.control_socket import ControlError, ask

RUN = "import sys; from ternmesh_cli.main import main; sys.exit(main(sys.argv[1:]))"
CONFIG = """
name = "ada"
state_dir = "state"
model = "keyword"
[link]
url = "mqtt://127.0.0.1:9"
[data]
path = "{data}"
arrays = {{ features = "x", target = "y" }}
where = {{ speaker = "theo" }}
divide_by = 255
[evaluate]
path = "{data}"
arrays = {{ features = "x", target = "y" }}
where = {{ speaker = "theo" }}
divide_by = 255
samples_max = 32
"""
RELEASES = '[releases]\ndir = "releases"\ninsecure = true\n'


def ternmesh(*arguments: object) -> int:
    return main.main(["release", *map(str, arguments)])


def make(out: Path, version: int, loss_max: float = 100.0) -> Path:
    limits = ("--loss-max", loss_max, "--latency-max-ms", 60_000)
    assert ternmesh("make", "keyword", "--out", out, "--version", version, *limits) == 0
    return out


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(CONFIG.format(data=fsdd_path("dev")) + RELEASES)
    return path


def test_a_running_node_takes_a_good_release_and_leaves_a_bad_one(
    tmp_path: Path, config: Path, eventually: Callable[..., None]
) -> None:
    def status() -> dict | None:
        try:
            return ask(tmp_path / "state" / "control.sock", {"command": "status"})
        except ControlError:
            return None

    def stands(current: int, bad: list[int]) -> Callable[[], bool]:
        def condition() -> bool:
            answer = status()
            if answer is None:
                return False
            found = answer["releases"]
            refused = [version for version, _ in found["bad"]]
            return (found["current"], found["last_good"], refused) == (current, current, bad)

        return condition

    command = [sys.executable, "-c", RUN, "node", "--insecure", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(stands(0, []), 60)
            ternmesh("install", make(tmp_path / "one", 1), "--config", config)
            eventually(stands(1, []), 60)
            ternmesh("install", make(tmp_path / "two", 2, loss_max=1e-6), "--config", config)
            eventually(stands(1, [2]), 60)
            answer = status()
            assert answer is not None
            assert "its loss on this board's held-out data" in answer["releases"]["bad"][0][1]
        finally:
            process.terminate()
            assert process.wait(30) == 0


def test_signatures_that_cannot_be_written_are_a_sentence_and_the_old_ones_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = tmp_path / "host.toml"
    host.write_text('state_dir = "host"\nmodel = "keyword"\n')
    enrol_fleet("ternmesh", tmp_path / "host", {})
    release = make(tmp_path / "one", 1)
    path = release / "signatures"
    assert ternmesh("sign", release, "--config", host) == 0
    signed = path.read_bytes()

    def fill(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ternmesh_store.files.os.fsync", fill)
    assert ternmesh("sign", release, "--config", host) == 1
    shown = capsys.readouterr().err
    assert f"cannot write {path} (No space left on device)" in shown
    assert shown.count("\n") == 1
    assert path.read_bytes() == signed
