"""Jobs of a benchmark: each is kept when it ends, and what is kept is not run again."""

from pathlib import Path

import pytest

from bench.jobs import Job, finish
from bench.parts import Parts

MODULE = """
import json, os, sys
if sys.argv[1] == "bad":
    sys.exit(3)
print("not the last line")
print(json.dumps({"said": sys.argv[1], "threads": os.environ["OMP_NUM_THREADS"]}))
"""


def job(word: str) -> Job:
    return Job(f"part/{word}", f"the {word}", ("a_job_of_this_test", word))


def test_jobs_are_kept_and_only_what_is_missing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_job_of_this_test.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    parts = Parts("jobs", "abc", tmp_path)
    parts.add("part/first", {"said": "before"})
    finish(parts, [job("first"), job("second")], lambda value: str(value["said"]))
    assert capsys.readouterr().out == "1/1 the second: second; 0 min left\n"
    with pytest.raises(SystemExit, match="the bad ended with 3"):
        finish(parts, [job("bad")], str)
    assert parts.all() == {
        "part/first": {"said": "before"},
        "part/second": {"said": "second", "threads": "1"},
    }
