"""The public API has an example for each name, and each example does what it says."""

import doctest
import importlib
import inspect

import pytest

PUBLIC = [
    (package, name)
    for package in ("ternmesh", "edge", "host")
    for name in importlib.import_module(package).__all__
    if name != "__version__"
]


@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_the_example_of_a_public_name(package: str, name: str) -> None:
    public = getattr(importlib.import_module(package), name)
    module = inspect.getmodule(public)
    assert module is not None
    [test] = doctest.DocTestFinder(recurse=False).find(public, name, globs=vars(module).copy())
    assert test.examples, f"{package}.{name} has no example"
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert failed == 0
