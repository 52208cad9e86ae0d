"""The script `run`: which environment it uses, and which it never deletes."""

import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "run"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose .venv is complete; its programs say who they are."""
    folder = tmp_path / "checkout"
    made = folder / ".venv" / "bin"
    made.mkdir(parents=True)
    (folder / "run").write_bytes(RUN.read_bytes())
    (folder / "pyproject.toml").write_text("project\n")
    (folder / "constraints.txt").write_text("constraints\n")
    (made.parent / "host.stamp").write_text("project\nconstraints\n")
    (made / "pip").write_text(f"#!{made}/python\n")
    for name in ("python", "ternmesh"):
        (made / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
    for program in (folder / "run", *made.iterdir()):
        program.chmod(0o755)
    return folder


def run(program: Path, *words: str, python: str = "false") -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": python}
    return subprocess.run(
        [program, *words], capture_output=True, text=True, check=False, env=environment
    )


def test_a_link_to_the_script_uses_its_checkout(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "precious").touch()
    (tmp_path / "run").symlink_to(checkout / "run")
    assert run(tmp_path / "run", "host").stdout.endswith("ternmesh host\n")
    assert (tmp_path / ".venv" / "precious").exists()


def test_an_environment_that_another_has_made_is_not_deleted(checkout: Path) -> None:
    python = checkout / "python3"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    (checkout / ".venv" / "host.stamp").unlink()
    (checkout / ".venv" / "bin" / "pip").unlink()
    ended = run(checkout / "run", "host", python=str(python))
    assert ended.returncode == 1
    assert "is not of this script: move it away" in ended.stderr
    assert (checkout / ".venv" / "bin" / "ternmesh").exists()


def test_who_does_not_own_the_checkout_uses_what_is_installed(checkout: Path) -> None:
    (checkout / ".venv.lock").mkdir()  # cannot be opened for writing, whoever runs this
    assert run(checkout / "run", "host").stdout.endswith("ternmesh host\n")
