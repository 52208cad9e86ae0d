"""A tiny linear model as a package, written with onnx alone, so that no test here needs torch."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from edge.data.sources import FolderData
from edge.onnx.session import LoadedModel, load_model
from edge.releases.store import make_release
from ternmesh.model_package import (
    ADAPTER,
    FILES,
    FORWARD,
    TRAIN_STEP,
    ModelPackage,
    TensorSpec,
    write_model_package,
)
from tests.edge.fleet import World

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'ternmesh[dev]'")

INPUTS, OUTPUTS, RANK, BATCH = 6, 3, 2, 8
SIZE_A, SIZE_B = INPUTS * RANK, RANK * OUTPUTS
SLOPE = np.linspace(-0.5, 0.5, INPUTS * OUTPUTS, dtype=np.float32).reshape(INPUTS, OUTPUTS)


def _model(nodes, inputs, outputs, constants) -> bytes:
    graph = onnx.helper.make_graph(nodes, "tiny", inputs, outputs, constants)
    opset = [onnx.helper.make_opsetid("", 20)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


def _value(name, shape, kind=None):
    return onnx.helper.make_tensor_value_info(name, kind or onnx.TensorProto.FLOAT, shape)


def _constant(name, array):
    return onnx.numpy_helper.from_array(array, name)


def _node(kind, inputs, output, **attributes):
    return onnx.helper.make_node(kind, inputs, [output], **attributes)


def _forward() -> bytes:
    """y = x W + (x A) B; A and B are initializers of rank 0 that an adapter overrides."""
    nodes = [
        _node("MatMul", ["x", "W"], "base"),
        _node("MatMul", ["x", "A"], "xA"),
        _node("MatMul", ["xA", "B"], "change"),
        _node("Add", ["base", "change"], "y"),
    ]
    constants = [
        _constant("W", SLOPE),
        _constant("A", np.zeros((INPUTS, 0), np.float32)),
        _constant("B", np.zeros((0, OUTPUTS), np.float32)),
    ]
    inputs = [_value("x", ["n", INPUTS]), _value("A", [INPUTS, "r"]), _value("B", ["r", OUTPUTS])]
    return _model(nodes, inputs, [_value("y", ["n", OUTPUTS])], constants)


def _train_step() -> bytes:
    """loss = mean((x W + x A B - t)^2) and its gradient by hand."""
    nodes = [
        _node("Split", ["adapter", "sizes"], "a", axis=0),
        _node("Reshape", ["a", "shape_A"], "A"),
        _node("Reshape", ["b", "shape_B"], "B"),
        _node("MatMul", ["x", "W"], "base"),
        _node("MatMul", ["x", "A"], "xA"),
        _node("MatMul", ["xA", "B"], "change"),
        _node("Add", ["base", "change"], "y"),
        _node("Sub", ["y", "t"], "error"),
        _node("Mul", ["error", "error"], "squares"),
        _node("ReduceMean", ["squares"], "loss", keepdims=0),
        _node("Mul", ["error", "two_over_size"], "dy"),
        _node("Transpose", ["xA"], "xA_T"),
        _node("MatMul", ["xA_T", "dy"], "dB"),
        _node("Transpose", ["B"], "B_T"),
        _node("MatMul", ["dy", "B_T"], "dxA"),
        _node("Transpose", ["x"], "x_T"),
        _node("MatMul", ["x_T", "dxA"], "dA"),
        _node("Reshape", ["dA", "flat"], "gA"),
        _node("Reshape", ["dB", "flat"], "gB"),
        _node("Concat", ["gA", "gB"], "gradient", axis=0),
    ]
    nodes[0].output.append("b")
    constants = [
        _constant("W", SLOPE),
        _constant("sizes", np.array([SIZE_A, SIZE_B])),
        _constant("shape_A", np.array([INPUTS, RANK])),
        _constant("shape_B", np.array([RANK, OUTPUTS])),
        _constant("flat", np.array([-1])),
        _constant("two_over_size", np.float32(2 / (BATCH * OUTPUTS))),
    ]
    inputs = [
        _value("adapter", [SIZE_A + SIZE_B]),
        _value("x", [BATCH, INPUTS]),
        _value("t", [BATCH, OUTPUTS]),
    ]
    outputs = [_value("loss", []), _value("gradient", [SIZE_A + SIZE_B])]
    return _model(nodes, inputs, outputs, constants)


def _write(folder: Path, changes: Mapping[str, bytes] = MappingProxyType({})) -> None:
    initial = np.zeros(SIZE_A + SIZE_B, np.float32)
    initial[:SIZE_A] = np.random.default_rng(0).standard_normal(SIZE_A) * 0.5
    contents = {
        FORWARD: _forward(),
        TRAIN_STEP: _train_step(),
        ADAPTER: initial.astype("<f4").tobytes(),
        **changes,
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    package = ModelPackage(
        name="tiny",
        version=1,
        inputs=(TensorSpec("x", "float32", (-1, INPUTS)),),
        outputs=(TensorSpec("y", "float32", (-1, OUTPUTS)),),
        batch_inputs=(
            TensorSpec("x", "float32", (BATCH, INPUTS)),
            TensorSpec("t", "float32", (BATCH, OUTPUTS)),
        ),
        adapter=(
            TensorSpec("A", "float32", (INPUTS, RANK)),
            TensorSpec("B", "float32", (RANK, OUTPUTS)),
        ),
        metric="mean_absolute_error",
        files={name: hashlib.sha256(contents[name]).hexdigest() for name in FILES},
    )
    (folder / "model.json").write_bytes(write_model_package(package))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """y = x W + x A B, x of 6 and y of 3 numbers, rank 2: an adapter of 18 numbers."""
    folder = tmp_path_factory.mktemp("tiny")
    _write(folder)
    return load_model(folder)


@pytest.fixture(scope="session")
def classes(tiny: LoadedModel) -> ModelPackage:
    """The same model as one that tells three classes apart."""
    target = TensorSpec("t", "int64", (BATCH,))
    inputs = (tiny.package.batch_inputs[0], target)
    return replace(tiny.package, batch_inputs=inputs, metric="accuracy")


@pytest.fixture
def tiny_copy(tmp_path: Path) -> Path:
    """The same package in a folder that the test may spoil."""
    folder = tmp_path / "package"
    folder.mkdir()
    _write(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_data() -> dict[str, np.ndarray]:
    """Samples of another linear map than the base: there is something to learn."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((96, INPUTS)).astype(np.float32)
    change = np.outer(rng.standard_normal(INPUTS), rng.standard_normal(OUTPUTS)) * 0.5
    return {"x": x, "t": (x @ (SLOPE + change)).astype(np.float32)}


