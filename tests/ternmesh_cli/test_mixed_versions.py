"""A fleet in which not all have been upgraded: its rounds go on, and all have the same adapter."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ternmesh.federated.management import INQUIRIES_MAX
from ternmesh.federated.refusals import NORMAL
from tests.ternmesh_cli import test_fleet
from tests.ternmesh_cli.test_fleet import BOARDS, PATIENCE_S, ROOT, Fleet
from tests.wheels import make_wheel
from transports.mqtt.embedded_broker import EmbeddedBroker

# The version before: a fleet is upgraded board by board, so ours must work with it. With a release
# this becomes the release before the next one.
BEFORE = "dd0e3bd"
ENROL = """
import sys
from pathlib import Path
from ternmesh_cli.keys import enrol_fleet
fleet, folder, *names = sys.argv[1:]
enrol_fleet(fleet, Path(folder) / "host", {name: Path(folder) / name for name in names})
"""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The version before, installed by pip from a wheel into a folder."""
    folder = tmp_path_factory.mktemp("before")
    done = subprocess.run(
        ["git", "-C", ROOT, "archive", "--output", folder / "checkout.tar", BEFORE],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"the history of git has no {BEFORE}: {done.stderr.strip()}")
    (folder / "checkout").mkdir()
    subprocess.run(["tar", "-xf", folder / "checkout.tar", "-C", folder / "checkout"], check=True)
    wheel = make_wheel(folder / "checkout", folder)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-index", "--no-compile", "--target", str(folder / "installed")]
    subprocess.run([*pip, *options, wheel], check=True)
    return folder / "installed"


@pytest.fixture
def fleet(
    tmp_path: Path, before: Path, eventually, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Fleet]:
    """A fleet whose keys the version before has made. Its programs have not begun."""
    monkeypatch.setattr(test_fleet, "ROUNDS", 3)

    def enrol(name: str, host: Path, boards: Mapping[str, Path]) -> None:
        command = [sys.executable, "-c", ENROL, name, str(host.parent), *boards]
        subprocess.run(command, cwd=before, check=True)

    with EmbeddedBroker() as broker:
        fleet = Fleet(tmp_path, broker.url, eventually, enrol=enrol)
        members = (fleet.host, *fleet.boards.values())
        yield fleet
        for member in members:
            if member.process is not None and member.process.poll() is None:
                member.process.kill()
                member.process.wait(PATIENCE_S)


def test_the_version_before_is_the_one_that_runs(before: Path) -> None:
    command = [sys.executable, "-c", "import ternmesh_cli.main; print(ternmesh_cli.main.__file__)"]
    found = subprocess.check_output(command, cwd=before, text=True).strip()
    assert Path(found).is_relative_to(before)


def started(fleet: Fleet) -> Fleet:
    for member in (fleet.host, *fleet.boards.values()):
        member.start()
    return fleet


def refuse_nothing(fleet: Fleet, stopped: str = "", old: str = "") -> None:
    """Check that no member refused more than what each first contact brings.

    An old board also refuses the inquiries of a new host, of which there are few (R6.10-1).
    """
    assert set(fleet.host.status()["refused"]) <= set(NORMAL), fleet.host.log
    for name in set(BOARDS) - {stopped}:
        refused = fleet.boards[name].status()["refused"]
        if name == old:
            assert refused.pop("control") <= INQUIRIES_MAX
        assert set(refused) <= set(NORMAL), fleet.boards[name].log


def test_a_new_host_with_an_old_board(fleet: Fleet, before: Path) -> None:
    fleet.boards["theo"].checkout = before
    fleet.wait_for(started(fleet).host, lambda status: status["phase"] == "finished")
    refuse_nothing(fleet, old="theo")
    fleet.finish(fleet.host.status()["run"])


def test_an_old_host_with_a_new_board_then_both_are_upgraded(fleet: Fleet, before: Path) -> None:
    """The host and a board are stopped in the middle of a round, and start with our version."""
    for member in (fleet.host, fleet.boards["theo"], fleet.boards["yweweler"]):
        member.checkout = before
    run = started(fleet).hold_open("nicolas")["run"]
    refuse_nothing(fleet, stopped="nicolas")
    for member in (fleet.boards["theo"], fleet.host):
        member.kill9()
        member.checkout = ROOT
        member.start()
        fleet.wait_for(member, lambda status: status["run"] == run)
    fleet.boards["nicolas"].signal(signal.SIGCONT)
    fleet.finish(run)


def test_an_old_board_follows_a_run_that_takes_along_what_was_learned(
    fleet: Fleet, before: Path
) -> None:  # R6.11-5
    fleet.boards["theo"].checkout = before
    fleet.wait_for(started(fleet).host, lambda status: status["phase"] == "finished")
    first = fleet.host.status()["run"]
    fleet.host.signal(signal.SIGTERM)
    assert fleet.host.process.wait(PATIENCE_S) == 0, fleet.host.log
    fleet.host._arguments.append("--continue")
    fleet.host.start()
    fleet.wait_for(fleet.host, lambda status: status["phase"] == "finished")
    status = fleet.host.status()
    assert status["carried_from"] == f"{first} 3"
    assert [set(item["counted"]) for item in status["history"]] == [set(), set(BOARDS), set(BOARDS)]
    for member in (*fleet.boards.values(), fleet.host):
        fleet.wait_for(member, lambda now: (now["run"], now["version"]) == (status["run"], 3))
        member.signal(signal.SIGTERM)
        assert member.process.wait(PATIENCE_S) == 0, member.log
    fleet.check_files()
