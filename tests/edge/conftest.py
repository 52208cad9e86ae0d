"""A tiny linear model as a package, written with onnx alone, so that no test here needs torch."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from edge.data.sources import FolderData
from edge.onnx.session import LoadedModel, load_model
from edge.releases.store import make_release
from models.tails import FrozenFront, write_tail
from ternmesh import model_package
from tests.edge.fleet import World

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'ternmesh[dev]'")

INPUTS, OUTPUTS, RANK, BATCH = 6, 3, 2, 8
SIZE_A, SIZE_B = INPUTS * RANK, RANK * OUTPUTS
SLOPE = np.linspace(-0.5, 0.5, INPUTS * OUTPUTS, dtype=np.float32).reshape(INPUTS, OUTPUTS)


def model_file(text: str, **constants) -> bytes:
    """The file of a graph in onnx's own notation, with these initializers."""
    head = '<ir_version: 9, opset_import: ["": 20]> tiny '
    made = onnx.parser.parse_model(head + text)
    for name, array in constants.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return made.SerializeToString()


def _forward() -> bytes:
    """y = x W + (x A) B; A and B are initializers of rank 0 that an adapter overrides."""
    return model_file(
        f"(float[n, {INPUTS}] x, float[{INPUTS}, r] A, float[r, {OUTPUTS}] B)"
        f" => (float[n, {OUTPUTS}] y)"
        """ {
            base = MatMul (x, W)
            xA = MatMul (x, A)
            change = MatMul (xA, B)
            y = Add (base, change)
        }""",
        W=SLOPE,
        A=np.zeros((INPUTS, 0), np.float32),
        B=np.zeros((0, OUTPUTS), np.float32),
    )


def _train_step() -> bytes:
    """loss = mean((x W + x A B - t)^2) and its gradient by hand."""
    size = SIZE_A + SIZE_B
    return model_file(
        f"(float[{size}] adapter, float[{BATCH}, {INPUTS}] x, float[{BATCH}, {OUTPUTS}] t)"
        f" => (float loss, float[{size}] gradient)"
        """ {
            a, b = Split <axis = 0> (adapter, sizes)
            A = Reshape (a, shape_A)
            B = Reshape (b, shape_B)
            base = MatMul (x, W)
            xA = MatMul (x, A)
            change = MatMul (xA, B)
            y = Add (base, change)
            error = Sub (y, t)
            squares = Mul (error, error)
            loss = ReduceMean <keepdims = 0> (squares)
            dy = Mul (error, two_over_size)
            xA_T = Transpose (xA)
            dB = MatMul (xA_T, dy)
            B_T = Transpose (B)
            dxA = MatMul (dy, B_T)
            x_T = Transpose (x)
            dA = MatMul (x_T, dxA)
            gA = Reshape (dA, flat)
            gB = Reshape (dB, flat)
            gradient = Concat <axis = 0> (gA, gB)
        }""",
        W=SLOPE,
        sizes=[SIZE_A, SIZE_B],
        shape_A=[INPUTS, RANK],
        shape_B=[RANK, OUTPUTS],
        flat=[-1],
        two_over_size=np.float32(2 / (BATCH * OUTPUTS)),
    )


def _write(folder: Path, changes: Mapping[str, bytes] = MappingProxyType({})) -> None:
    initial = np.zeros(SIZE_A + SIZE_B, np.float32)
    initial[:SIZE_A] = np.random.default_rng(0).standard_normal(SIZE_A) * 0.5
    contents = {
        model_package.FORWARD: _forward(),
        model_package.TRAIN_STEP: _train_step(),
        model_package.ADAPTER: initial.astype("<f4").tobytes(),
        **changes,
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    package = model_package.ModelPackage(
        name="tiny",
        version=1,
        inputs=(model_package.TensorSpec("x", "float32", (-1, INPUTS)),),
        outputs=(model_package.TensorSpec("y", "float32", (-1, OUTPUTS)),),
        batch_inputs=(
            model_package.TensorSpec("x", "float32", (BATCH, INPUTS)),
            model_package.TensorSpec("t", "float32", (BATCH, OUTPUTS)),
        ),
        adapter=(
            model_package.TensorSpec("A", "float32", (INPUTS, RANK)),
            model_package.TensorSpec("B", "float32", (RANK, OUTPUTS)),
        ),
        metric="mean_absolute_error",
        files={name: hashlib.sha256(contents[name]).hexdigest() for name in model_package.FILES},
    )
    (folder / "model.json").write_bytes(model_package.write_model_package(package))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """y = x W + x A B, x of 6 and y of 3 numbers, rank 2: an adapter of 18 numbers."""
    folder = tmp_path_factory.mktemp("tiny")
    _write(folder)
    return load_model(folder)


@pytest.fixture(scope="session")
def classes(tiny: LoadedModel) -> model_package.ModelPackage:
    """The same model as one that tells three classes apart."""
    target = model_package.TensorSpec("t", "int64", (BATCH,))
    inputs = (tiny.package.batch_inputs[0], target)
    return replace(tiny.package, batch_inputs=inputs, metric="accuracy")


def front_file(slope: float = 1.0) -> bytes:
    """A front that sees its whole window: tanh(slope (x - max x) M), of 4 numbers one row of 2."""
    return model_file(
        "(float[1, 4] sound) => (float[1, 2] row) {"
        " most = ReduceMax (sound, axis)  low = Sub (sound, most)"
        " mixed = MatMul (low, M)  row = Tanh (mixed) }",
        axis=[1],
        M=np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], np.float32) * np.float32(slope),
    )


FrontedPackage = Callable[..., LoadedModel]


@pytest.fixture(scope="session")
def new_fronted(tmp_path_factory: pytest.TempPathFactory) -> FrontedPackage:
    """A function that makes a classifier of two labels on four rows of 10 numbers: D is 18."""

    def make(slope: float = 1.0, rate: int = 0, down: str = "down") -> LoadedModel:
        folder = tmp_path_factory.mktemp("front")
        spec = model_package.FrontSpec(window=4, hop=2, rows=4, scale=0.5, rate=rate)
        front = FrozenFront(
            spec, front_file(slope), model_package.TensorSpec("sound", "float32", (-1, 10))
        )
        tail: Any = {"rows": 4, "width": 2, "classes": 2, "labels": (down, "up"), "batch": 8}
        write_tail(folder, name="tiny", front=front, **tail)
        return load_model(folder)

    return make


@pytest.fixture(scope="session")
def fronted(new_fronted: FrontedPackage) -> LoadedModel:
    return new_fronted()


@pytest.fixture(scope="session")
def slopes() -> dict[str, np.ndarray]:
    """Samples of 10 numbers that fall or rise."""
    rng = np.random.default_rng(2)
    target = np.arange(96) % 2
    line = np.linspace(-1, 1, 10) * (2 * target[:, None] - 1)
    return {"sound": (line + rng.normal(0, 0.3, (96, 10))).astype(np.float32), "target": target}


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
