"""What a stage keeps for the way back, and what its boundaries hold, over the sequence length."""

from typing import Any

import torch
from torch import Tensor

from host.pipeline.config import PipelineConfig
from host.pipeline.train import own_stage
from models.bottleneck.config import BottleneckConfig
from models.transformer_shape import Shape

LENGTHS = (64, 128, 256, 512, 1024)
WIDTH, RANK = 256, 8


def memory(length: int, *, recompute: bool, method: str = "subspace") -> dict[str, float]:
    """Bytes of a middle stage for one sequence: saved activations, and its two boundary buffers."""
    boundary = BottleneckConfig(method, latent=RANK, form="rows")
    shape = Shape(width=WIDTH, layers=3, heads=4, length=length)
    config = PipelineConfig(
        "", stages=3, micro_batch=1, model=shape, boundary=boundary, recompute=recompute
    )
    stage, _ = own_stage(config, 1)
    assert stage.entry is not None
    assert stage.exit is not None
    empty = stage.entry.empty(1, length, torch.device("cpu"))
    constant = [*stage.parameters(), *stage.buffers()]
    own = {tensor.untyped_storage().data_ptr() for tensor in constant}
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def give(tensor: Any) -> Any:
        return tensor

    tensors = [t.detach().requires_grad_(t.requires_grad) for t in empty.tensors]
    with torch.autograd.graph.saved_tensors_hooks(keep, give):
        out = stage(*tensors)
    assert isinstance(out, tuple)
    return {"activations": float(sum(saved.values())), "boundaries": 2.0 * empty.size}
