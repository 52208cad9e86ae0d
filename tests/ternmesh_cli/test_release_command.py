"""`ternmesh release` on a disk that is full; the rest is in transcripts/release.txt."""

import errno
from pathlib import Path

import pytest

from ternmesh_cli import main
from ternmesh_cli.keys import enrol_fleet


def ternmesh(*arguments: object) -> int:
    return main.main(["release", *map(str, arguments)])


def test_signatures_that_cannot_be_written_are_a_sentence_and_the_old_ones_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = tmp_path / "host.toml"
    host.write_text('state_dir = "host"\nmodel = "keyword"\n')
    enrol_fleet("ternmesh", tmp_path / "host", {})
    release = tmp_path / "one"
    limits = ("--loss-max", 100.0, "--latency-max-ms", 60_000)
    assert ternmesh("make", "keyword", "--out", release, "--version", 1, *limits) == 0
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
