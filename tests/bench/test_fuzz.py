"""The fuzzing bench without its fuzzer: what is found, what is kept, what is reported."""

from pathlib import Path

import pytest

from bench import fuzz_corpus
from bench.fuzz_corpus import keep, kept
from bench.fuzz_files import FINDINGS, Stats, read_stats, write_stats
from bench.fuzz_targets.target import Target
from bench.fuzz_worker import Run, check_memory
from ternmesh.errors import WireError


def fragile(data: bytes) -> None:
    """A decoder with two faults."""
    if data[:1] == b"!":
        raise IndexError("the first fault")
    if data[:1] == b"?":
        raise KeyError("the second")
    if len(data) > 40:
        raise WireError("length", "refused")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / FINDINGS).mkdir()
    return tmp_path


def test_each_fault_is_found_once_with_its_shortest_input(folder) -> None:
    run = Run(Target("fragile", fragile), folder)
    for data in (b"", b"a" * 50, b"!long", b"!", b"!longer", b"?"):
        run.one(data)
    stats = read_stats(folder)
    assert stats.executions == 6
    first, second = stats.findings
    assert first.where.startswith("IndexError at test_fuzz.py:")
    assert second.where.startswith("KeyError at test_fuzz.py:")
    assert Path(first.input).read_bytes() == b"!"
    assert "the first fault" in Path(first.input).with_suffix(".txt").read_text()


def test_too_much_memory_is_a_finding(folder) -> None:
    target = Target("greedy", lambda data: bytes(2 * len(data) << 20), memory_max=1 << 20)
    with pytest.raises(AssertionError, match="bytes at once, where 1048576 are declared"):
        check_memory(target, b"abc")
    check_memory(target, b"")


def test_a_run_that_never_began_has_no_stats(folder) -> None:
    assert read_stats(folder) == Stats(0, 0.0, ())
    write_stats(folder, Stats(5, 1.5, ()))
    assert read_stats(folder) == Stats(5, 1.5, ())


def test_what_is_kept_is_replaced_but_for_regressions(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fuzz_corpus, "KEPT", tmp_path)
    target = Target("batch", lambda data: data.index(b"x"), refusals=(ValueError,))
    (tmp_path / "batch").mkdir()
    (tmp_path / "batch" / "found-once").write_bytes(b"regression")
    (tmp_path / "batch" / "stale").write_bytes(b"stale")
    assert keep(target, [b"x", b"xx", b"y"]) >= 1
    assert b"regression" in kept(target)
    assert b"stale" not in kept(target)
