"""The units of systemd: their hardening, their settings, and the exit codes that they know."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ternmesh_cli.main import main
from ternmesh_cli.process import ExitCode
from ternmesh_cli.upgrade import FOLDER
from ternmesh_service.rollback import MARKER

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "packaging" / "systemd"
COMMON = "ternmesh-.service.d"
NAMES = ("node", "host", "gateway")
DROP_INS = ("", "20-serial", "20-sound", "20-ble", "20-ble-controller", "20-identity")
# systemd 252 says so, and goes on without them
NEWER = ("RestartSteps", "RestartMaxDelaySec")

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed: apt install systemd"
)


@pytest.fixture(params=[(name, drop_in) for name in NAMES for drop_in in DROP_INS], ids=":".join)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit as it is installed, with one drop-in; its program is one that exists here."""
    name, drop_in = request.param
    path = tmp_path / f"ternmesh-{name}.service"
    text = (UNITS / path.name).read_text()
    assert f"ExecStart=/opt/ternmesh/bin/ternmesh {name} --config /etc/ternmesh/{name}" in text
    path.write_text(text.replace("/opt/ternmesh/bin/ternmesh", sys.executable))
    shutil.copytree(UNITS / COMMON, tmp_path / COMMON)
    if drop_in:
        folder = tmp_path / f"{path.name}.d"
        folder.mkdir()
        shutil.copy(UNITS / "drop-ins" / f"{drop_in}.conf", folder)
    return path


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@needs_systemd
def test_the_exposure_is_at_most_2(unit: Path) -> None:
    done = analyze("security", "--offline=true", "--threshold=20", unit)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_systemd
def test_the_settings_are_known(unit: Path) -> None:
    done = analyze("verify", "--man=no", unit)
    ours = [line for line in done.stderr.splitlines() if "ternmesh" in line]
    assert [line for line in ours if not any(key in line for key in NEWER)] == []
    assert done.returncode == 0, done.stderr


@needs_systemd
def test_the_unit_that_ends_an_upgrade_runs_first_and_as_root(tmp_path: Path) -> None:
    """Its drop-in stands in place of that of all units, which would take root from it."""
    name = "ternmesh-upgrade.service"
    text = (UNITS / name).read_text()
    assert f"ConditionPathExists={FOLDER}/{MARKER}\n" in text
    assert f"ExecStart=/usr/bin/python3 -I {FOLDER}/rollback.py\n" in text
    [before] = re.findall(r"^Before=(.*)$", text, re.MULTILINE)
    assert before.split() == [f"ternmesh-{end}.service" for end in NAMES]
    shutil.copy(UNITS / name, tmp_path)
    for folder in (COMMON, f"{name}.d"):
        shutil.copytree(UNITS / folder, tmp_path / folder)
    assert {path.name for path in (UNITS / f"{name}.d").iterdir()} == {
        path.name for path in (UNITS / COMMON).iterdir()
    }
    done = analyze("verify", "--man=no", tmp_path / name)
    assert done.returncode == 0, done.stderr
    assert "User=" not in (UNITS / f"{name}.d" / "10-hardening.conf").read_text()
    postinst = (ROOT / "packaging" / "debian" / "postinst").read_text()
    assert "ternmesh-*" not in postinst, "a restart of this unit would end its own dpkg"


@needs_systemd
def test_a_unit_without_its_hardening_is_found_out(tmp_path: Path) -> None:
    shutil.copy(UNITS / "ternmesh-node.service", tmp_path)
    done = analyze(
        "security", "--offline=true", "--threshold=20", tmp_path / "ternmesh-node.service"
    )
    assert done.returncode != 0


def test_every_failure_is_tried_again_for_ever() -> None:
    common = (UNITS / COMMON / "10-hardening.conf").read_text()
    assert "\nRestartPrevent" not in common
    assert "\nRestart=on-failure\n" in common
    assert "\nStartLimitIntervalSec=0\n" in common


def test_guide_and_help_have_each_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (ROOT / "docs" / "service.md").read_text()
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", guide, re.MULTILINE)} == set(ExitCode)
    with pytest.raises(SystemExit):
        main(["node", "--help"])
    shown = capsys.readouterr().out
    for code in ExitCode:
        assert f"\n  {int(code)}  {code.sentence}\n" in f"{shown}\n"
        assert f"\n| {int(code)} | {code.sentence} |" in guide
