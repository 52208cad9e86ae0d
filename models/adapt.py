"""A plain ONNX classifier made ready to learn without torch: a frozen front, or LoRA in its layers.

The gradients of LoRA are those of onnx-ad, taken out of what they have too much.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # see edge.onnx.session
from ternmesh.extras import installed

with installed("adapt", "`ternmesh adapt` needs the packages onnx, onnx-ad and onnx-ir"):
    import onnx
    import onnx_ir as ir
    import onnx_ir.passes.common as common
    import onnxruntime
    from google.protobuf.message import DecodeError
    from onnx import TensorProto, helper, inliner, numpy_helper, shape_inference
    from onnx_ad import UnsupportedOperator, reverse
    from onnx_ad.fold import fold_constants

from models.errors import ExportError
from models.graph_passes import name_by_place, optimise, simplify
from models.tails import (
    CROSS_ENTROPY,
    HEADER,
    FrozenFront,
    bytes_of,
    join_text,
    loss_constants,
    split_text,
    write_package,
)
from ternmesh.model_package import DOMAINS, FrontSpec, ModelPackage, TensorSpec

BYTES_MAX = 200_000_000
OPSETS = range(13, 29)  # that a board runs
FOLDED_MAX = 256  # numbers of a result: shapes, never weights
IR_VERSION = 10
WHOLE = FrontSpec(window=0, hop=0, rows=1, scale=1.0, rate=0)
OURS = {"adapter", "target", "loss", "gradient", "output"}
_CONTROL = {"If", "Loop", "Scan"}
_PASSED = {"Softmax", "LogSoftmax", "Identity"}  # between the logits and the output
_LINEAR = {"Reshape", "Flatten", "Squeeze", "GlobalAveragePool", "ReduceMean", "Identity"}

Array = NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Classifier:
    """A graph from one float32 input [batch, *shape] to logits [batch, classes].

    `is_free` says whether the file leaves the batch open.
    """

    model: Any  # onnx.ModelProto
    input: str
    shape: tuple[int, ...]
    logits: str
    classes: int
    is_free: bool


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A MatMul or Gemm with a frozen float32 weight, from `inputs` to `outputs` numbers."""

    name: str  # of its output
    inputs: int
    outputs: int


def read_classifier(path: Path, shapes: Shapes) -> Classifier:
    """The classifier in a file; `shapes` by input fix axes that it leaves open. ExportError."""
    if path.stat().st_size >= BYTES_MAX:
        raise ExportError(f"{path} has 200 MB or more: take a smaller model")
    try:
        model = inliner.inline_local_functions(onnx.load_model(path, load_external_data=False))
    except DecodeError:
        model = onnx.ModelProto()
    graph, versions = model.graph, {item.domain: item.version for item in model.opset_import}
    if not graph.node:
        raise ExportError(f"{path} is no ONNX file: export the model as .onnx")
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in graph.initializer):
        raise ExportError(f"{path} has its weights in another file: export it as a single file")
    foreign = {node.domain for node in graph.node if node.domain.encode() not in DOMAINS}
    version = versions.get("", versions.get("ai.onnx", 0))
    if foreign or version not in OPSETS:
        what = f"operators of {min(foreign)}" if foreign else f"operator set {version}"
        raise ExportError(f"{path} has {what}: export it with ONNX's own operators, set 13 to 28")
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", version))
    name, sizes, is_free = _input_of(path, graph, shapes)
    makers, logits = _makers(graph), str(graph.output[0].name)
    while logits in makers and makers[logits].op_type in _PASSED:
        logits = makers[logits].input[0]
    fixed = _fixed(model, name, (1, *sizes), logits)
    if found := {node.op_type for node in fixed.graph.node} & _CONTROL:
        raise ExportError(f"{path} has {min(found)}: export it without control flow")
    shape = _shapes(fixed).get(logits, ())
    if len(shape) != 2 or shape[0] != 1 or shape[1] < 2:
        raise ExportError(f"{path} is no classifier: its output is {list(shape)}, not [1, classes]")
    classifier = Classifier(model, name, sizes, logits, shape[1], is_free)
    try:
        logits_of(classifier, np.zeros((1, *sizes), np.float32))
    except Exception as error:  # those of onnxruntime have no common base
        what = f"onnxruntime here cannot run {path} with its operator set {version}"
        raise ExportError(f"{what}: export it with an older set, of 13 or more") from error
    return classifier


