"""Exports a torch module as a model package, which boards run and train on plain onnxruntime.

Loss and gradient are traced together into one graph of standard operators (`make_fx` over
`torch.func.grad_and_value`), because exporting `torch.func.grad` itself fails.
"""

import inspect
import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # see edge.onnx.session
from ternmesh.extras import installed

with installed("train", "export needs torch, onnx and onnxruntime"):
    import onnx_ir as ir
    import onnx_ir.passes.common as common
    import onnxruntime
    import onnxscript  # noqa: F401  torch.onnx needs it, and its own error is less clear
    import torch
    from torch import nn
    from torch._decomp import core_aten_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.nn.attention import SDPBackend, sdpa_kernel

from models.adapters.base import Adapter
from models.errors import ExportError, one_sentence
from models.graph_passes import make_overridable, name_by_place, optimise
from models.package_files import check_folder, write_folder
from ternmesh.model_package import (
    ADAPTER,
    DOMAINS,
    FORWARD,
    METRICS,
    OPERATORS,
    TRAIN_STEP,
    ModelPackage,
    TensorSpec,
)

RELATIVE_ERROR_MAX = 1e-4
TINY = 1e-30  # keeps an error relative to zero finite
BATCH_MIN = 2  # torch.export treats sizes 0 and 1 as constants
RANK_TRACED = 2  # for the same reason
GRAPH_BYTES_MAX = (1 << 31) - 1  # the limit of a protobuf file

_TRAINED_APART = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
_log = logging.getLogger(__name__)

Tensors = tuple[torch.Tensor, ...]
Array = NDArray[np.generic]
Loss = Callable[..., torch.Tensor]


def export(
    module: nn.Module,
    adapter: Adapter,
    loss: Loss,
    example_batch: tuple[Tensors, Tensors],
    folder: Path | str,
    *,
    name: str,
    version: int = 1,
    metric: str | None = None,
    labels: Sequence[str] = (),
    replace: bool = False,
) -> ModelPackage:
    """Write the model package of `module` to `folder` and return its description.

    `example_batch` is (inputs, targets), each a tuple of tensors with the batch axis first; its
    size becomes the batch size of a training step. `loss(outputs, *targets)` returns a scalar, the
    mean over the batch. `metric` compares the first output with the first target and is one of
    ternmesh.model_package.METRICS: "accuracy" for logits [batch, classes] and whole numbers
    [batch], which is the default for such shapes, else "mean_absolute_error". `labels` name the
    classes. The module is exported in evaluation mode. With `replace`, an earlier package is
    overwritten. Raises ExportError or ModelPackageError for what does not fit, cannot be exported
    or computes else.
    """
    check_folder(Path(folder), replace=replace)
    _check_arguments(module, adapter, example_batch)
    inputs, targets = (tuple(tensor.detach() for tensor in part) for part in example_batch)
    with one_sentence("the module, given the example inputs,"):
        outputs = _outputs(module, inputs)
    with one_sentence("the loss"):
        _check_gradients(module, adapter, loss, inputs, targets)
    target_names = _numbered("target", len(targets))
    output_names = _numbered("output", len(outputs))
    metric = _metric(metric, outputs, targets)
    input_names = _input_names(module, adapter, len(inputs), [*target_names, *output_names])
    with one_sentence(FORWARD):
        graph = _forward_graph(module, adapter, inputs, input_names, output_names)
        forward = _serialise(graph, FORWARD)
        _check_forward(forward, module, adapter, inputs)
    with one_sentence(TRAIN_STEP):
        step = _train_step(module, adapter, loss, len(inputs))
        graph = _train_graph(step, adapter, inputs + targets, [*input_names, *target_names])
        train_step = _serialise(graph, TRAIN_STEP)
        _check_train_step(train_step, step, adapter, inputs + targets)
    vector = adapter.vector().astype("<f4").tobytes()
    return write_folder(
        Path(folder),
        {FORWARD: forward, TRAIN_STEP: train_step, ADAPTER: vector},
        name=name,
        version=version,
        inputs=_specs(input_names, inputs, batch_free=True),
        outputs=_specs(output_names, outputs, batch_free=True),
        batch_inputs=_specs([*input_names, *target_names], inputs + targets),
        adapter=_specs(adapter.names, adapter.initial),
        metric=metric,
        labels=tuple(labels),
    )


def _outputs(module: nn.Module, inputs: Tensors) -> Tensors:
    """The outputs in evaluation mode; ExportError where a second call gives others."""
    if any(part.training and isinstance(part, _TRAINED_APART) for part in module.modules()):
        _log.warning("exported in evaluation mode: no dropout, and fixed batch statistics")
    module.eval()
    with torch.no_grad():
        outputs, again = _as_tuple(module(*inputs)), _as_tuple(module(*inputs))
    if not all(torch.allclose(a, b, equal_nan=True) for a, b in zip(outputs, again, strict=True)):
        raise ExportError(
            "the module gives other outputs for the same inputs: its forward must be "
            "deterministic, without random numbers and without a memory"
        )
    return outputs


class _WithAdapter(nn.Module):
    """The module with the adapter tensors as additional arguments."""

    def __init__(self, module: nn.Module, adapter: Adapter) -> None:
        super().__init__()
        self.module = module
        self.names = adapter.names

    def forward(self, inputs: Tensors, adapter: Tensors) -> Tensors:
        parameters = dict(zip(self.names, adapter, strict=True))
        return _as_tuple(torch.func.functional_call(self.module, parameters, inputs))


def _forward_graph(
    module: nn.Module,
    adapter: Adapter,
    inputs: Tensors,
    input_names: list[str],
    output_names: list[str],
) -> ir.Model:
    tensors = _with_rank(adapter, RANK_TRACED)
    free = torch.export.Dim.DYNAMIC
    shapes = (
        tuple({0: free} for _ in inputs),
        tuple({} if axis is None else {axis: free} for axis in adapter.rank_axes),
    )
    model = _onnx(
        _WithAdapter(module, adapter),
        (inputs, tensors),
        [*input_names, *adapter.names],
        output_names,
        dynamic_shapes=shapes,
    )
    defaults = (tensor.numpy() for tensor in _with_rank(adapter, 0))
    make_overridable(model, dict(zip(adapter.names, defaults, strict=True)))
    return model


def _with_rank(adapter: Adapter, rank: int) -> Tensors:
    """Zeros in the adapter's shapes at another rank; tensors without a rank axis do not change."""
    return tuple(
        tensor
        if axis is None
        else tensor.new_zeros([*tensor.shape[:axis], rank, *tensor.shape[axis + 1 :]])
        for tensor, axis in zip(adapter.initial, adapter.rank_axes, strict=True)
    )


def _train_step(
    module: nn.Module, adapter: Adapter, loss: Loss, inputs_count: int
) -> Callable[..., Tensors]:
    """The function (adapter vector, *batch) -> (loss, gradient) that becomes train_step.onnx."""

    def batch_loss(
        parameters: dict[str, torch.Tensor], inputs: Tensors, targets: Tensors
    ) -> torch.Tensor:
        return loss(torch.func.functional_call(module, parameters, inputs), *targets)

    def step(vector: torch.Tensor, *batch: torch.Tensor) -> Tensors:
        # Split before differentiating: the gradient of a split pads every tensor to length D.
        parameters = adapter.split(vector)
        inputs, targets = batch[:inputs_count], batch[inputs_count:]
        gradients, value = torch.func.grad_and_value(batch_loss)(parameters, inputs, targets)
        parts = [gradients[name].reshape(-1) for name in adapter.names]
        return value.reshape(()), torch.cat(parts)

    return step


def _train_graph(
    step: Callable[..., Tensors], adapter: Adapter, batch: Tensors, batch_names: list[str]
) -> ir.Model:
    arguments = (torch.from_numpy(adapter.vector()), *batch)
    table = cast(
        "Mapping[torch._ops.OpOverload, Callable[..., object]]", core_aten_decompositions()
    )
    # The gradients of fused kernels (attention, LSTM) have no ONNX operator. Without
    # allow_tf32=None torch would set and warn of another flag.
    unfused = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None)
    with sdpa_kernel(SDPBackend.MATH), unfused:
        traced = make_fx(step, decomposition_table=table)(*arguments)
    model = _onnx(traced, arguments, ["adapter", *batch_names], ["loss", "gradient"])
    optimise(model)
    return model


def _onnx(
    module: nn.Module,
    arguments: tuple[object, ...],
    input_names: list[str],
    output_names: list[str],
    dynamic_shapes: tuple[object, ...] | None = None,
) -> ir.Model:
    # One warns about each operator of torchvision where that is not installed, the other about
    # what it leaves as it is.
    for name in ("torch.onnx._internal.exporter._registration", "onnxscript.optimizer"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch warns about its own code
        # An LSTM or GRU keeps a list of its own weights.
        warnings.filterwarnings("ignore", "The tensor attributes? .*assigned during export")
        program = torch.onnx.export(
            module.eval(),
            arguments,
            dynamo=True,
            input_names=input_names,
            output_names=output_names,
            dynamic_shapes=dynamic_shapes,
            external_data=False,
            verbose=False,
        )
    assert program is not None  # it is None only without dynamo
    return program.model


def _serialise(model: ir.Model, file: str) -> bytes:
    """One self-contained file, without names, paths and traces of the exporting machine."""
    size = sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None
    )
    if size > GRAPH_BYTES_MAX:
        raise ExportError(
            f"{file} would hold {size} bytes of weights: the limit of a file is {GRAPH_BYTES_MAX}"
        )
    for node in model.graph:
        is_known = node.domain.encode() in DOMAINS and node.op_type.encode() in OPERATORS
        if not is_known:
            raise ExportError(
                f"{file} needs the operator {node.op_type}, which boards do not run: use another "
                "layer or function in its place; attention with a mask: build the mask in "
                "`forward` as a float tensor with 4 axes"
            )
    name_by_place(model)
    common.ClearMetadataAndDocStringPass()(model)
    data: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    return data


def _check_forward(graph: bytes, module: nn.Module, adapter: Adapter, inputs: Tensors) -> None:
    session = _session(graph)
    random = adapter.split(_random_vector(adapter))
    single = tuple(tensor[:1] for tensor in inputs)
    for batch in (inputs, single):
        with torch.no_grad():
            expected = _as_tuple(torch.func.functional_call(module, random, batch))
        feed = {name: tensor.numpy() for name, tensor in random.items()}
        _compare(FORWARD, session.run(None, feed | _feed(session, batch)), expected)


def _check_train_step(
    graph: bytes, step: Callable[..., Tensors], adapter: Adapter, batch: Tensors
) -> None:
    session = _session(graph)
    arguments = (_random_vector(adapter), *batch)
    expected = tuple(tensor.detach() for tensor in step(*arguments))
    _compare(TRAIN_STEP, session.run(None, _feed(session, arguments)), expected)


def _feed(session: onnxruntime.InferenceSession, tensors: Tensors) -> dict[str, Array]:
    names = (value.name for value in session.get_inputs())
    return {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}


def _random_vector(adapter: Adapter) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    vector = torch.from_numpy(adapter.vector())
    return vector + 0.05 * torch.randn(vector.shape, generator=generator)


def _compare(file: str, actual: Sequence[Array], expected: Tensors) -> None:
    for array, tensor in zip(actual, expected, strict=True):
        difference = float(np.linalg.norm((array - tensor.numpy()).ravel()))
        error = difference / max(float(tensor.norm()), TINY)
        if not error <= RELATIVE_ERROR_MAX:
            raise ExportError(
                f"{file} differs from torch by {error:.1e}, more than {RELATIVE_ERROR_MAX:.0e}"
            )


