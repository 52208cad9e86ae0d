"""Tails without torch: a linear head or one hidden layer on rows, as a model package.

All weights are in the adapter vector. The gradient of the softmax cross-entropy is built here, of
operators that boards run.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ternmesh.extras import installed

with installed("adapt", "a package without torch needs the package onnx"):
    import onnx
    from onnx import numpy_helper

from models.package_files import check_folder, write_folder
from ternmesh.model_package import (
    ADAPTER,
    FORWARD,
    FRONT,
    TRAIN_STEP,
    FrontSpec,
    ModelPackage,
    TensorSpec,
)

HEADER = '<ir_version: 9, opset_import: ["": 18]> tail '

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


@dataclass(frozen=True, slots=True)
class FrozenFront:
    """A graph that makes one row of a window, and the sample that it is for."""

    spec: FrontSpec
    graph: bytes
    sample: TensorSpec  # with a free batch axis


def write_tail(
    folder: Path,
    *,
    rows: int,
    width: int,
    classes: int,
    hidden: int | None = None,
    labels: Sequence[str] = (),
    name: str,
    front: FrozenFront | None = None,
    batch: int = 16,
    seed: int = 0,
    head: tuple[Array, Array] | None = None,
) -> ModelPackage:
    """Write the package of a head on rows float32 [batch, rows, width], and return its description.

    Without `hidden` the head is linear and begins at zero, or at `head`, a weight [rows * width,
    classes] and a bias [classes]; else it has a layer of so many numbers with ReLU, drawn from
    `seed`. Rows are [batch, width] for a front of whole samples, and for one row without a front.
    ExportError where something is in the folder already.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp(), "tail")
    >>> write_tail(folder, rows=3, width=8, classes=2, name="tail").dimension
    50
    """
    shape = (width,) if rows == 1 and not (front and front.spec.window) else (rows, width)
    adapter = _initial(rows * width, classes, hidden, seed, head)
    return write_package(
        folder,
        TensorSpec("features", "float32", (batch, *shape)),
        adapter,
        _forward(shape, adapter),
        _train_step(shape, adapter, batch),
        name=name,
        classes=classes,
        labels=labels,
        front=front,
    )


def write_package(
    folder: Path,
    features: TensorSpec,
    adapter: Tensors,
    forward: bytes,
    train_step: bytes,
    *,
    name: str,
    classes: int,
    labels: Sequence[str],
    front: FrozenFront | None,
) -> ModelPackage:
    """Write the package of a classifier with one input to a new folder."""
    check_folder(folder)
    vector = np.concatenate([tensor.ravel() for tensor in adapter.values()])
    contents = {FORWARD: forward, TRAIN_STEP: train_step, ADAPTER: vector.astype("<f4").tobytes()}
    if front is not None:
        contents[FRONT] = front.graph
    rows = replace(features, shape=(-1, *features.shape[1:]))
    return write_folder(
        folder,
        contents,
        name=name,
        version=1,
        inputs=(rows if front is None else front.sample,),
        outputs=(TensorSpec("output", "float32", (-1, classes)),),
        batch_inputs=(features, TensorSpec("target", "int64", features.shape[:1])),
        adapter=tuple(TensorSpec(key, "float32", part.shape) for key, part in adapter.items()),
        metric="accuracy",
        labels=tuple(labels),
        front=front and front.spec,
    )


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
    return "\n".join(lines), constants


def join_text(keys: Collection[str]) -> str:
    """Nodes that make `gradient` of the gradients `d_KEY`, in their order."""
    lines = [f"flat_{key} = Reshape (d_{key}, flat)" for key in keys]
    joined = ", ".join(f"flat_{key}" for key in keys)
    return "\n".join([*lines, f"gradient = Concat <axis = 0> ({joined})"])


def loss_constants(batch: int, classes: int) -> dict[str, Array]:
    """The constants of CROSS_ENTROPY."""
    return {
        "last": np.array([1]),
        "every_class": np.arange(classes)[None],
        "batch_size": np.array(batch, np.float32),
        "flat": np.array([-1]),
    }


def _initial(
    inputs: int, classes: int, hidden: int | None, seed: int, head: tuple[Array, Array] | None
) -> dict[str, NDArray[np.float32]]:
    parts: dict[str, Array]
    if hidden is None:
        weight, bias = head or (np.zeros((inputs, classes)), np.zeros(classes))
        parts = {"head_weight": weight, "head_bias": bias}
    else:
        rng = np.random.default_rng(seed)
        parts = {
            "hidden_weight": rng.standard_normal((inputs, hidden)) * (2 / inputs) ** 0.5,
            "hidden_bias": np.zeros(hidden),
            "head_weight": rng.standard_normal((hidden, classes)) * hidden**-0.5,
            "head_bias": np.zeros(classes),
        }
    return {name: np.asarray(part, np.float32) for name, part in parts.items()}


def _forward(shape: Sequence[int], adapter: Tensors) -> bytes:
    inputs = ", ".join(f"{_typed(*part.shape)} {key}" for key, part in adapter.items())
    classes = adapter["head_bias"].size
    text = f"""({_typed("n", *shape)} features, {inputs}) => ({_typed("n", classes)} output) {{
        {_begin(shape, adapter).replace("logits", "output")}
    }}"""
    return bytes_of(graph_of(text, adapter))


def _train_step(shape: Sequence[int], adapter: Tensors, batch: int) -> bytes:
    size = sum(part.size for part in adapter.values())
    cut, constants = split_text(adapter)
    constants |= loss_constants(batch, adapter["head_bias"].size) | {"first": np.array([0])}
    if has_hidden := "hidden_weight" in adapter:
        constants["zero"] = np.array(0, np.float32)
    inputs = f"float[{size}] adapter, {_typed(batch, *shape)} features, int64[{batch}] target"
    text = f"""({inputs}) => (float loss, float[{size}] gradient) {{
        {cut}
        {_begin(shape, adapter)} {CROSS_ENTROPY} {_GRADIENTS[has_hidden]}
        {join_text(adapter)}
    }}"""
    return bytes_of(graph_of(text, constants))


def _typed(*sizes: object) -> str:
    return f"float[{', '.join(map(str, sizes))}]"


def _begin(shape: Sequence[int], adapter: Tensors) -> str:
    flat = "Flatten" if len(shape) > 1 else "Identity"
    return f"x = {flat} (features)\n{_LAYERS['hidden_weight' in adapter]}"
