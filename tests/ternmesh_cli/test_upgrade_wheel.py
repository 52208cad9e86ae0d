"""`ternmesh upgrade` of a virtual environment: pip installs, and files come back by their list."""

import hashlib
import os
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from ternmesh_cli.main import main
from ternmesh_service.rollback import Failed
from ternmesh_service.software import read_package
from tests.wheels import make_wheel

ROOT = Path(__file__).parents[2]
OLD, NEW = "1.0", "2.0"
# The unit runs; whether its next start fails says a file.
SYSTEMCTL = """#!/bin/sh
case $1 in
show) case $3 in *-node.service) printf 'ActiveState=active\\nMainPID=1\\n' ;;
      *) printf 'ActiveState=inactive\\nMainPID=0\\n' ;; esac ;;
start) if [ "$2" != --no-block ] && [ -e "$0.crash" ]; then echo it crashes >&2; exit 1; fi ;;
esac
"""
# The trial of a program that nobody has started: it is the wheel that is tested here.
RUN = """
import os, shutil, signal, sys
from pathlib import Path
from ternmesh_cli import keys, main, upgrade
from ternmesh_service import software
upgrade.FOLDER = Path(os.environ["WAY"])
upgrade.watch = lambda *_: None
keys.End.ask = lambda *_: {"version": 1}
if "CUT" in os.environ:
    def cut(package):
        shutil.rmtree(os.path.join(os.environ["CUT"], "edge"))
        os.mkdir(os.path.join(os.environ["CUT"], "~dge"))
        open(os.path.join(os.environ["CUT"], "ternmesh", "__init__.py"), "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    software.install = cut
sys.exit(main.main(sys.argv[1:]))
"""


@dataclass
class Environment:
    """A virtual environment with version 1.0, the packages that it needs, and pip."""

    folder: Path
    site: Path

    def wheel(self, version: str, **changed: str) -> Path:
        return make_wheel(ROOT, self.folder / "wheels", version, changed)

    def install(self, file: Path, **more: str) -> tuple[int, str]:
        config = self.folder / "node.toml"
        rest = ("--insecure", "--config", config)
        words = (self.folder / "venv/bin/python", "-c", RUN, "upgrade", "install", file, *rest)
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        way = str(self.folder / "way")
        environment = {**os.environ, "PYTHONPATH": "", "PATH": path, "WAY": way, **more}
        done = subprocess.run(
            list(map(str, words)),
            env=environment,
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def recover(self) -> str:
        script = self.folder / "way" / "rollback.py"
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.check_output(
            [sys.executable, "-I", script], env={"PATH": path}, text=True
        )

    def files(self) -> dict[str, str]:
        """The hash of each of our files; byte code is made by whoever runs."""
        places = (self.site, self.folder / "venv/bin")
        files = (path for place in places for path in place.rglob("*"))
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
            if path.is_file() and path.suffix != ".pyc"
        }


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    venv, bin_ = tmp_path / "venv", tmp_path / "bin"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    [site] = (venv / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    bin_.mkdir()
    (bin_ / "systemctl").write_text(SYSTEMCTL)
    (bin_ / "systemctl").chmod(0o755)
    made = Environment(tmp_path, site)
    pip = [f"{venv}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-index", "--no-compile", "--ignore-installed"]
    subprocess.run(
        [*pip, *options, made.wheel(OLD)], check=True, env={**os.environ, "PYTHONPATH": ""}
    )
    config = tmp_path / "node.toml"
    config.write_text('name = "ada"\nstate_dir = "state"\n')
    assert main(["enrol", "identity", "--config", str(config)]) == 0
    return made


def test_a_wheel_that_fails_goes_and_a_good_one_replaces_the_one_before(
    environment: Environment,
) -> None:
    before, crash = environment.files(), environment.folder / "bin/systemctl.crash"
    file = environment.wheel(NEW, **{"edge/only_new.py": ""})
    crash.touch()
    code, said = environment.install(file)
    assert code == 1
    assert f"failed (`systemctl start` says: it crashes); {OLD} is back" in said
    assert environment.files() == before
    crash.unlink()
    assert environment.install(file) == (0, f"{NEW} runs in place of {OLD}\n")
    assert (environment.site / f"ternmesh-{NEW}.dist-info").exists()
    assert not (environment.site / f"ternmesh-{OLD}.dist-info").exists()
    assert (environment.site / "edge/only_new.py").exists()
    code, said = environment.install(environment.wheel(OLD))
    assert code == 1
    assert f"is {OLD}, and {NEW} here is newer" in said


@pytest.mark.nightly
def test_a_cut_in_the_middle_of_pip_is_repaired_by_the_unit(environment: Environment) -> None:
    before = environment.files()
    code, _ = environment.install(environment.wheel(NEW), CUT=str(environment.site))
    assert code == -9
    assert environment.files() != before
    assert f"it was interrupted); {OLD} is back" in environment.recover()
    assert environment.files() == before
    assert not (environment.site / "~dge").exists()


def rewritten(path: Path, name: str, old: str, new: str) -> None:
    """The wheel with another text in one of its files."""
    copy = path.with_suffix(".copy")
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w") as changed:
        for item in archive.namelist():
            content = archive.read(item)
            if item.endswith(name):
                content = content.replace(old.encode(), new.encode())
            changed.writestr(item, content)
    copy.replace(path)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


SPOILT = (
    (lambda path: rewritten(path, "METADATA", "Name: ternmesh", "Name: x"), "is x, and not"),
    (
        lambda path: path.rename(str(path).replace("py3-none-any", "py3-none-linux_s390x")),
        "is not a supported wheel on this platform",
    ),
    (lambda path: rewritten(path, "METADATA", ">=3.11", ">=3.99"), "requires a different Python"),
    (lambda path: os.truncate(path, path.stat().st_size // 2), "is damaged, or no wheel"),
    (flipped, "is damaged"),
)


@pytest.mark.nightly
def test_a_wheel_that_does_not_fit_changes_nothing(environment: Environment) -> None:
    before = environment.files()
    for spoil, sentence in SPOILT:
        file = environment.wheel(NEW)
        code, said = environment.install(spoil(file) or file)
        assert code == 1
        assert sentence in said
        assert said.count("\n") == 1
        assert environment.files() == before


def test_a_checkout_is_not_upgraded_by_a_wheel(tmp_path: Path) -> None:
    """This test runs from one, or from an editable installation."""
    with pytest.raises(Failed, match="was not installed from a wheel here"):
        read_package(make_wheel(ROOT, tmp_path, "99.0"))
