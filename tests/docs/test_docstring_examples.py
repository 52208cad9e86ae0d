"""Each public name has an example, and each example in a docstring does what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

from bench.house import BENCH, PRODUCT, ROOT

PUBLIC = [
    (package, name)
    for package in ("ternmesh", "edge", "host")
    for name in importlib.import_module(package).__all__
    if name != "__version__"
]
SOURCES = [path for room in PRODUCT + BENCH for path in (ROOT / room).rglob("*.py")]
WITH_EXAMPLES = [path for path in SOURCES if "    >>> " in path.read_text()]


@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_a_public_name_has_an_example(package: str, name: str) -> None:
    assert ">>> " in (getattr(importlib.import_module(package), name).__doc__ or "")


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_do_what_they_say(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert not doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed
