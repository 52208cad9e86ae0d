"""A model package: the files that a board needs to run and train one model.

A model package is a folder with `model.json`, `forward.onnx`, `train_step.onnx` and `adapter.f32`,
and in format 2 also `front.onnx`.
This module reads and writes the description, `model.json`; models/ and edge/ do the file I/O.

- `forward.onnx`: data inputs, and one overridable initializer for each adapter tensor (symbolic
  rank).
- `train_step.onnx`: inputs `adapter` (float32, length D) and one batch; outputs `loss` (scalar) and
  `gradient` (float32, length D). The batch size is fixed in the graph.
- `adapter.f32`: the initial adapter vector, D little-endian float32.
- `front.onnx`: a frozen graph with one float32 input and one float32 output, which makes one row of
  numbers of one window of a sample. The other graphs, the tail, then take rows float32 [batch,
  rows, width], or [batch, width] where the front takes whole samples.

The adapter vector is the adapter tensors in the order of `adapter`, each flattened in C order.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import ModelPackageError
from ternmesh.types import Vector

FORMAT, FRONT_FORMAT = 1, 2  # the second one is that of packages with a front
FORWARD, TRAIN_STEP, ADAPTER = "forward.onnx", "train_step.onnx", "adapter.f32"
FRONT = "front.onnx"
FILES = (FORWARD, TRAIN_STEP, ADAPTER)  # of every package
TENSORS_MAX = 4096
LABEL_MAX = 64  # characters
DIMENSION_MAX = 1 << 26
SAMPLE_MAX = 1 << 24  # numbers in the sample that a front takes
METRICS = ("accuracy", "mean_absolute_error")
DOMAINS: Final = (b"", b"ai.onnx")  # of operators: two names of the same domain
# The operators that a board runs. The first paragraph is what models.export has written so far; the
# others are of the same kinds: elementwise operators, reductions, the usual layers. Left out on
# purpose: control flow (Loop, If, Scan), random numbers, text, sequences, sizes from values
# (NonZero, Unique, Compress, OneHot, Range, Tile, Resize), and the newest kernels.
OPERATORS: Final = frozenset(
    b"""
    Abs Add Cast Concat Constant ConstantOfShape Conv Div Equal Erf Exp Expand GRU Gather
    GatherElements Gelu Gemm Greater LayerNormalization Less LogSoftmax MatMul MaxPool Mul Neg Not
    Pad ReduceMax ReduceMean ReduceSum Relu Reshape ScatterElements ScatterND Shape Sigmoid Slice
    Softmax Split Squeeze Sub Tanh Transpose Unsqueeze Where

    And Ceil Clip Cos Elu Floor GreaterOrEqual HardSigmoid HardSwish Identity IsNaN LeakyRelu
    LessOrEqual Log Max Mean Min Mish Mod Or PRelu Pow Reciprocal Round Selu Sign Sin Softplus
    Softsign Sqrt Sum Xor
    ArgMax ArgMin CumSum ReduceL1 ReduceL2 ReduceLogSumExp ReduceMin ReduceProd ReduceSumSquare
    AveragePool GlobalAveragePool GlobalMaxPool LSTM RNN
    BatchNormalization GroupNormalization InstanceNormalization
    Flatten GatherND Size Trilu
    ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul
    QuantizeLinear
    """.split()
)
# The errors of json and int for a text that is not a description, or is too deep or too large.
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The name, type and shape of a tensor, as in the ONNX graph."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # -1 is the batch axis, whose size the caller chooses


@dataclass(frozen=True, slots=True)
class FrontSpec:
    """How front.onnx is used: on each window of a sample, whose numbers are times `scale`."""

    window: int  # numbers of the sample; 0: the whole sample
    hop: int  # numbers from the begin of a window to that of the next one
    rows: int  # of one sample, one from each window
    scale: float
    rate: int  # Hz of sound; 0: it is no sound

    @property
    def length(self) -> int:
        """The numbers of a sample; 0 where a window is a whole sample."""
        return self.window + (self.rows - 1) * self.hop


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """The content of model.json.

    >>> from edge import load_model
    >>> from models.zoo import package_path
    >>> package = load_model(package_path("keyword")).package
    >>> package.name, package.metric, package.inputs[0].shape
    ('keyword', 'accuracy', (-1, 50, 32))
    """

    name: str
    version: int
    inputs: tuple[TensorSpec, ...]  # of forward.onnx; with a front, the one of a whole sample
    outputs: tuple[TensorSpec, ...]  # of forward.onnx
    batch_inputs: tuple[TensorSpec, ...]  # of train_step.onnx, fixed shapes: data, then targets
    adapter: tuple[TensorSpec, ...]
    metric: str  # how predictions are judged: "accuracy" (argmax) or "mean_absolute_error"
    files: Mapping[str, str]  # file name to SHA-256 in hex
    labels: tuple[str, ...] = ()  # the names of the classes, where they have names
    front: FrontSpec | None = None
    # By input, the rows of the table that its numbers look up: of the graphs, not of model.json
    table_sizes: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def dimension(self) -> int:
        """D, the length of the adapter vector."""
        return sum(math.prod(tensor.shape) for tensor in self.adapter)

    @property
    def batch(self) -> int:
        """The number of samples in one training step."""
        return self.batch_inputs[0].shape[0]

    def model_hash(self) -> bytes:
        """The 32-byte SHA-256 that identifies this model, its files and its initial adapter.

        It is without the labels: boards that name classes otherwise learn together.
        """
        return hashlib.sha256(write_model_package(replace(self, labels=()))).digest()

    def adapter_key(self) -> bytes:
        """What tells which other models can take an adapter of this one: see `keeps_adapter`."""
        shape = json.dumps([asdict(tensor) for tensor in self.adapter]).encode()
        files = [file for file in (FORWARD, ADAPTER, FRONT) if file in self.files]
        parts = shape, *(self.files[file].encode() for file in files)
        return b"".join(hashlib.sha256(part).digest() for part in parts)

    def outside(self) -> "ModelPackage":
        """The package for those who bring samples: a batch holds inputs of the front, no rows."""
        raw = (replace(spec, shape=(self.batch, *spec.shape[1:])) for spec in self.inputs)
        batch = (*raw, *self.batch_inputs[1:])
        return replace(self, batch_inputs=batch) if self.front else self

    def tail(self) -> "ModelPackage":
        """The package for those who train on samples that have passed the front: rows go in."""
        rows = self.batch_inputs[0]
        inputs = (replace(rows, shape=(-1, *rows.shape[1:])),)
        return replace(self, inputs=inputs, front=None) if self.front else self

    def split(self, vector: Vector) -> dict[str, NDArray[np.float32]]:
        """The adapter tensors by name, as views into `vector`."""
        if vector.shape != (self.dimension,):
            raise ModelPackageError(
                f"{self.name} has an adapter of {self.dimension} numbers, not {vector.shape}"
            )
        ends = np.cumsum([math.prod(tensor.shape) for tensor in self.adapter])
        parts = zip(self.adapter, np.split(vector, ends[:-1]), strict=True)
        return {tensor.name: part.reshape(tensor.shape) for tensor, part in parts}


def fits_adapter(old: bytes | None, new: bytes) -> bool:
    """Whether the adapters of two `adapter_key` have the same tensors in the same order."""
    return bool(old and new and old[:32] == new[:32])


def keeps_adapter(old: bytes | None, new: bytes) -> bool:
    """Whether what was learned with one model is kept with another, by their `adapter_key`.

    It is where the adapter fits, but not where only the initial adapter of the same graph differs:
    a model that `ternmesh export` has written begins with what was learned. With another front, the
    rows mean something else.
    """
    if old is None or old[96:] != new[96:]:
        return False
    is_learned = old[32:64] == new[32:64] and old[64:96] != new[64:96]
    return fits_adapter(old, new) and not is_learned


def write_model_package(package: ModelPackage) -> bytes:
    """The bytes of model.json, with sorted keys: equal packages give equal bytes."""
    content = {"format": FRONT_FORMAT if package.front else FORMAT, **asdict(package)}
    del content["table_sizes"]
    if package.front is None:
        del content["front"]
    if not package.labels:
        del content["labels"]  # as it was before there were labels
    return json.dumps(content, sort_keys=True, indent=1).encode()


def read_model_package(data: bytes) -> ModelPackage:
    """The model package that `data` (the bytes of model.json) describes, or ModelPackageError.

    >>> from models.zoo import package_path
    >>> read_model_package((package_path("keyword") / "model.json").read_bytes()).labels[:2]
    ('zero', 'one')
    """
    try:
        content = json.loads(data)
        if content.pop("format") != (FRONT_FORMAT if "front" in content else FORMAT):
            raise ModelPackageError(
                f"this model package's format is not {FORMAT}, or {FRONT_FORMAT} with a front: "
                "export the model again"
            )
        for key in ("inputs", "outputs", "batch_inputs", "adapter"):
            content[key] = tuple(
                TensorSpec(str(t["name"]), str(t["dtype"]), tuple(map(int, t["shape"])))
                for t in content[key]
            )
        content["labels"] = tuple(content.get("labels", ()))
        if "front" in content:
            content["front"] = FrontSpec(**content["front"])
        package = ModelPackage(**content)
    except _MALFORMED as error:
        raise ModelPackageError(
            f"model.json does not describe a model package ({error}): copy it again"
        ) from error
    _check_types(package)
    _check_values(package)
    return package


def _check_types(package: ModelPackage) -> None:
    files = package.files if type(package.files) is dict else {"": None}
    texts = {type(t) for t in (package.name, package.metric, *package.labels, *files.values())}
    if texts != {str} or type(package.version) is not int:
        raise ModelPackageError(
            "a model package's name, metric, labels and hashes must be text, its version a whole "
            "number"
        )


def _check_values(package: ModelPackage) -> None:
    if not 0 < len(package.adapter) <= TENSORS_MAX:
        raise ModelPackageError(f"a model package has 1 to {TENSORS_MAX} adapter tensors")
    if any(size <= 0 for tensor in package.adapter for size in tensor.shape):
        raise ModelPackageError("an adapter tensor's shape has a size that is not positive")
    if package.dimension > DIMENSION_MAX:
        raise ModelPackageError(f"an adapter has at most {DIMENSION_MAX} numbers")
    if not package.inputs or not package.outputs or not package.batch_inputs:
        raise ModelPackageError(
            "a model package must have at least one input, one output and one batch input"
        )
    if any(min(tensor.shape, default=0) <= 0 for tensor in package.batch_inputs):
        raise ModelPackageError(
            "a batch input has no shape, or one with a size that is not positive"
        )
    if package.metric not in METRICS:
        raise ModelPackageError(
            f"metric is {package.metric!r}: it must be one of {', '.join(METRICS)}"
        )
    classes = (0, *package.outputs[0].shape)[-1]
    good = {one for one in package.labels if 0 < len(one) <= LABEL_MAX and one.isprintable()}
    if package.labels and (len(good), len(package.labels)) != (classes, classes):
        raise ModelPackageError(
            f"labels must name each of the {classes} classes once, in 1 to {LABEL_MAX} printable "
            "characters"
        )
    files = (*FILES, FRONT) if package.front else FILES
    if set(package.files) != set(files):
        raise ModelPackageError(f"files must list exactly {', '.join(files)}")
    if package.front is not None:
        _check_front(package, package.front)


def _check_front(package: ModelPackage, front: FrontSpec) -> None:
    """ModelPackageError unless samples and rows have the shapes that the front says."""
    numbers = (front.window, front.hop, front.rows, front.rate)
    is_typed = {*map(type, numbers)} == {int} and type(front.scale) in (int, float)
    is_whole = is_typed and front.window == 0
    is_good = is_typed and min(numbers) >= 0 < front.rows and front.hop <= front.window
    is_good &= front.rows == 1 or front.hop > 0
    if not is_good or not 0 < abs(front.scale) < math.inf:
        raise ModelPackageError(
            "a front has a window, a hop of up to that and rows, or window 0, hop 0 and 1 row; a "
            "rate from 0 on; and a scale"
        )
    sample, rows = package.inputs[0], package.batch_inputs[0]
    is_fit = min(sample.shape[1:], default=0) > 0
    is_fit &= is_whole or sample.shape == (-1, front.length)
    is_fit &= len(package.inputs) == 1 and math.prod(sample.shape[1:]) <= SAMPLE_MAX
    is_fit &= len(rows.shape) > 1 and rows.shape[1:-1] == (() if is_whole else (front.rows,))
    if not is_fit or (sample.dtype, rows.dtype) != ("float32", "float32"):
        raise ModelPackageError(
            f"a package with a front has one input float32 (-1, {front.length}), or whole samples, "
            f"of up to {SAMPLE_MAX} numbers, and its batch begins with {front.rows} rows of each"
        )
