"""Files that boards open: models, releases and their standing, samples, and a child's answer."""

import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import cache

import numpy as np

from bench.fuzz_targets.programs import odd
from bench.fuzz_targets.target import Target, number, same, scratch_folder
from bench.fuzz_targets.trust import _model, _release
from edge import onnx_reader
from edge.errors import DataError, ModelError
from edge.model_trial import _read_answer
from edge.onnx_check import check_file
from edge.releases import MANIFEST, SIGNATURES, STANDING, Releases, accept_unsigned
from edge.session import DESCRIPTION, load_bundle
from edge.sources import NpzSettings, open_folder
from ternmesh.bundle import (
    ADAPTER,
    FILES,
    FORWARD,
    TRAIN_STEP,
    Bundle,
    TensorSpec,
    write_bundle,
)
from ternmesh.errors import BundleError, TrustError
from ternmesh.release import write_manifest
from ternmesh.rollout import adopt, attempt, fail

_FALLS_MAX = 4
_BUNDLE_FILES = (ADAPTER, FORWARD, TRAIN_STEP, DESCRIPTION)
_BUNDLE_D = 4
_ONE = TensorSpec("x", "float32", (-1, 2))
_BUNDLE = Bundle("tiny", 1, (_ONE,), (_ONE,), (TensorSpec("x", "float32", (4, 2)),), (), "", {})


def _check_onnx_file(data: bytes) -> None:
    """What is taken means the same to the onnx package, and has no data in another file."""
    path = scratch_folder() / "forward.onnx"
    path.write_bytes(data)
    check_file(path)
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    ours = onnx_reader.read_model(memoryview(data)).graph
    try:
        theirs = onnx.load_from_string(data).graph
    except DecodeError:
        return
    kinds = [node.operator for node in ours.nodes]
    same(kinds, [node.op_type.encode() for node in theirs.node], "the operators of a model")
    for tensor in theirs.initializer:
        same(onnx.external_data_helper.uses_external_data(tensor), False, "data elsewhere")


def _models() -> Iterator[bytes]:
    """Small ones that use what growth and padding are checked by."""
    from onnx import TensorProto, helper, numpy_helper

    def model(*nodes: object, **constants: list[int]) -> bytes:
        tensors = [
            numpy_helper.from_array(np.array(value, np.int64), name)
            for name, value in constants.items()
        ]
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "xy")
        graph = helper.make_graph(list(nodes), "g", [x], [y], tensors)
        opset = [helper.make_opsetid("", 20)]
        content: bytes = helper.make_model(
            graph, opset_imports=opset, ir_version=9
        ).SerializeToString()
        return content

    node = helper.make_node
    yield _model()
    yield model(node("Pad", ["x", "p"], ["y"]), p=[0, 1, 0, 1])
    yield model(node("ConstantOfShape", ["s"], ["c"]), node("Add", ["x", "c"], ["y"]), s=[2, 2])
    yield model(node("Expand", ["x", "s"], ["y"]), s=[2, 2])
    yield model(node("Cast", ["x"], ["y"], to=TensorProto.FLOAT))
    yield model(node("MaxPool", ["x"], ["y"], kernel_shape=[1, 1], pads=[0, 1, 0, 1]))


def _check_standing(data: bytes) -> None:
    """Whatever the file says, a board that cannot open a release ends at the configured bundle."""
    folder = scratch_folder() / "standing"
    folder.mkdir(exist_ok=True)
    (folder / STANDING).write_bytes(data)
    standing = Releases(folder, accept_unsigned).standing()
    standing = attempt(adopt(standing, [1, 2]))
    for _ in range(_FALLS_MAX):
        if standing.current == 0:
            break
        asdict(standing)
        standing = fail(standing, "it does not load")
    same(standing.current, 0, "what a board runs in the end")


def _check_release_folder(data: bytes) -> None:
    folder = scratch_folder() / "3"
    folder.mkdir(exist_ok=True)
    cut = number(data, 0, 2)
    (folder / MANIFEST).write_bytes(data[2 : 2 + cut])
    (folder / SIGNATURES).write_bytes(data[2 + cut :])
    found = Releases(scratch_folder(), accept_unsigned).read(folder)
    same(write_manifest(found), data[2 : 2 + cut], "a release's manifest")


