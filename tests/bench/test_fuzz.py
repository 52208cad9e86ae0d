"""The fuzzing bench without its fuzzer: what is found, what is kept, what is reported."""

import json
import time
from pathlib import Path

import pytest

from bench import fuzz, fuzz_corpus, fuzz_reach, fuzz_traced, fuzz_worker
from bench.fuzz_corpus import keep, kept
from bench.fuzz_files import CORPUS, FINDINGS, REACH, Stats, read_stats, write_stats
from bench.fuzz_parts import FuzzParts
from bench.fuzz_reach import Recorder, changed_since, fingerprint
from bench.fuzz_targets import TARGETS
from bench.fuzz_targets.target import Target
from bench.fuzz_traced import TooMuchMemory, check_memory
from bench.fuzz_worker import TRACED_EVERY, Run
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


@pytest.mark.parametrize(
    ("name", "findings"),
    [
        pytest.param("batch", 0, id="a fresh process takes little for the same input"),
        pytest.param("unknown", 1, id="a fresh process that fails refutes nothing"),
    ],
)
def test_too_much_memory_must_show_in_a_fresh_process(folder, name: str, findings: int) -> None:
    run = Run(Target(name, lambda data: bytes(2 << 20), memory_max=1 << 20), folder)
    for _ in range(TRACED_EVERY):
        run.one(b"abc")
    run.finish()
    assert len(read_stats(folder).findings) == findings


def test_a_fresh_process_finds_too_much_memory(tmp_path, monkeypatch) -> None:
    greedy = Target("batch", lambda data: bytes(len(data) << 20), memory_max=1 << 20)
    monkeypatch.setitem(TARGETS, "batch", greedy)
    (tmp_path / "input").write_bytes(b"abc")
    with pytest.raises(TooMuchMemory):
        fuzz_traced.main("batch", tmp_path / "input")


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


