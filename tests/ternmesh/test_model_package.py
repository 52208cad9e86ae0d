"""What model.json may say. A release brings one from afar."""

import json
from dataclasses import replace
from hashlib import sha256

import pytest

from models.zoo import package_path
from ternmesh.errors import ModelPackageError
from ternmesh.model_package import (
    FILES,
    FORWARD,
    FRONT,
    FrontSpec,
    ModelPackage,
    TensorSpec,
    fits_adapter,
    keeps_adapter,
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


FRONTED = replace(
    PACKAGE,
    inputs=(TensorSpec("sound", "float32", (-1, 10)),),
    batch_inputs=(TensorSpec("x", "float32", (8, 4, 2)), TensorSpec("y", "int64", (8,))),
    files=dict.fromkeys((*FILES, FRONT), "0" * 64),
    front=FrontSpec(window=4, hop=2, rows=4, scale=0.5, rate=16_000),
)


def test_a_package_without_a_front_is_what_it_was() -> None:
    """Boards and hosts know it by this hash, and what they keep of it by this key."""
    package = read_model_package((package_path("keyword") / "model.json").read_bytes())
    assert package.model_hash().hex().startswith("af3848f954851f58")
    assert sha256(package.adapter_key()).hexdigest().startswith("0d092f703563ef47")
    assert (package.outside(), package.tail()) == (package, package)


def test_a_front_is_a_part_of_the_model() -> None:
    assert read_model_package(write_model_package(FRONTED)) == FRONTED
    content = json.loads(write_model_package(FRONTED))
    assert content["format"] == 2
    assert content["front"] == {"window": 4, "hop": 2, "rows": 4, "scale": 0.5, "rate": 16_000}
    other = replace(FRONTED, files={**FRONTED.files, FRONT: "1" * 64})
    assert other.model_hash() != FRONTED.model_hash()
    key, plain = FRONTED.adapter_key(), PACKAGE.adapter_key()
    assert fits_adapter(key, other.adapter_key())  # so that a host may begin a run of it
    assert not keeps_adapter(key, other.adapter_key())
    assert not keeps_adapter(plain, key)
    assert not keeps_adapter(key, plain)
    graph = replace(FRONTED, files={**FRONTED.files, FORWARD: "1" * 64})
    assert keeps_adapter(key, graph.adapter_key())
    assert FRONTED.outside().batch_inputs[0] == TensorSpec("sound", "float32", (8, 10))
    assert FRONTED.tail().inputs == (TensorSpec("x", "float32", (-1, 4, 2)),)


def fronted(**changes: object) -> dict[str, object]:
    front = {"window": 4, "hop": 2, "rows": 4, "scale": 0.5, "rate": 0} | changes
    return {"front": front}


def sized(*shape: int) -> dict[str, object]:
    return {"inputs": [{"name": "sound", "dtype": "float32", "shape": shape}]}


@pytest.mark.parametrize(
    "change",
    [
        {"format": 1},
        {"front": None},
        {"front": {"window": 4}},
        {"files": PACKAGE.files},
        fronted(window=5),
        fronted(window=0),
        fronted(hop=0),
        fronted(rows=0),
        fronted(rows=3, hop=3),
        fronted(rate=-1),
        fronted(scale=0.0),
        fronted(scale=float("nan")),
        fronted(scale="1"),
        fronted(rows=True),
        sized(-1, 11),
        sized(-1),
        fronted(hop=5) | sized(-1, 19),
        fronted(window=1 << 24) | sized(-1, (1 << 24) + 6),
    ],
    ids=str,
)
def test_a_front_that_does_not_fit_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ModelPackageError):
        read_model_package(json.dumps(json.loads(write_model_package(FRONTED)) | change).encode())


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
