"""Replays transcripts/*.txt: `$ command` and what it prints, each file in an empty folder.

`> ` begins a line of the command's input. `...` stands for any text, also for whole lines. `<NAME>`
stands for one word that later lines use, and `<folder>` for the folder. A last line `[2]` is the
exit code; without it a command ends with 0.
"""

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ternmesh_cli import doctor_checks, setup
from ternmesh_cli.main import main
from ternmesh_service import commands

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder that we are in, short enough for a socket; no terminal and no systemd."""
    with tempfile.TemporaryDirectory() as name, open(os.devnull) as nothing:
        monkeypatch.chdir(name)
        monkeypatch.setattr("sys.stdin", nothing)
        monkeypatch.setattr(setup, "SYSTEMD", Path(name, "none"))
        monkeypatch.setattr(commands, "SETTINGS", Path(name, "etc"))
        monkeypatch.setattr(doctor_checks, "BROKER_S", 2.0)
        yield Path(name)


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_transcript_is_what_happens(path: Path, folder: Path, capsys) -> None:
    words = {"folder": str(folder)}
    for block in re.split(r"^\$ ", path.read_text(), flags=re.MULTILINE)[1:]:
        command, *lines = block.rstrip("\n").split("\n")
        given = "".join(f"{line[2:]}\n" for line in lines if line.startswith("> "))
        expected = [line for line in lines if not line.startswith(("> ", "#")) and line]
        shown = replay(with_words(command, words), given, capsys)
        found = re.fullmatch(pattern("\n".join(expected), words), shown)
        assert found, f"{path.name}: $ {command}\n{shown}"
        words |= found.groupdict()


def replay(command: str, given: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints, without empty lines, and its exit code unless that is 0."""
    if command.startswith("ternmesh "):
        try:
            code = main(shlex.split(command)[1:])
        except SystemExit as end:
            code = int(str(end.code))
        shown = "".join(capsys.readouterr())
    else:
        done = subprocess.run(["sh", "-c", command], input=given, text=True, capture_output=True)
        code, shown = done.returncode, done.stdout + done.stderr
    lines = [line for line in shown.splitlines() if line.strip()]
    return "\n".join([*lines, *([f"[{code:d}]"] if code else [])])


def with_words(text: str, words: dict[str, str]) -> str:
    return re.sub(r"<(\w+)>", lambda match: words[match[1]], text)


def pattern(text: str, words: dict[str, str]) -> str:
    """The regular expression of an expected text; `words` are known already."""
    parts = []
    for part in re.split(r"(\.\.\.|<\w+>)", text):
        name = part[1:-1]
        if part == "...":
            parts.append(r"[\s\S]*?")
        elif re.fullmatch(r"<\w+>", part):
            parts.append(re.escape(words[name]) if name in words else rf"(?P<{name}>\S+)")
        else:
            parts.append(re.escape(part))
    return "".join(parts)
