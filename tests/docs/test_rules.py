"""Tests cite rules of SPEC.md by their ids, as comments: every id that is cited must be there."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ID = re.compile(r"\bR\d+(?:\.\d+)?-\d+\b")
SPEC = (ROOT / "docs" / "SPEC.md").read_text()
RULES = Counter(re.findall(rf"^- \*\*({ID.pattern})\*\*", SPEC, re.MULTILINE))
CITING = [path for path in (ROOT / "tests").rglob("*.py") if ID.search(path.read_text())]


def test_a_rule_has_one_id() -> None:
    assert len(RULES) > 200
    assert set(RULES.values()) == {1}


@pytest.mark.parametrize("path", CITING, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_test_cites_is_a_rule(path: Path) -> None:
    assert set(ID.findall(path.read_text())) <= set(RULES)
