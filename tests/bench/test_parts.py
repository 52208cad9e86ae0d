from pathlib import Path

from bench.parts import Parts, code_of, fingerprint

SOURCE = '''
"""A module."""

import math


def area(radius: float) -> float:
    """Of a circle."""
    # The well-known formula.
    return math.pi * radius**2
'''


def test_a_part_is_found_again_by_the_same_code(tmp_path: Path) -> None:
    parts = Parts("long", "abc", tmp_path / "new")
    assert parts.all() == {}
    parts.add("arm/0", {"accuracy": 0.5})
    parts.add("arm/1", {"accuracy": 0.75})
    assert Parts("long", "abc", tmp_path / "new").all() == {
        "arm/0": {"accuracy": 0.5},
        "arm/1": {"accuracy": 0.75},
    }
    assert Parts("long", "other code", tmp_path / "new").all() == {}
    assert Parts("other", "abc", tmp_path / "new").all() == {}


def test_old_parts_can_be_dropped(tmp_path: Path) -> None:
    Parts("long", "old", tmp_path).add("arm/0", 1)
    new = Parts("long", "new", tmp_path)
    new.add("arm/0", 2)
    new.forget_old()
    assert new.all() == {"arm/0": 2}
    assert Parts("long", "old", tmp_path).all() == {}


def test_comments_and_docstrings_are_not_code() -> None:
    same = SOURCE.replace("Of a circle", "In square metres").replace("# The", "# A")
    assert code_of(same) == code_of(SOURCE)
    assert code_of(SOURCE.replace("**2", "**3")) != code_of(SOURCE)


def test_the_fingerprint_is_of_settings_and_imported_code() -> None:
    assert fingerprint("a", ("bench",)) == fingerprint("a", ("bench",))
    assert fingerprint("a", ("bench",)) != fingerprint("b", ("bench",))
    assert fingerprint("a", ("bench",)) != fingerprint("a", ("json",))