def _check_bundle_folder(data: bytes) -> None:
    """One file of a bundle holds something else, and its description says so or is that file."""
    folder, whole = scratch_folder() / "bundle", _bundle_files()
    folder.mkdir(exist_ok=True)
    name = _BUNDLE_FILES[number(data, 0, 1) % len(_BUNDLE_FILES)]
    files = {**whole, name: data[1:]}
    if name != DESCRIPTION:
        files[DESCRIPTION] = _description(files)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    loaded = load_bundle(folder)
    same(loaded.initial.size, loaded.bundle.dimension, "the numbers of an adapter")
    same(bool(np.isfinite(loaded.initial).all()), True, "finite numbers")


@cache
def _bundle_files() -> dict[str, bytes]:
    files = {FORWARD: _model(), TRAIN_STEP: _model(), ADAPTER: bytes(4 * _BUNDLE_D)}
    return {**files, DESCRIPTION: _description(files)}


def _description(files: Mapping[str, bytes]) -> bytes:
    hashes = {name: hashlib.sha256(files[name]).hexdigest() for name in FILES}
    adapter = (TensorSpec("a", "float32", (_BUNDLE_D,)),)
    return write_bundle(replace(_BUNDLE, adapter=adapter, metric="accuracy", files=hashes))


def _bundle_folders() -> Iterator[bytes]:
    for index, name in enumerate(_BUNDLE_FILES):
        content = _bundle_files()[name]
        yield bytes((index,)) + content
        yield bytes((index,)) + content[:-1]


def _check_answer(data: bytes) -> None:
    seconds = _read_answer(scratch_folder(), data)
    same(type(seconds), float, "a latency")


def _check_npz(data: bytes) -> None:
    """A whole file, or an array in a zip that is right, whatever the array says."""
    path, content = scratch_folder() / "a.npz", data[1:]
    if data[:1] < b"\x80":
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("x.npy" if data[:1] < b"\x40" else "x", content)
        content = packed.getvalue()
    path.write_bytes(content)
    found = open_folder(path, _BUNDLE, NpzSettings({}, {}))
    same(len(found) > 0, True, "samples")


def _arrays() -> Iterator[bytes]:
    packed, plain = io.BytesIO(), io.BytesIO()
    values = np.ones((3, 2), np.float32)
    np.savez(packed, x=values)
    np.lib.format.write_array(plain, values)
    yield b"\xff" + packed.getvalue()
    yield b"\0" + plain.getvalue()
    yield b"\0" + plain.getvalue().replace(b"(3, 2)", b"((((2)")
    yield b"\0" + plain.getvalue().replace(b"<f4", b"|V0")
    yield b"\0" + plain.getvalue().replace(b"(3, 2)", b"(0, 2)")
    yield b"\0\x93NUMPY\x01\x00" + (900).to_bytes(2, "little") + b"(" * 900


TARGETS = (
    Target(
        "onnx_file", _check_onnx_file, _models, (ModelError,), length_max=2048, memory_max=2 << 20
    ),
    Target(
        "standing",
        _check_standing,
        lambda: odd(
            b'{"current": 2, "last_good": 1, "floor": 2, "attempts": 1, "bad": [[1, "x"]]}'
        ),
    ),
    Target(
        "release_folder",
        _check_release_folder,
        lambda: [b"\xff\x03" + _release()],
        (ModelError, BundleError, TrustError),
    ),
    Target(
        "load_bundle",
        _check_bundle_folder,
        _bundle_folders,
        (ModelError,),
        length_max=2048,
        memory_max=2 << 20,
    ),
    Target(
        "trial_answer",
        _check_answer,
        lambda: [*odd(b'{"latency_s": 0.5}'), b'{"error": "no"}'],
        (ModelError,),
    ),
    Target("npz", _check_npz, _arrays, (DataError,), length_max=2048),
)
