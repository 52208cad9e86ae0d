"""Tails without torch: a linear head or one hidden layer on rows, as a model package.

All weights are in the adapter vector. The gradient of the softmax cross-entropy is built here, of
operators that boards run.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ternmesh.extras import installed

with installed("adapt", "a package without torch needs the package onnx"):
    import onnx
    from onnx import numpy_helper

from models.errors import ExportError
from models.package_files import FRONT, check_folder, write_folder
from ternmesh.model_package import (
    ADAPTER,
    FORWARD,
    TRAIN_STEP,
    ModelPackage,
    TensorSpec,
    read_model_package,
    write_model_package,
)

HEADER = '<ir_version: 9, opset_import: ["": 18]> tail '
FORMAT = 2  # of a package with a front

Array = NDArray[Any]
Tensors = Mapping[str, NDArray[np.float32]]

# Of logits [batch, classes] and target [batch]: the loss, and its gradient `change` by the logits.
# GatherElements stops at a label that is no class.
CROSS_ENTROPY = """
    places = Unsqueeze (target, last)
    log_p = LogSoftmax <axis = 1> (logits)
    picked = GatherElements <axis = 1> (log_p, places)
    mean_picked = ReduceMean <keepdims = 0> (picked)
    loss = Neg (mean_picked)
    p = Softmax <axis = 1> (logits)
    is_target = Equal (places, every_class)
    wanted = Cast <to = 1> (is_target)
    excess = Sub (p, wanted)
    change = Div (excess, batch_size)
"""
_LAYERS = (
    "logits = Gemm (x, head_weight, head_bias)",
    """hidden = Gemm (x, hidden_weight, hidden_bias)
    active = Relu (hidden)
    logits = Gemm (active, head_weight, head_bias)""",
)
_GRADIENTS = (
    """d_head_weight = Gemm <transA = 1> (x, change)
    d_head_bias = ReduceSum <keepdims = 0> (change, first)""",
    """d_head_weight = Gemm <transA = 1> (active, change)
    d_head_bias = ReduceSum <keepdims = 0> (change, first)
    back = Gemm <transB = 1> (change, head_weight)
    is_active = Greater (hidden, zero)
    d_hidden = Where (is_active, back, zero)
    d_hidden_weight = Gemm <transA = 1> (x, d_hidden)
    d_hidden_bias = ReduceSum <keepdims = 0> (d_hidden, first)""",
)


def write_tail(
    folder: Path,
    *,
    rows: int,
    width: int,
    classes: int,
    hidden: int | None = None,
    labels: Sequence[str] = (),
    name: str,
    front: Mapping[str, Any] | None,
    front_file: Path | None,
    batch: int = 16,
    seed: int = 0,
    head: tuple[Array, Array] | None = None,
) -> ModelPackage:
    """Write the package of a head on rows float32 [batch, rows, width], and return its description.

    Without `hidden` the head is linear and begins at zero, or at `head`, a weight [rows * width,
    classes] and a bias [classes]; else it has a layer of so many numbers with ReLU, drawn from
    `seed`. `front` (window, hop, rows, scale, rate of model.json, format 2) and `front_file`, a
    frozen graph that makes one row of a window, come together; a window of 0 is a whole sample, and
    the rows then are [batch, width], as they are for one row without a front. The inputs of
    such a package are raw samples, but `batch_inputs` are rows. ExportError for what does not fit.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp(), "tail")
    >>> write_tail(
    ...     folder, rows=3, width=8, classes=2, name="tail", front=None, front_file=None
    ... ).dimension
    50
    """
    check_folder(folder)
    if min(rows, width, batch) < 1 or classes < 2 or (hidden is not None and hidden < 1):
        raise ExportError("a tail has at least one row, number and sample, and two classes")
    if (front is None) != (front_file is None):
        raise ExportError("a front needs both its description and its file")
    shape = (width,) if rows == 1 and not (front and front["window"]) else (rows, width)
    adapter = _initial(rows * width, classes, hidden, seed, head)
    rows_spec = TensorSpec("features", "float32", (-1, *shape))
    contents = {
        FORWARD: _forward(shape, adapter),
        TRAIN_STEP: _train_step(shape, adapter, batch),
        ADAPTER: vector_of(adapter).astype("<f4").tobytes(),
    }
    batch_inputs = (
        TensorSpec("features", "float32", (batch, *shape)),
        TensorSpec("target", "int64", (batch,)),
    )
    raw = rows_spec if front_file is None else raw_input(front or {}, front_file)
    described = ModelPackage(
        name=name,
        version=1,
        inputs=(raw,),
        outputs=(TensorSpec("output", "float32", (-1, classes)),),
        batch_inputs=batch_inputs,
        adapter=specs_of(adapter),
        metric="accuracy",
        files={},
        labels=tuple(labels),
    )
    return write_package(folder, described, contents, front, front_file)


def write_package(
    folder: Path,
    package: ModelPackage,
    contents: Mapping[str, bytes],
    front: Mapping[str, Any] | None = None,
    front_file: Path | None = None,
) -> ModelPackage:
    """Write a package with the hashes of its files, of format 2 where there is a front."""
    hashes = {file: hashlib.sha256(data).hexdigest() for file, data in contents.items()}
    package = read_model_package(write_model_package(replace(package, files=hashes)))  # checks it
    if front_file is None:
        write_folder(folder, write_model_package(package), contents)
        return package
    contents = {**contents, FRONT: front_file.read_bytes()}
    hashes[FRONT] = hashlib.sha256(contents[FRONT]).hexdigest()
    package = replace(package, files=hashes)
    fields = json.loads(write_model_package(package))
    fields |= {"format": FORMAT, "front": dict(front or {})}
    write_folder(folder, json.dumps(fields, sort_keys=True, indent=1).encode(), contents)
    return package


def raw_input(front: Mapping[str, Any], file: Path) -> TensorSpec:
    """The samples that a front takes: as long as its windows, or one input without windows."""
    [value] = onnx.load_model(str(file), load_external_data=False).graph.input
    if window := front["window"]:
        shape = [window + (front["rows"] - 1) * front["hop"]]
    else:
        shape = [axis.dim_value for axis in value.type.tensor_type.shape.dim][1:]
    return TensorSpec(value.name, "float32", (-1, *shape))


def vector_of(adapter: Tensors) -> NDArray[np.float32]:
    """The adapter vector (float32, D) of these tensors."""
    return np.concatenate([tensor.ravel() for tensor in adapter.values()]).astype(np.float32)


def specs_of(adapter: Tensors) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, "float32", tensor.shape) for name, tensor in adapter.items())


def graph_of(text: str, constants: Mapping[str, Array]) -> onnx.ModelProto:
    """The model of onnx's own notation, with these constants or default values of inputs."""
    model = onnx.parser.parse_model(HEADER + text)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(value), key)
        for key, value in constants.items()
    )
    return model


