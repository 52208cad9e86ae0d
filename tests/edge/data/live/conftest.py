"""Descriptions of models for the built-in sources."""

from collections.abc import Callable
from typing import Any

import pytest

from edge.data.live.base import LiveSource
from edge.data.live.options import BUILT_IN
from edge.data.sources import make_source
from ternmesh.model_package import ModelPackage, TensorSpec

WORDS = ("no", "yes", "stop")


def new_package(*shape: int, regression: bool = False) -> ModelPackage:
    """One float input `x` of this shape; the target `target` is a class of three, or a number."""
    target = TensorSpec("target", "float32", (4, 1)) if regression else None
    return ModelPackage(
        name="small",
        version=1,
        inputs=(TensorSpec("x", "float32", (-1, *shape)),),
        outputs=(TensorSpec("y", "float32", (-1, 1 if regression else 3)),),
        batch_inputs=(
            TensorSpec("x", "float32", (4, *shape)),
            target or TensorSpec("target", "int64", (4,)),
        ),
        adapter=(),
        metric="mean_absolute_error" if regression else "accuracy",
        files={},
        labels=() if regression else WORDS,
    )


@pytest.fixture
def package() -> Callable[..., ModelPackage]:
    return new_package


@pytest.fixture
def source():
    """A function that makes a built-in source; it is closed after the test."""
    made: list[LiveSource] = []

    def make(name: str, package: ModelPackage, **options: Any) -> LiveSource:
        assert name in BUILT_IN
        made.append(make_source(name, options, package=package))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()
