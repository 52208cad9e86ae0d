"""Code, table and guide agree on the reasons of refusals, and on what to do."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ternmesh.federated.events import FRAME_SIZE, OLD_MEMBERS, OTHER
from ternmesh.federated.refusals import NAMES_SHOWN, SENTENCES, shortened, why

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "troubleshooting.md").read_text()
SPEC = (ROOT / "docs" / "SPEC.md").read_text().partition("### 6.6 ")[2].partition("### 6.7 ")[0]
PACKAGES = ("ternmesh", "transports", "edge", "host", "ternmesh_service", "ternmesh_store")
# Reasons that are counted without an error, and those that end a pipeline instead
COUNTED = {FRAME_SIZE, OLD_MEMBERS, OTHER, "duplicate", "damaged object", "unheard"}
PIPELINE = ROOT / "host" / "pipeline"


def raised() -> Iterator[str]:
    """The reasons in the code, as they stand behind WireError or SealError."""
    sources = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    for path in sources:
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            if call.func.id in ("WireError", "SealError") and PIPELINE not in path.parents:
                reason = call.args[0]
                yield (
                    FRAME_SIZE if ast.unparse(reason) == "FRAME_SIZE" else ast.literal_eval(reason)
                )


def test_the_table_has_each_reason_of_the_code_and_no_other() -> None:
    assert set(SENTENCES) == set(raised()) | COUNTED


def test_the_specification_names_no_reason_without_a_sentence() -> None:
    named = re.findall(r"^\| ([a-z, ]+) \|", SPEC, re.MULTILINE)
    words = {word for row in named for word in row.split(", ")} - {"reason"}
    assert len(words) > 40
    assert words <= set(SENTENCES)


@pytest.mark.parametrize("reason", SENTENCES)
def test_the_guide_has_a_row_for_each_reason(reason: str) -> None:
    node, host = SENTENCES[reason]
    assert f"\n| `{reason}` | {node} | {host} |\n" in GUIDE
    assert (why(reason, on_host=False), why(reason, on_host=True)) == (node, host)


def test_the_guide_has_no_other_row() -> None:
    assert set(re.findall(r"^\| `([a-z ]+)` \|", GUIDE, re.MULTILINE)) == set(SENTENCES)
    assert "versions of ternmesh" in why("made up", on_host=False)


def test_a_long_list_is_in_order_and_cut() -> None:
    assert shortened(["c", "a", "b"]) == "a, b, c"
    assert shortened("dcba") == "a, b, c, d"
    assert shortened(map(str, range(9))) == f"0, 1, 2 and {9 - NAMES_SHOWN} more"
