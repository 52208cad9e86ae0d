"""`ternmesh upgrade` with real dpkg in a root folder of its own, and a systemctl that we play.

Each small .deb says how its program behaves: `good`, `crash` at its start, `die` on trial, `hang`.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ternmesh.security.identity import identity_text
from ternmesh_cli import upgrade
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.main import main
from ternmesh_service import rollback, software
from ternmesh_service.control_socket import ControlServer
from ternmesh_service.identity_file import IDENTITY, read_identity_file
from ternmesh_service.rollback import Failed
from ternmesh_service.status import SecurityStatus, to_json
from ternmesh_store.state_file import STATE, StateFile
from tests.statuses import board_status

OLD, NEW = "1.0+py3", "2.0+py3"
UNIT = "ternmesh-node.service"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DPKG = """#!/bin/sh
exec /usr/bin/dpkg --force-not-root --force-bad-path --force-depends --force-script-chrootless \\
    --log="$DPKG_ROOT/log" "$@"
"""
SYSTEMCTL = f"""#!{sys.executable} -I
import os, sys
from pathlib import Path
root = Path(os.environ["DPKG_ROOT"])
UNITS = (root / "units").read_text().split()
pid, log = root / "pid", root / "systemctl.log"
with log.open("a") as file:
    print(*sys.argv[1:], file=file)
behaviour = (root / "opt/ternmesh/behaviour").read_text()
if sys.argv[1] == "stop":
    pid.unlink(missing_ok=True)
if sys.argv[1] == "start":
    if "crash" in behaviour:
        sys.exit("Job for the unit failed")
    pid.write_text("100")
if sys.argv[1] == "show":
    number = int(pid.read_text()) if pid.exists() and sys.argv[-1] in UNITS else 0
    if number and "die" in behaviour:
        pid.write_text(str(number + 1))
    print(f"ActiveState={{'active' if number else 'failed'}}\\nMainPID={{number}}")
