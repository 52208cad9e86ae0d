"""How a bug is planted: a function of the product is replaced by a wrong one for a test."""

from collections.abc import Callable, Collection
from typing import Any

import pytest

# Who has the function, its name, and what makes the wrong one of the right one
Bug = tuple[Any, str, Callable[[Any], Any]]


def groups(count: int, daily: int) -> pytest.MarkDecorator:
    """The groups of seeds of a test: the first `daily` run each day, all of them at night."""
    marks = [pytest.mark.nightly if group >= daily else () for group in range(count)]
    numbers = [pytest.param(group, marks=mark) for group, mark in enumerate(marks)]
    return pytest.mark.parametrize("group", numbers)


def each(bugs: Collection[str], *dear: str) -> pytest.MarkDecorator:
    """Each planted bug; the `dear` ones, which need many seeds, at night."""
    marks = (pytest.mark.nightly if bug in dear else () for bug in bugs)
    bugs_marked = [pytest.param(bug, marks=mark) for bug, mark in zip(bugs, marks, strict=True)]
    return pytest.mark.parametrize("mutant", bugs_marked)


def plant(patch: pytest.MonkeyPatch, *bugs: Bug) -> None:
    for owner, name, spoil in bugs:
        patch.setattr(owner, name, spoil(getattr(owner, name)))


def instead(wrong: Any) -> Callable[[Any], Any]:
    """Nothing of the right function, or number, is left."""
    return lambda _right: wrong


def keeping(part: str, name: str) -> Callable[[Any], Callable[..., Any]]:
    """A method that leaves what it should replace: the attribute `name` of the part."""

    def spoil(right: Any) -> Callable[..., Any]:
        def method(self: Any, *rest: Any) -> None:
            kept = getattr(getattr(self, part), name)
            right(self, *rest)
            setattr(getattr(self, part), name, kept)

        return method

    return spoil