def logits_of(classifier: Classifier, sample: Array) -> Array:
    """Its logits, float32 [1, classes], for a sample with a batch axis of 1."""
    model = _fixed(classifier.model, classifier.input, sample.shape, classifier.logits)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # its errors are raised as well
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(bytes_of(model), options, providers=providers)
    logits: Array = session.run(None, {classifier.input: sample})[0]
    return logits


def _input_of(path: Path, graph: Any, shapes: Shapes) -> tuple[str, tuple[int, ...], bool]:
    """The name of the only input, its shape without the batch, and whether the batch is free."""
    defaults = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in defaults]
    if [value.type.tensor_type.elem_type for value in inputs] != [TensorProto.FLOAT]:
        names = ", ".join(value.name for value in inputs) or "none"
        raise ExportError(f"{path} has the inputs {names}: export it with one, in float32")
    name, axes = inputs[0].name, inputs[0].type.tensor_type.shape.dim
    sizes = shapes.get(name, tuple(axis.dim_value for axis in axes))
    if min(sizes[1:], default=0) < 1 or len(sizes) != len(axes):
        known = ",".join(str(axis.dim_value or axis.dim_param or "?") for axis in axes)
        raise ExportError(f"{path} leaves sizes open: fix them with --shape {name}={known}")
    if axes[0].dim_value > 1:
        raise ExportError(f"{path} takes {sizes[0]} samples at once: export it with a free batch")
    return name, sizes[1:], not axes[0].dim_value


def _makers(graph: Any) -> dict[str, Any]:
    return {output: node for node in graph.node for output in node.output}


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """The known shapes; a size that is not known is 0."""
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    found = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in values}
    return found | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}


def _part(model: Any, begin: str, end: str) -> Any:
    """A model of what computes the tensor `end`, with `begin` as its only input."""
    needed, nodes = {end}, []
    for node in reversed(model.graph.node):
        if begin not in node.output and needed & set(node.output):
            nodes.append(node)
            needed |= set(node.input)
    weights = [tensor for tensor in model.graph.initializer if tensor.name in needed]
    inputs = [helper.make_tensor_value_info(begin, TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes[::-1], "part", inputs, [onnx.ValueInfoProto(name=end)], weights)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=IR_VERSION)


def _fixed(model: Any, begin: str, shape: Sequence[int | str], end: str) -> Any:
    """The part between two tensors with this shape of its input, and constants folded."""
    part = _part(model, begin, end)
    part.graph.input[0].CopyFrom(_value(begin, shape))
    return fold_constants(part, FOLDED_MAX)