def _session(graph: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # no warning for every overridable initializer
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def _check_arguments(module: nn.Module, adapter: Adapter, example_batch: object) -> None:
    """ExportError unless these are (inputs, targets) of one batch, for a module in float32."""
    foreign = set(adapter.names).difference(
        name for name, _ in module.named_parameters(remove_duplicate=False)
    )
    if foreign:
        raise ExportError(f"the adapter is of another module: this one has no {min(foreign)}")
    parts = example_batch if isinstance(example_batch, tuple) else ()
    if len(parts) != 2 or not all(isinstance(part, tuple) for part in parts):
        raise ExportError("example_batch must be (inputs, targets), two tuples: ((x,), (y,))")
    tensors = parts[0] + parts[1]
    if not parts[0] or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise ExportError("example_batch must hold torch tensors, at least one of them an input")
    sizes = {tensor.shape[0] if tensor.dim() else 0 for tensor in tensors}
    if len(sizes) != 1 or min(sizes) < BATCH_MIN:
        raise ExportError(
            f"every example tensor needs the same batch size of at least {BATCH_MIN}"
            f" on its first axis, not {sorted(sizes)}"
        )
    if not all(tensor.isfinite().all() for tensor in tensors):
        raise ExportError("example_batch holds NaN or infinity: take random or real samples")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise ExportError(
                f"{name} is {tensor.dtype}, and boards train in float32: call module.float(), and "
                "convert the example batch"
            )


def _check_gradients(
    module: nn.Module, adapter: Adapter, loss: Loss, inputs: Tensors, targets: Tensors
) -> None:
    """ExportError unless the example batch gives each tensor of the adapter a gradient."""
    tensors = adapter.split(_random_vector(adapter))
    for tensor in tensors.values():
        tensor.requires_grad_()
    value = loss(torch.func.functional_call(module, tensors, inputs), *targets)
    if not isinstance(value, torch.Tensor) or value.dim():
        raise ExportError("the loss must return one number, for example the mean over the batch")
    gradients: Sequence[torch.Tensor | None] = [None] * len(tensors)
    if value.requires_grad:
        gradients = torch.autograd.grad(value, list(tensors.values()), allow_unused=True)
    for name, gradient in zip(tensors, gradients, strict=True):
        if gradient is None:
            raise ExportError(
                f"the loss does not depend on {name}: the module does not call that layer, or "
                "something after it has no gradient (argmax, round, detach)"
            )
        if not gradient.any():
            raise ExportError(
                f"the gradient of {name} is zero for the example batch, so the graph could not be "
                "compared with torch: take random or real samples"
            )


def _metric(wanted: str | None, outputs: Tensors, targets: Tensors) -> str:
    """The metric, checked here: a board would use it first on the first global update."""
    if wanted not in (None, *METRICS):
        raise ExportError(f"metric is {wanted!r}: it must be one of {', '.join(METRICS)}")
    if not targets:
        return wanted or "mean_absolute_error"
    output, target = outputs[0], targets[0]
    are_classes = target.shape == output.shape[:-1] and not target.is_floating_point()
    metric = wanted or ("accuracy" if are_classes else "mean_absolute_error")
    if not (are_classes if metric == "accuracy" else target.numel() == output.numel()):
        raise ExportError(
            f"the metric {metric} cannot compare an output of shape {list(output.shape)} with a "
            f"target of {target.dtype} and shape {list(target.shape)}"
        )
    return metric


def _input_names(
    module: nn.Module, adapter: Adapter, count: int, others: Sequence[str]
) -> list[str]:
    names = list(inspect.signature(module.forward).parameters)[:count]
    if taken := set(names).intersection([*others, *adapter.names, "adapter", "loss", "gradient"]):
        raise ExportError(f"forward has an argument `{min(taken)}`, a name of ours: rename it")
    return names if len(names) == count else [f"input_{index}" for index in range(count)]


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}_{index}" for index in range(count)]


def _as_tuple(value: object) -> Tensors:
    values = value if isinstance(value, tuple | list) else (value,)
    if not all(isinstance(item, torch.Tensor) for item in values):
        raise ExportError(
            f"the module returns {type(value).__name__}: it must return a tensor or a tuple of them"
        )
    return tuple(values)


def _specs(
    names: Sequence[str], tensors: Tensors, *, batch_free: bool = False
) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            name,
            str(tensor.dtype).removeprefix("torch."),
            (-1, *tensor.shape[1:]) if batch_free else tuple(tensor.shape),
        )
        for name, tensor in zip(names, tensors, strict=True)
    )