@pytest.fixture(scope="session")
def tiny_samples(tiny: LoadedModel, tiny_data: dict[str, np.ndarray]) -> FolderData:
    """The same as a data set."""
    return FolderData(tiny.package, tiny_data, 1.0)


@pytest.fixture
def world(tiny: LoadedModel, tiny_data: dict[str, np.ndarray], tmp_path: Path) -> Iterator[World]:
    """A host, and data of the boards ada and bob, and of both to evaluate on."""
    parts = {"ada": slice(0, 40), "bob": slice(40, 80), "dev": slice(80, 96)}
    data = {name: {key: a[part] for key, a in tiny_data.items()} for name, part in parts.items()}
    made = World(tiny, data, tmp_path)
    made.new_host()
    yield made
    made.close()


Release = Callable[..., Path]


@pytest.fixture
def new_release(tmp_path: Path) -> Release:
    """A function that makes one more release of the tiny model; `spoil` may change it before."""

    def make(
        version: int,
        loss_max: float = 100.0,
        latency_max_s: float = 100.0,
        spoil: Callable[[Path], None] | None = None,
        changes: dict[str, bytes] | None = None,
        name: str = "release",
    ) -> Path:
        package = tmp_path / f"package-{name}-{version}"
        package.mkdir()
        _write(package, changes or {})
        release = tmp_path / f"{name}-{version}"
        make_release(package, release, version, (loss_max, latency_max_s))
        if spoil is not None:
            spoil(release)
        return release

    return make
