"""What model.json may say. A release brings one from afar."""

import json
from dataclasses import replace

import pytest

from ternmesh.errors import ModelPackageError
from ternmesh.model_package import (
    FILES,
    ModelPackage,
    TensorSpec,
    read_model_package,
    write_model_package,
)

SPEC = TensorSpec("x", "float32", (-1, 4))
PACKAGE = ModelPackage(
    name="tiny",
    version=1,
    inputs=(SPEC,),
    outputs=(SPEC,),
    batch_inputs=(TensorSpec("x", "float32", (8, 4)), TensorSpec("y", "int64", (8,))),
    adapter=(TensorSpec("a", "float32", (2, 3)), TensorSpec("b", "float32", (4,))),
    metric="accuracy",
    files=dict.fromkeys(FILES, "0" * 64),
)
CONTENT = json.loads(write_model_package(PACKAGE))


def test_a_bundle_reads_as_written() -> None:
    assert read_model_package(write_model_package(PACKAGE)) == PACKAGE
    assert (PACKAGE.dimension, PACKAGE.batch) == (10, 8)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"name": 3},
        {"name": None},
        {"version": "1"},
        {"version": 1.5},
        {"version": True},
        {"metric": ["accuracy"]},
        {"metric": "luck"},
        {"files": 5},
        {"files": None},
        {"files": list(FILES)},
        {"files": [[]]},
        {"files": {**PACKAGE.files, FILES[0]: 7}},
        {"files": {**PACKAGE.files, "../more": "0" * 64}},
        {"adapter": []},
        {"adapter": 3},
        {"adapter": [{"name": "a", "dtype": "float32", "shape": [0]}]},
        {"adapter": [{"name": "a", "dtype": "float32", "shape": [1 << 27]}]},
        {"adapter": [{"name": "a", "dtype": "float32", "shape": [float("inf")]}]},
        {"adapter": [{"name": "a", "dtype": "float32", "shape": [float("nan")]}]},
        {"batch_inputs": [{"name": "x", "dtype": "float32", "shape": []}]},
        {"batch_inputs": [{"name": "x", "dtype": "float32", "shape": [0, 4]}]},
        {"batch_inputs": [{"name": "x", "dtype": "float32", "shape": [8, -4]}]},
        {"batch_inputs": []},
        {"inputs": []},
        {"surprise": 1},
        {"labels": 5},
        {"labels": "abcd"[:3]},
        {"labels": ["a", "b", "c"]},
        {"labels": ["a", "b", "c", "c"]},
        {"labels": ["a", "b", "c", ""]},
        {"labels": ["a", "b", "c", "d" * 65]},
        {"labels": ["a", "b", "c", "\x1b[2J"]},
        {"labels": ["a", "b", "c", 4]},
    ],
    ids=str,
)
def test_what_is_no_bundle_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ModelPackageError):
        read_model_package(json.dumps(CONTENT | change).encode())


@pytest.mark.parametrize("text", [b"", b"[]", b"3", b"\xff\xfe", b"[" * 100_000, b'{"format": 1}'])
def test_other_texts_are_refused(text: bytes) -> None:
    with pytest.raises(ModelPackageError):
        read_model_package(text)


def test_labels_are_not_part_of_what_is_learned() -> None:
    named = replace(PACKAGE, labels=("a", "b", "c", "d"))
    assert read_model_package(write_model_package(named)) == named
    assert named.model_hash() == PACKAGE.model_hash()
    assert "labels" not in CONTENT  # packages of before keep their bytes


def test_any_change_is_another_model() -> None:
    assert replace(PACKAGE, version=2).model_hash() != PACKAGE.model_hash()
