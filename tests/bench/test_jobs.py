"""Jobs of a benchmark: each is kept when it ends, and what is kept is not run again."""

from pathlib import Path

import pytest

from bench.jobs import Finished, Job, finish

MODULE = """
import json, os, sys
if sys.argv[1] == "bad":
    sys.exit(3)
print("not the last line")
print(json.dumps({"said": sys.argv[1], "threads": os.environ["OMP_NUM_THREADS"]}))
"""


def job(word: str) -> Job:
    return Job(f"part/{word}", ("a_job_of_this_test", word))


def test_jobs_are_kept_and_only_what_is_missing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_job_of_this_test.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = tmp_path / "parts.jsonl"
    finished = Finished(path)
    finished.add("part/first", {"said": "before"})
    capsys.readouterr()
    finish(finished, [job("first"), job("second")], lambda value: str(value["said"]))
    assert capsys.readouterr().out == "1/1 part/second: second; 0 min left\n"
    with pytest.raises(SystemExit, match="part/bad ended with 3"):
        finish(finished, [job("bad")], str)
    assert Finished(path).values == {
        "part/first": {"said": "before"},
        "part/second": {"said": "second", "threads": "1"},
    }
