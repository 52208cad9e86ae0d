"""How a bug is planted: a function of the product is replaced by a wrong one for a test."""

from collections.abc import Callable
from typing import Any

import pytest

# Who has the function, its name, and what makes the wrong one of the right one
Bug = tuple[Any, str, Callable[[Any], Any]]


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
