import subprocess
from pathlib import Path

import pytest

from bench import result


def test_a_kept_result_does_not_change_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*ask: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *ask], check=True, capture_output=True)

    monkeypatch.setattr(result, "__file__", str(tmp_path / "bench" / "result.py"))
    assert result.commit() == "unknown"
    kept, code = tmp_path / "docs" / "results" / "link.json", tmp_path / "code.py"
    kept.parent.mkdir(parents=True)
    for path in (kept, code):
        path.write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    head = result.commit()
    assert len(head) == 12
    kept.write_text("2")
    assert result.commit() == head
    code.write_text("2")
    assert result.commit() == f"{head}+"