"""


@dataclass
class Board:
    """A board whose programs and dpkg live below `root`."""

    root: Path
    folder: Path  # of settings, packages and keys
    capsys: pytest.CaptureFixture[str]

    def deb(self, version: str, behaviour: str = "good", script: str = "", **fields: str) -> Path:
        """A package; `script` is "NAME COMMAND" for one of dpkg's."""
        tree = self.folder / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        (tree / "opt/ternmesh").mkdir(parents=True)
        (tree / "opt/ternmesh/behaviour").write_text(behaviour)
        (tree / f"opt/ternmesh/only-{version}").write_text(version)
        (tree / "opt/ternmesh/link").symlink_to("behaviour")
        native = subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()
        about = {
            "Package": "ternmesh",
            "Version": version,
            "Architecture": native,
            "Maintainer": "m <m@localhost>",
            "Installed-Size": "1",
            "Depends": f"python3 (>= {software.PYTHON}~)",
            "Description": "small\n of two lines",
        } | fields
        control = tree / "DEBIAN"
        control.mkdir(mode=0o755)
        (control / "control").write_text("".join(f"{k}: {v}\n" for k, v in about.items()))
        if script:
            name, _, command = script.partition(" ")
            (control / name).write_text(f"#!/bin/sh\n{command}\n")
            (control / name).chmod(0o755)
        path = self.folder / f"ternmesh_{version}_{about['Architecture']}.deb"
        build = ["dpkg-deb", "--build", "--root-owner-group", "-Zgzip", str(tree), str(path)]
        subprocess.run(build, check=True, capture_output=True)
        return path

    def ternmesh(self, action: str, *rest: object) -> tuple[int, str]:
        code = main(["upgrade", action, *map(str, rest)])
        shown = self.capsys.readouterr()
        return code, shown.out + shown.err

    @property
    def options(self) -> tuple[object, ...]:
        return ("--config", self.folder / "node.toml", "--trial-s", 0)

    def install(self, file: Path, *options: str) -> tuple[int, str]:
        return self.ternmesh("install", file, *self.options, *options)

    def status(self) -> dict[str, Any]:
        found = self.ternmesh("status", "--json")[1]
        return json.loads(found)

    def recover(self) -> str:
        """What the unit does when the machine starts."""
        script = self.folder / "way" / "rollback.py"
        command = [sys.executable, "-I", str(script)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    @property
    def version(self) -> tuple[str, list[str]]:
        """What dpkg says, and which files are there."""
        show = ["dpkg-query", "--show", "--showformat=${Status} ${Version}", "ternmesh"]
        said = subprocess.check_output(show, text=True)
        files = sorted(path.name for path in (self.root / "opt/ternmesh").iterdir())
        return said, files

    def is_at(self, version: str) -> bool:
        files = ["behaviour", "link", f"only-{version}"]
        return self.version == (f"install ok installed {version}", files)

    @property
    def state(self) -> Path:
        return self.folder / "state" / STATE

    @property
    def commands(self) -> list[str]:
        return (self.root / "systemctl.log").read_text().splitlines()

    def snapshot(self) -> dict[str, bytes]:
        """All that must not change where a file is refused."""
        places = (self.root / "opt", self.root / "var/lib/dpkg/status", self.state.parent)
        files = [path for place in places for path in (place, *place.rglob("*"))]
        return {str(p): p.read_bytes() for p in files if p.is_file()}


@pytest.fixture
def board(tmp_path, monkeypatch, capsys) -> Iterator[Board]:
    """Version 1.0 is installed, runs, answers, and belongs to the fleet of host.toml."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed: only Debian and Ubuntu have it")
    root = tmp_path / "root"
    for name in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "bin"):
        (root / name).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    for name, text in (("dpkg", DPKG), ("systemctl", SYSTEMCTL)):
        (root / "bin" / name).write_text(text)
        (root / "bin" / name).chmod(0o755)
    (tmp_path / "node.toml").write_text('name = "ada"\nstate_dir = "state"\n')
    (tmp_path / "host.toml").write_text('state_dir = "host"\nmodel = "keyword"\n')
    enrol_fleet("ternmesh", tmp_path / "host", {"ada": tmp_path / "state"})
    made = Board(root, tmp_path, capsys)
    monkeypatch.setenv("PATH", f"{root / 'bin'}:{os.environ['PATH']}:/usr/sbin:/sbin")
    monkeypatch.setenv("DPKG_ROOT", str(root))
    way = tmp_path / "way"
    for name, value in (("FOLDER", way), ("SILENT_S", 1.5), ("LOOK_S", 0.05)):
        monkeypatch.setattr(upgrade, name, value)
    monkeypatch.setattr(rollback, "LOCKED_S", 0.0)
    subprocess.run(["dpkg", "--install", made.deb(OLD)], check=True, capture_output=True)
    assert made.is_at(OLD)

    def answer(_: dict[str, Any]) -> dict[str, Any]:
        if "hang" in (root / "opt/ternmesh/behaviour").read_text():
            raise OSError(errno.ETIMEDOUT, "it hangs")
        return to_json(status)

    stored = StateFile(tmp_path / "state").stored_fleet()
    assert stored is not None
    line = identity_text(read_identity_file(tmp_path / "host" / IDENTITY).public)
    keys = SecurityStatus(mode="keys", fleet=stored.fleet.hex(), host=line)
    status = board_status(security=keys)
    (root / "pid").write_text("1")
    (root / "units").write_text(UNIT)
    (root / "systemctl.log").touch()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    with ControlServer(tmp_path / "state" / "control.sock", answer):
        yield made
    for number, handler in handlers.items():
        signal.signal(number, handler)


def signed(board: Board, file: Path, config: str = "host.toml") -> Path:
    code, said = board.ternmesh("sign", file, "--config", board.folder / config)
    assert code == 0, said
    return file


def test_a_signed_version_is_installed_and_runs(board: Board) -> None:
    code, said = board.install(signed(board, board.deb(NEW)))
    assert (code, said) == (0, f"{NEW} runs in place of {OLD}\n")
    assert board.is_at(NEW)
    assert board.commands.index(f"stop {UNIT}") < board.commands.index(f"start {UNIT}")
    assert "enable --quiet ternmesh-upgrade.service" in board.commands
    shown = board.status()
    assert (shown["step"], shown["old"], shown["new"]) == ("done", OLD, NEW)
    left = {path.name for path in (board.folder / "way").iterdir()}
    assert left == {"last.json", "lock", "rollback.py", ".gitignore"}
    assert board.recover() == "no upgrade was cut\n"
    assert board.is_at(NEW)


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("crash", "Job for the unit failed"),
        ("die", f"{UNIT} ended on trial"),
        ("hang", f"{UNIT} gave no answer for"),
    ],
)
def test_a_version_that_fails_is_taken_back(board: Board, behaviour: str, why: str) -> None:
    code, said = board.install(signed(board, board.deb(NEW, behaviour)))
    assert code == 1
    assert why in said
    assert f"{OLD} is back" in said
    assert said.count("\n") == 1
    assert board.is_at(OLD)
    assert board.commands[-1] == f"start --no-block {UNIT}"
    assert board.status()["step"] == "rolled back"
    assert why in board.status()["sentence"]


Spoil = Callable[[Board, Path], object]


def truncated(_: Board, path: Path) -> None:
    os.truncate(path, path.stat().st_size - 40)


def flipped(_: Board, path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def unsigned(_: Board, path: Path) -> None:
    path.with_name(f"{path.name}.sig").unlink()


def other_fleet(board: Board, path: Path) -> None:
    (board.folder / "stranger.toml").write_text('state_dir = "stranger"\nmodel = "keyword"\n')
    enrol_fleet("ternmesh", board.folder / "stranger", {})
    unsigned(board, path)
    signed(board, path, "stranger.toml")


UNFIT: tuple[tuple[dict[str, str], Spoil | None, tuple[str, ...], str], ...] = (
    ({"Architecture": "s390x"}, None, (), "is for s390x, and this is"),
    ({"Package": "other"}, None, (), "is other, and not ternmesh"),
    ({"Depends": "python3 (>= 2.7~)"}, None, (), "is for Python 2.7, and here is"),
    ({"Version": "0.9+py3"}, None, (), f"is 0.9+py3, and {OLD} here is newer"),
    ({"Installed-Size": "99999999999"}, None, (), "are free: make room"),
    ({}, truncated, (), "is not signed by this fleet, or damaged"),
    ({}, flipped, ("--insecure",), "is damaged, or no .deb"),
    ({}, other_fleet, (), "is not signed by this fleet"),
    ({}, unsigned, (), "sig is missing"),
)


def test_a_file_that_does_not_fit_changes_nothing(board: Board) -> None:
    before = board.snapshot()

    def refused(path: Path, sentence: str, *options: str) -> None:
        code, said = board.install(path, *options)
        assert (code, said.count("\n")) == (1, 1)
        assert sentence in said
        assert board.snapshot() == before
        assert not [line for line in board.commands if line.startswith(("stop", "start"))]
        assert board.status()["sentence"] == "no upgrade was made here"
        assert not (board.folder / "way" / "kept").exists()

    for fields, spoil, options, sentence in UNFIT:
        path = signed(board, board.deb(NEW, **fields))
        if spoil is not None:
            spoil(board, path)
        refused(path, sentence, *options)
        path.with_name(f"{path.name}.sig").unlink(missing_ok=True)
    path = signed(board, board.deb(NEW))
    (board.root / "units").write_text(f"{UNIT} ternmesh-gateway.service")
    refused(path, "ternmesh-gateway.service runs here too: give its --config")
    (board.root / "pid").unlink()
    refused(path, "does not run with these")


def test_insecure_installs_an_unsigned_file_one_at_a_time(board: Board) -> None:
    (board.folder / "way").mkdir()
    with rollback.locked(board.folder / "way"):
        code, said = board.install(board.deb(NEW), "--insecure")
    assert (code, "another upgrade goes on" in said) == (1, True)
    assert board.is_at(OLD)
    assert board.install(board.deb(NEW), "--insecure")[0] == 0
    assert board.is_at(NEW)


def in_killed_child(work: Callable[[], object]) -> bool:
    """Do work in a process that may kill itself; whether it did."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def cut_at(number: int, work: Callable[[], object]) -> bool:
    """Do work with a power cut in front of the given command or sync; whether it came so far."""

    def begin() -> None:
        left = [number]

        def cut(call: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*arguments: Any, **options: Any) -> Any:
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            return counted

        subprocess.run, os.sync = cut(subprocess.run), cut(os.sync)
        work()

    return in_killed_child(begin)


@pytest.mark.nightly
@pytest.mark.parametrize("behaviour", ["good", "crash"])
def test_a_power_cut_at_any_step_leaves_one_whole_version(board: Board, behaviour: str) -> None:
    """Each round cuts one command or sync later. The unit's run at the next start is cut, too."""
    file = signed(board, board.deb(NEW, behaviour))
    back, went = 0, 0
    number, was_cut = 0, True
    while was_cut:
        number += 1
        was_cut = cut_at(number, lambda: board.install(file))
        if (board.folder / "way" / "marker.json").exists():
            cut_at(1 + number % 7, lambda: rollback.recover(board.folder / "way"))
            board.recover()
        assert (board.root / "pid").exists(), "the unit runs again"
        if board.is_at(NEW):
            went += 1
            older = file.with_name(file.name.replace(NEW, OLD))
            subprocess.run(["dpkg", "--install", older], check=True, capture_output=True)
        else:
            back += 1
            assert board.is_at(OLD), board.version
    assert back > 15
    assert (went > 1) == (behaviour == "good")


KILL = "kill -9 $(awk '{print $4}' /proc/$PPID/stat) $PPID"


@pytest.mark.parametrize(
    ("script", "kill"),
    [
        ("preinst", KILL),
        ("postinst", "kill -9 $PPID"),
        pytest.param("postinst", KILL, marks=pytest.mark.nightly),
        pytest.param("preinst", "exit 1", marks=pytest.mark.nightly),
    ],
)
def test_a_dpkg_that_is_cut_is_repaired(board: Board, script: str, kill: str) -> None:
    file = signed(board, board.deb(NEW, script=f"{script} {kill}"))
    was_cut = in_killed_child(lambda: board.install(file))
    assert was_cut == (kill == KILL)
    if was_cut:
        assert not board.is_at(OLD)
        assert "systemctl start ternmesh-upgrade" in board.status()["sentence"]
        assert f"it was interrupted); {OLD} is back" in board.recover()
    assert board.is_at(OLD)
    assert board.commands[-1] == f"start --no-block {UNIT}"
    assert board.status()["step"] == "rolled back"


def test_the_next_upgrade_ends_one_that_was_cut(board: Board) -> None:
    file = signed(board, board.deb(NEW, script=f"preinst {KILL}"))
    assert in_killed_child(lambda: board.install(file))
    good = signed(board, board.deb("3.0+py3"))
    code, said = board.install(good)
    assert code == 1
    assert "give this command again" in said
    assert board.is_at(OLD)
    assert board.install(good)[0] == 0
    assert board.is_at("3.0+py3")


def impatient(patch: pytest.MonkeyPatch) -> None:
    """Somebody presses Ctrl-C on trial, and again on the way back."""
    real = rollback.run

    def run(*command: object) -> str:
        if command[:2] == ("systemctl", "stop"):
            for number in SIGNALS:
                os.kill(os.getpid(), number)
        return real(*command)

    def watch(*_: object) -> None:
        patch.setattr(rollback, "run", run)
        os.kill(os.getpid(), signal.SIGTERM)

    patch.setattr(upgrade, "watch", watch)


def test_the_way_back_works_whatever_disturbs_it(board: Board, monkeypatch) -> None:
    file = signed(board, board.deb(NEW, "die"))
    before = os.umask(0o022)
    impatient(monkeypatch)
    os.umask(0o077)
    try:
        code, said = board.install(file)
    finally:
        os.umask(before)
    assert (code, f"{OLD} is back" in said) == (1, True)
    assert board.is_at(OLD)
    assert board.commands[-1] == f"start --no-block {UNIT}"
    assert board.state.exists()


def test_a_way_back_that_fails_says_what_to_do(board: Board, monkeypatch) -> None:
    real = rollback.run

    def broken(*command: object) -> str:
        if str(command[-1]).endswith("previous.deb") and command[0] == "dpkg":
            raise Failed("the disk is gone")
        return real(*command)

    monkeypatch.setattr(rollback, "run", broken)
    code, said = board.install(signed(board, board.deb(NEW, "crash")))
    assert code == 1
    assert "and so did the way back (the disk is gone)" in said
    assert "systemctl start ternmesh-upgrade" in said
    assert board.commands[-1] == f"start --no-block {UNIT}"
