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


def test_a_group_is_carried_over_if_one_of_it_came_out_the_same(tmp_path: Path) -> None:
    group = ["arm/0", "arm/1", "arm/2"]
    old = Parts("long", "old", tmp_path)
    for index, part in enumerate(group):
        old.add(part, {"accuracy": index / 4, "train_s": 1.0})
    new = Parts("long", "new", tmp_path)
    assert not new.carry_over("arm/0", group, ["train_s"])  # nothing was measured yet
    new.add("arm/0", {"accuracy": 0.0, "train_s": 2.0})
    new.add("arm/2", {"accuracy": 0.9, "train_s": 2.0})
    assert not new.carry_over("arm/0", group, ())  # the times differ
    assert not new.carry_over("arm/2", group, ["train_s"])
    assert set(new.all()) == {"arm/0", "arm/2"}
    assert new.carry_over("arm/0", group, ["train_s"])
    assert new.all()["arm/1"] == {"accuracy": 0.25, "train_s": 1.0}
    assert new.all()["arm/2"]["accuracy"] == 0.9  # what was measured stands
    assert new.carried() == ["arm/1"]
    assert new.old()["arm/1"] == new.all()["arm/1"]


def test_comments_and_docstrings_are_not_code() -> None:
    same = SOURCE.replace("Of a circle", "In square metres").replace("# The", "# A")
    assert code_of(same) == code_of(SOURCE)
    assert code_of(SOURCE.replace("**2", "**3")) != code_of(SOURCE)


def test_the_fingerprint_is_of_settings_and_imported_code() -> None:
    assert fingerprint("a", ("bench",)) == fingerprint("a", ("bench",))
    assert fingerprint("a", ("bench",)) != fingerprint("b", ("bench",))
    assert fingerprint("a", ("bench",)) != fingerprint("a", ("json",))
