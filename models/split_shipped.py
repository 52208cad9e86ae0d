"""The shipped keyword model as a torch module again, read from the graph that boards run."""

import onnx_ir as ir
import torch

from models.errors import ExportError
from models.keyword import KeywordTransformer
from models.zoo import bundle_path
from ternmesh.bundle import FORWARD


def shipped_keyword() -> KeywordTransformer:
    """The shipped keyword model with its weights, read from its graph; ExportError.

    The graph names vectors as torch does. Of the matrices it keeps the order in which the model
    uses them, transposed.
    """
    graph = ir.load(bundle_path("keyword") / FORWARD).graph
    model = KeywordTransformer()
    state, matrices = model.state_dict(), []
    for name, value in graph.initializers.items():
        assert value.const_value is not None
        tensor = torch.from_numpy(value.const_value.numpy().copy())
        if name.startswith("module."):
            state[name.removeprefix("module.").replace(".base.", ".")] = tensor
        elif name.startswith("val_") and tensor.ndim == 2:
            matrices.append(tensor.T)
    names = [n for n, p in state.items() if p.ndim == 2 and n not in ("position", "head.weight")]
    if [state[n].shape for n in names] != [m.shape for m in matrices]:
        raise ExportError(
            "the shipped keyword model is not what this version knows: export it anew"
        )
    state |= dict(zip(names, matrices, strict=True))
    model.load_state_dict(state)
    return model.eval()