def _value(name: str, shape: Sequence[int | str], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def cut_at_last(classifier: Classifier) -> tuple[str, tuple[Array, Array] | None]:
    """The input of the last MatMul, Gemm or Conv; its weight [width, classes] and bias.

    These are None where more than a mean and other shapes lie between it and the logits.
    """
    makers, name = _makers(classifier.model.graph), classifier.logits
    weights = {t.name: numpy_helper.to_array(t) for t in classifier.model.graph.initializer}
    bias, is_exact = np.zeros(classifier.classes, np.float32), True
    while node := makers.get(name):
        own = [weights[item] for item in node.input if item in weights]
        if node.op_type in ("MatMul", "Gemm", "Conv") and node.input[1] in weights:
            settings = {item.name: helper.get_attribute_value(item) for item in node.attribute}
            is_exact &= {settings.get(key, 1) for key in ("alpha", "beta", "group")} == {1}
            weight = own[0].reshape(own[0].shape[:2] if set(own[0].shape[2:]) <= {1} else (1, -1))
            weight = weight.T if settings.get("transB") or node.op_type == "Conv" else weight
            is_exact &= not any(settings.get("pads", ())) and {*settings.get("strides", [1])} == {1}
            is_exact &= weight.shape[1] == classifier.classes and weight.dtype == np.float32
            return node.input[0], (weight, bias + sum(own[1:])) if is_exact else None
        if node.op_type == "Add" and own and own[0].size == classifier.classes:
            bias = bias + own[0].ravel()
            name = next(item for item in node.input if item not in weights)
        else:
            is_exact &= node.op_type in _LINEAR
            name = node.input[0] if node.input else ""
    raise ExportError("no MatMul, Gemm or Conv makes the logits: name a tensor, --head TENSOR")


def front_of(
    classifier: Classifier, tensor: str, *, is_whole: bool = False
) -> tuple[FrozenFront, Classifier]:
    """What makes a row float32 [1, width] of a sample, and what follows from such rows.

    Of a map [1, channels, height, width] a row has the means, unless `is_whole`: then the rest of
    the graph can follow. ExportError where the tensor cannot be a row.
    """
    if tensor not in _makers(classifier.model.graph):
        raise ExportError(f"the model computes no tensor {tensor!r}: see its graph in a viewer")
    front = _fixed(classifier.model, classifier.input, (1, *classifier.shape), tensor)
    shape, name = _shapes(front)[tensor], tensor
    if min(shape, default=0) < 1:
        raise ExportError(f"the size of {tensor} depends on data: cut at another tensor")
    if len(shape) == 4 and not is_whole:
        shape, name = shape[:2], ":means"
        front.graph.node.append(helper.make_node("GlobalAveragePool", [tensor], [name]))
    width = math.prod(shape)
    _reshape(front, name, "row", (1, width), at=len(front.graph.node))
    front.graph.output[0].CopyFrom(_value("row", (1, width)))
    rest = _part(classifier.model, tensor, classifier.logits)
    if is_whole and any(classifier.input in node.input for node in rest.graph.node):
        raise ExportError(f"what follows {tensor} needs other tensors, too: cut at another one")
    _reshape(rest, "row", tensor, (-1, *shape[1:]), at=0)
    sample = TensorSpec(classifier.input, "float32", (-1, *classifier.shape))
    made = FrozenFront(WHOLE, _clean(ir.from_proto(front)), sample)
    return made, replace(classifier, model=rest, input="row", shape=(width,))


def _reshape(model: Any, x: str, y: str, shape: Sequence[int], at: int) -> None:
    model.graph.node.insert(at, helper.make_node("Reshape", [x, ":shape"], [y]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(shape), ":shape"))


def layers_of(classifier: Classifier, pattern: str) -> list[LinearLayer]:
    """The layers whose node, weight or bias is named so; ExportError where there are none."""
    graph = classifier.model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    users = {name: node for node in graph.node for name in node.input}
    found = []
    for node in graph.node:
        weight = weights.get(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None
        if weight is None or weight.data_type != TensorProto.FLOAT or len(weight.dims) != 2:
            continue
        added = users.get(node.output[0])
        adds = added.input if added is not None and added.op_type == "Add" else ()
        names = [node.name, *node.input[1:], *(name for name in adds if name in weights)]
        turned = {item.name for item in node.attribute if item.i}
        is_named = any(name and fnmatchcase(name, pattern) for name in names)
        if is_named and "transA" not in turned:
            sizes = weight.dims[::-1] if "transB" in turned else weight.dims
            found.append(LinearLayer(node.output[0], *sizes))
    if not found:
        raise ExportError(
            f"no MatMul or Gemm with float32 weights is named {pattern!r} (int8 weights stay "
            "frozen): use --head last, or --lora '*'"
        )
    return found


def write_lora(
    folder: Path,
    classifier: Classifier,
    layers: Sequence[LinearLayer],
    *,
    name: str,
    rank: int = 8,
    batch: int = 16,
    labels: Sequence[str] = (),
    seed: int = 0,
    front: FrozenFront | None = None,
) -> ModelPackage:
    """Write the package of a classifier with LoRA, y = x W + (x A) B; A is random and B zero.

    ExportError for what cannot be differentiated.
    """
    if not classifier.is_free:
        raise ExportError("the batch is fixed to 1: export with a free batch, or use --head alone")
    rng, adapter = np.random.default_rng(seed), {}
    for layer in layers:
        bound = layer.inputs**-0.5
        down = rng.uniform(-bound, bound, (layer.inputs, rank))
        adapter[f"{layer.name}.lora_A"] = down.astype(np.float32)
        adapter[f"{layer.name}.lora_B"] = np.zeros((rank, layer.outputs), np.float32)
    given = "features" if classifier.input in OURS else classifier.input
    features = TensorSpec(given, "float32", (batch, *classifier.shape))
    return write_package(
        folder,
        features,
        adapter,
        _forward(classifier, layers, adapter, given),
        _train_step(classifier, layers, adapter, features),
        name=name,
        classes=classifier.classes,
        labels=labels,
        front=front,
    )


def _with_lora(model: Any, layers: Sequence[LinearLayer]) -> Any:
    """The model with x A B added to the results of the layers; A and B are not defined yet."""
    made, places = onnx.ModelProto(), {layer.name for layer in layers}
    made.CopyFrom(model)
    del made.graph.node[:]
    for node in model.graph.node:
        made.graph.node.append(node)
        y = node.output[0]
        if y in places:
            made.graph.node[-1].output[0] = f"{y}:base"
            for kind, inputs, output in (
                ("MatMul", (node.input[0], f"{y}.lora_A"), f"{y}:down"),
                ("MatMul", (f"{y}:down", f"{y}.lora_B"), f"{y}:up"),
                ("Add", (f"{y}:base", f"{y}:up"), y),
            ):
                made.graph.node.append(helper.make_node(kind, inputs, [output]))
    return made


def _forward(
    classifier: Classifier, layers: Sequence[LinearLayer], adapter: Mapping[str, Array], given: str
) -> bytes:
    free: tuple[int | str, ...] = ("batch", *classifier.shape)
    model = _fixed(classifier.model, classifier.input, free, classifier.logits)
    names = {classifier.input: given, classifier.logits: "output", **{key: key for key in adapter}}
    model = _renamed(_with_lora(model, layers), names)
    graph = model.graph
    graph.output[0].CopyFrom(_value("output", ("batch", classifier.classes)))
    for name, tensor in adapter.items():
        is_down = name.endswith(".lora_A")
        sizes = (tensor.shape[0], "rank") if is_down else ("rank", tensor.shape[1])
        graph.input.append(_value(name, sizes))
        empty = tensor[:, :0] if is_down else tensor[:0]
        graph.initializer.append(numpy_helper.from_array(empty, name))
    return _clean(ir.from_proto(model))


def _renamed(model: Any, names: Mapping[str, str]) -> Any:
    """The model with these names for its tensors, and for all others names that are not ours."""
    graph, table = model.graph, {"": "", **names}

    def new(name: str) -> str:
        return table.setdefault(name, f":{len(table)}")

    for node in graph.node:
        node.input[:] = map(new, node.input)
        node.output[:] = map(new, node.output)
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = new(value.name)
    return model


def _train_step(
    classifier: Classifier,
    layers: Sequence[LinearLayer],
    adapter: Mapping[str, Array],
    spec: TensorSpec,
) -> bytes:
    """Loss and gradient: onnx-ad's from the logits on, between nodes of ours."""
    batch, seed_shape = spec.shape[0], (spec.shape[0], classifier.classes, 1)
    model = _fixed(classifier.model, classifier.input, spec.shape, classifier.logits)
    keys = {key: f"t{at}" for at, key in enumerate(adapter)}
    names = {classifier.input: spec.name, classifier.logits: "logits", **keys}
    model = _renamed(_with_lora(model, layers), names)
    tensors = dict(zip(keys.values(), adapter.values(), strict=True))
    model.graph.output[0].CopyFrom(_value("logits", seed_shape[:2]))
    model.graph.input.extend(_value(key, tensor.shape) for key, tensor in tensors.items())
    try:
        model = reverse(model, list(tensors), ["logits"], prefix="d_", layout="onnx")
    except (UnsupportedOperator, NotImplementedError) as error:
        raise ExportError(f"onnx-ad cannot differentiate it ({error}): use --head last") from error
    model.graph.input[-1].CopyFrom(_value("d_logits", seed_shape))  # one seed: no sizes are open
    del model.graph.value_info[:]
    graph, size = fold_constants(model, FOLDED_MAX).graph, sum(t.size for t in tensors.values())
    cut, constants = split_text(tensors)
    constants |= loss_constants(batch, classifier.classes) | {"behind": np.array([-1])}
    at = next(at for at, node in enumerate(graph.node) if "logits" in node.output) + 1
    nodes = [
        *_nodes(cut),
        *graph.node[:at],
        *_nodes(f"{CROSS_ENTROPY}\n d_logits = Unsqueeze (change, behind)"),
        *graph.node[at:],
        *_nodes(join_text(tensors)),
    ]
    inputs = [_value("adapter", (size,)), _value(spec.name, spec.shape)]
    inputs.append(_value("target", spec.shape[:1], TensorProto.INT64))
    weights = [numpy_helper.from_array(np.asarray(v), key) for key, v in constants.items()]
    outputs = [_value("loss", ()), _value("gradient", (size,))]
    made = helper.make_graph(nodes, "step", inputs, outputs, [*graph.initializer, *weights])
    whole = helper.make_model(made, opset_imports=model.opset_import, ir_version=IR_VERSION)
    step = ir.from_proto(shape_inference.infer_shapes(whole, data_prop=True))
    simplify(step)
    optimise(step)
    return _clean(step)


def _nodes(text: str) -> list[Any]:
    made = onnx.parser.parse_model(f"{HEADER}(float[1] a) => (float[1] b) {{\n{text}\n}}")
    return list(made.graph.node)


def _clean(model: ir.Model) -> bytes:
    common.RemoveUnusedNodesPass()(model)
    name_by_place(model)
    common.ClearMetadataAndDocStringPass()(model)
    model.producer_name = model.producer_version = None
    return bytes_of(ir.to_proto(model))
