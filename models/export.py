"""From a torch module to the bundle that boards run and train on plain onnxruntime.

Loss and gradient are traced together into one graph of standard operators (`make_fx` over
`torch.func.grad_and_value`), because exporting `torch.func.grad` itself fails.
"""

import hashlib
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from models.errors import ExportError
from models.graph_passes import make_overridable, optimise
from models.lora import Adapter
from ternmesh.bundle import ADAPTER, FILES, FORWARD, TRAIN_STEP, Bundle, TensorSpec, write_bundle

try:
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401  torch.onnx needs it and says so less clearly
except ImportError as error:
    raise ImportError("export needs onnx and onnxruntime: pip install 'ternmesh[train]'") from error

DESCRIPTION = "model.json"
RELATIVE_ERROR_MAX = 1e-4
GRAPH_BYTES_MAX = (1 << 31) - 1  # what one protobuf file may hold
RANK_TRACED_MIN = 2  # torch.export treats sizes 0 and 1 as constants

Tensors = tuple[torch.Tensor, ...]
Arrays = Sequence[NDArray[np.generic]]
Loss = Callable[..., torch.Tensor]


def export(
    module: nn.Module,
    adapter: Adapter,
    loss: Loss,
    example_batch: tuple[Tensors, Tensors],
    folder: Path,
    *,
    name: str,
    version: int = 1,
    metric: str = "accuracy",
) -> Bundle:
    """Write the bundle of `module` to `folder` and return its description.

    `example_batch` is (inputs, targets), each a tuple of tensors with the batch axis first; its size
    becomes the batch size of a training step. `loss(outputs, *targets)` returns a scalar mean over
    the batch. The module is exported in evaluation mode: no dropout, no batch statistics. Raises
    ExportError when an operator cannot be exported or the graphs do not compute what torch does.
    """
    inputs, targets = example_batch
    _check_batch(inputs + targets)
    module.eval()
    folder.mkdir(parents=True, exist_ok=True)
    input_names = _input_names(module, len(inputs))
    target_names = ["target"] if len(targets) == 1 else [f"target_{i}" for i in range(len(targets))]
    with torch.no_grad():
        outputs = _as_tuple(module(*inputs))
    output_names = ["output"] if len(outputs) == 1 else [f"output_{i}" for i in range(len(outputs))]

    forward = _forward_graph(module, adapter, inputs, input_names, output_names)
    step = _train_step(module, adapter, loss, len(inputs))
    step_graph = _train_graph(step, adapter, inputs + targets, [*input_names, *target_names])
    (folder / FORWARD).write_bytes(_serialise(forward, FORWARD))
    (folder / TRAIN_STEP).write_bytes(_serialise(step_graph, TRAIN_STEP))
    (folder / ADAPTER).write_bytes(adapter.vector().astype("<f4").tobytes())
    _check_forward(folder, module, adapter, inputs)
    _check_train_step(folder, step, adapter, inputs + targets)

    bundle = Bundle(
        name=name,
        version=version,
        inputs=_specs(input_names, inputs, batch_free=True),
        outputs=_specs(output_names, outputs, batch_free=True),
        batch_inputs=_specs([*input_names, *target_names], inputs + targets),
        adapter=_specs(adapter.names, adapter.initial),
        metric=metric,
        files={file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in FILES},
    )
    (folder / DESCRIPTION).write_bytes(write_bundle(bundle))
    return bundle


class _WithAdapter(nn.Module):
    """The module with the adapter tensors as further arguments."""

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
) -> onnx.ModelProto:
    tensors = tuple(
        _with_rank(tensor, axis, max(RANK_TRACED_MIN, tensor.shape[axis] if axis is not None else 0))
        for tensor, axis in zip(adapter.initial, adapter.rank_axes, strict=True)
    )
    free = torch.export.Dim.DYNAMIC
    shapes = (
        tuple({0: free} for _ in inputs),
        tuple({} if axis is None else {axis: free} for axis in adapter.rank_axes),
    )
    with _one_sentence("forward"):
        program = torch.onnx.export(
            _WithAdapter(module, adapter),
            (inputs, tensors),
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=[*input_names, *adapter.names],
            output_names=output_names,
            external_data=False,
            verbose=False,
        )
    assert program is not None  # only without dynamo=True
    model: onnx.ModelProto = program.model_proto
    defaults = {
        name: _with_rank(tensor, axis, 0).numpy()
        for name, tensor, axis in zip(
            adapter.names, adapter.initial, adapter.rank_axes, strict=True
        )
    }
    return make_overridable(model, defaults)