def bytes_of(model: onnx.ModelProto) -> bytes:
    """The same bytes for the same graph."""
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def split_text(adapter: Tensors) -> tuple[str, dict[str, Array]]:
    """Nodes that cut the input `adapter` into its tensors, and their constants."""
    parts = ", ".join(f"part_{at}" for at in range(len(adapter)))
    lines = [f"{parts} = Split <axis = 0> (adapter, sizes)"]
    constants: dict[str, Array] = {"sizes": np.array([t.size for t in adapter.values()])}
    for at, (name, tensor) in enumerate(adapter.items()):
        lines.append(f"{name} = Reshape (part_{at}, shape_{at})")
        constants[f"shape_{at}"] = np.array(tensor.shape, np.int64)
    return "\n    ".join(lines), constants


def loss_constants(batch: int, classes: int) -> dict[str, Array]:
    """The constants of CROSS_ENTROPY."""
    return {
        "last": np.array([1]),
        "every_class": np.arange(classes)[None],
        "batch_size": np.float32(batch),
        "flat": np.array([-1]),
    }


def _initial(
    inputs: int, classes: int, hidden: int | None, seed: int, head: tuple[Array, Array] | None
) -> dict[str, NDArray[np.float32]]:
    weight, bias = np.zeros((inputs, classes), np.float32), np.zeros(classes, np.float32)
    if hidden is None:
        if head is not None:
            weight, bias = (np.asarray(part, np.float32) for part in head)
        if (weight.shape, bias.shape) != ((inputs, classes), (classes,)):
            raise ExportError(f"the head must begin at a weight of {(inputs, classes)} and a bias")
        return {"head_weight": weight, "head_bias": bias}
    rng = np.random.default_rng(seed)
    first = rng.standard_normal((inputs, hidden)) * (2 / inputs) ** 0.5
    second = rng.standard_normal((hidden, classes)) * hidden**-0.5
    return {
        "hidden_weight": first.astype(np.float32),
        "hidden_bias": np.zeros(hidden, np.float32),
        "head_weight": second.astype(np.float32),
        "head_bias": bias,
    }


def _flatten(shape: Sequence[int]) -> str:
    return "x = Flatten (features)" if len(shape) > 1 else "x = Identity (features)"


def _axes(*sizes: object) -> str:
    return f"float[{', '.join(map(str, sizes))}]"


def _forward(shape: Sequence[int], adapter: Tensors) -> bytes:
    inputs = ", ".join(f"{_axes(*tensor.shape)} {key}" for key, tensor in adapter.items())
    classes = adapter["head_bias"].size
    layers = _LAYERS["hidden_weight" in adapter].replace("logits", "output")
    text = (
        f"({_axes('n', *shape)} features, {inputs}) => ({_axes('n', classes)} output) {{\n"
        f"    {_flatten(shape)}\n    {layers}\n}}"
    )
    return bytes_of(graph_of(text, adapter))


def _train_step(shape: Sequence[int], adapter: Tensors, batch: int) -> bytes:
    size, has_hidden = sum(tensor.size for tensor in adapter.values()), "hidden_weight" in adapter
    cut, constants = split_text(adapter)
    ends = [f"flat_{key} = Reshape (d_{key}, flat)" for key in adapter]
    joined = ", ".join(f"flat_{key}" for key in adapter)
    text = (
        f"(float[{size}] adapter, {_axes(batch, *shape)} features, int64[{batch}] target)"
        f" => (float loss, float[{size}] gradient) {{\n    {cut}\n    {_flatten(shape)}\n"
        f"    {_LAYERS[has_hidden]}{CROSS_ENTROPY}    {_GRADIENTS[has_hidden]}\n    "
        + "\n    ".join(ends)
        + f"\n    gradient = Concat <axis = 0> ({joined})\n}}"
    )
    constants |= loss_constants(batch, adapter["head_bias"].size)
    constants["first"] = np.array([0])
    if has_hidden:
        constants["zero"] = np.float32(0)
    return bytes_of(graph_of(text, constants))