READER = """
from ternmesh.limits import SIZE_MAX, Head, unpack
from ternmesh import limits

KINDS = {1: unpack}
OTHER = 5


class Reader:
    def read(self, data):
        return limits.cut(data, SIZE_MAX) or self.later(data)

    def later(self, data):
        return OTHER


def read(data):
    return Reader().read(Head(KINDS[data[0]]))


def unused(data):
    return data + OTHER
"""
LIMITS = """
HALF = 8
SIZE_MAX = HALF * 2


class Head:
    kind: int


def unpack(data):
    return data[1:]


def cut(data, size):
    '''The first bytes.'''
    return data[:size]


def unused():
    return 3
"""
CALLED = {"ternmesh.reader": ["Reader.read", "read"], "ternmesh.limits": ["cut"]}


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Writes two modules; with a text replaced; and gives the fingerprint of what was called."""
    monkeypatch.setattr(fuzz_reach, "ROOT", tmp_path)
    (tmp_path / "ternmesh").mkdir()

    def write(old: str = "", new: str = "") -> str:
        for name, source in (("reader", READER), ("limits", LIMITS)):
            path = tmp_path / "ternmesh" / f"{name}.py"
            path.write_text(source.replace(old, new) if old else source)
        assert not old or old in READER + LIMITS
        return fingerprint("settings", CALLED)

    return write


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def unused", "# why\ndef unused"),
        ("return data + OTHER", "return data"),
        ("return 3", "return 4"),
        ("return OTHER", "return 6"),
        ("OTHER = 5", "OTHER = 6"),
        ("The first bytes", "Some bytes"),
        ("def unused", "def another():\n    pass\n\n\ndef unused"),
    ],
)
def test_what_a_target_did_not_run_does_not_count(code, old, new) -> None:
    assert code() == code(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return data[:size]", "return data[1:size]"),
        ("HALF = 8", "HALF = 9"),
        ("KINDS = {1", "KINDS = {2"),
        ("return data[1:]", "return data[2:]"),
        ("kind: int", "kind: str"),
        ("class Reader:\n", "class Reader:\n    def __bool__(self):\n        pass\n\n"),
        ("kind: int", "kind: int\n\n    def __post_init__(self):\n        check(self)"),
        ("class Reader:", "class Reader(Head):"),
        ("SIZE_MAX, Head,", "Head,"),
        ("def cut", "def cut2"),
    ],
)
def test_what_a_target_ran_counts_with_what_it_names(code, old, new) -> None:
    assert code() != code(old, new)


def test_a_file_that_changes_while_it_is_fuzzed_is_noticed(code, tmp_path) -> None:
    code()
    moment = max(path.stat().st_mtime for path in (tmp_path / "ternmesh").iterdir())
    assert not changed_since(CALLED, moment)
    assert changed_since(CALLED, moment - 1)
    (tmp_path / "ternmesh" / "limits.py").unlink()
    assert changed_since(CALLED, moment)


def test_the_functions_that_are_called_are_recorded() -> None:
    recorder = Recorder()
    recorder.run(TARGETS["scale"], [b"\xff\xff", b"\x00\x04"])
    reach = recorder.reach()
    assert {"decode_scale", "encode_scale"} <= set(reach["ternmesh.hypervector.scale"])
    assert "Target.run" in reach["bench.fuzz_targets.target"]


def test_inputs_behind_one_that_recurses_too_deep_are_recorded_too() -> None:
    def recurse(data: bytes) -> None:
        TARGETS["scale"].run(data)
        if data == b"deep":
            recurse(data)

    recorder = Recorder()
    deep = Target("deep", recurse, refusals=(RecursionError, WireError))
    recorder.run(deep, [b"deep", b"\x00\x04"])
    assert "floor_scale" in recorder.reach()["ternmesh.hypervector.scale"]


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """What the process has computed, in seconds."""
    spent = [0.0]
    monkeypatch.setattr(fuzz_worker.time, "process_time", lambda: spent[0])
    return spent


def test_seconds_are_those_that_the_process_computes(folder, clock) -> None:
    run = Run(Target("fragile", fragile), folder)
    run.one(b"a")
    clock[0] = 0.75
    run.finish()
    assert read_stats(folder) == Stats(1, 0.75, (), 0.0)


def test_an_input_that_takes_long_is_a_finding(folder, clock) -> None:
    def check(data: bytes) -> None:
        clock[0] += len(data)

    run = Run(Target("slow", check), folder)
    for data in (b"a", b"abc", b"ab"):
        run.one(data)
    stats = read_stats(folder)
    (finding,) = stats.findings
    assert Path(finding.input).read_bytes() == b"ab"
    assert "2.00 s for one input" in finding.what
    assert stats.slowest_s == 3.0


ROW = {"executions": 9, "seconds": 600.0, "slowest_s": 0.0, "findings": []}


def test_a_finished_target_is_found_again_until_its_code_changes(code, tmp_path) -> None:
    code()
    target, path, later = Target("reader", fragile), tmp_path / "fuzz.jsonl", 1e12
    assert FuzzParts(path).valid(target, 1.0) is None
    assert FuzzParts(path).add(target, ROW, CALLED, later)
    assert FuzzParts(path).add(Target("other", fragile), ROW, CALLED, later)
    found = FuzzParts(path).valid(target, 600.0)
    assert found is not None
    assert found["executions"] == 9
    assert FuzzParts(path).valid(target, 600.1) is None
    assert FuzzParts(path).valid(Target("reader", fragile, length_max=5), 1.0) is None
    code("HALF = 8", "HALF = 9")
    assert FuzzParts(path).valid(target, 1.0) is None


def test_what_found_something_or_changed_meanwhile_is_not_kept(code, tmp_path) -> None:
    code()
    target, parts = Target("reader", fragile), FuzzParts(tmp_path / "fuzz.jsonl")
    assert not parts.add(target, ROW | {"findings": [{}]}, CALLED, 1e12)
    assert not parts.add(target, ROW, CALLED, 0.0)
    assert parts.valid(target, 1.0) is None


@pytest.fixture
def campaign(code, tmp_path, monkeypatch):
    """Fuzzes targets `a` to `c` with a process that does not fuzz."""
    code()
    monkeypatch.setattr(fuzz_corpus, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(fuzz.os, "cpu_count", lambda: 1)
    monkeypatch.setattr(fuzz.time, "time", lambda: 1e12)
    targets = [Target(name, lambda data: None) for name in "abc"]
    done: list[str] = []

    def process(self, module, target, folder, *more) -> int:
        if module == "bench.fuzz_reach":
            (folder / REACH).write_text(json.dumps(CALLED))
            return 0
        if target.name == process.stop_at:
            raise KeyboardInterrupt
        if target.name == process.fail_at:
            raise RuntimeError("it ended with -9")
        done.append(target.name)
        (folder / CORPUS / "new").write_bytes(b"new")
        write_stats(folder, Stats(5, float(more[0]), ()))
        return 0

    process.stop_at = process.fail_at = ""
    monkeypatch.setattr(fuzz.Campaign, "_process", process)
    parts = FuzzParts(tmp_path / "fuzz.jsonl")
    return process, done, lambda seconds: fuzz.Campaign(targets, seconds, parts).run()


def test_a_run_that_is_interrupted_goes_on_where_it_was(campaign, capsys) -> None:
    process, done, run = campaign
    process.stop_at = "c"
    with pytest.raises(KeyboardInterrupt):
        run(60.0)
    process.stop_at = ""
    rows = run(60.0)
    assert list(rows) == done == ["a", "b", "c"]
    assert "2 of 3 targets are done already" in capsys.readouterr().out
    assert run(30.0)["a"]["seconds"] == 60.0  # a longer run serves as well
    assert run(61.0)["a"]["seconds"] == 61.0


def test_a_target_that_fails_does_not_end_the_others(campaign, capsys) -> None:
    process, done, run = campaign
    process.fail_at = "a"
    with pytest.raises(RuntimeError, match=r"1 targets could not be fuzzed\na: .*ended with -9"):
        run(60.0)
    assert done == ["b", "c"]
    assert "a: RuntimeError('it ended with -9')" in capsys.readouterr().out
    process.fail_at = ""
    assert list(run(60.0)) == ["a", "b", "c"]
    assert done == ["b", "c", "a"]


def test_what_is_kept_of_two_targets_is_not_run_at_once(campaign, monkeypatch) -> None:
    _, _, run = campaign
    monkeypatch.setattr(fuzz.os, "cpu_count", lambda: 3)
    running, most = [], []

    def keep_slowly(target, inputs) -> int:
        running.append(target.name)
        most.append(len(running))
        time.sleep(0.05)
        running.remove(target.name)
        return 0

    monkeypatch.setattr(fuzz, "keep", keep_slowly)
    run(60.0)
    assert most == [1, 1, 1]


def test_an_input_that_was_found_is_printed_whole_as_nothing_else_outlives_a_kill() -> None:
    found = {"where": "f.py:1", "what": "ValueError", "input": "ab" * 400}
    said = fuzz._progress("a", {"executions": 9, "findings": [found]}, 1, 2, 60.0)
    assert "ab" * 400 in said
