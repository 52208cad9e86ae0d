"""All stages of a pipeline in one process: they compute and learn the same as its ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.bottleneck.assemble import StageLayout, boundary_at, confine_part, subspace_of
from models.bottleneck.config import BottleneckConfig
from models.bottleneck.shared_subspace import SharedSubspace
from models.stages import Stage, cut


def assemble(
    layers: Sequence[nn.Module],
    layout: StageLayout,
    config: BottleneckConfig,
    stages: int,
    batch: int,
    length: int,
    recompute: bool = False,
) -> tuple[list[Stage], SharedSubspace | None]:
    """The stages for micro-batches [batch, length], and their subspace or None; ValueError.

    With the method "subspace", all layers before the last boundary are confined in place.
    """
    parts, subspace = cut(layers, stages), subspace_of(layout, config)
    for part in parts[:-1]:
        confine_part(part, layout, config, subspace)
    boundaries = [boundary_at(place, layout, config, subspace) for place in range(stages - 1)]
    made = [
        Stage(part, entry, exit_, batch, length, recompute)
        for part, entry, exit_ in zip(parts, [None, *boundaries], [*boundaries, None], strict=True)
    ]
    return made, subspace


def run_stages(stages: Sequence[Stage], tokens: Tensor) -> Tensor:
    """All stages in one process: tokens [batch, length] to logits [batch, length, vocabulary]."""
    tensors: Tensor | tuple[Tensor, ...] = (tokens,)
    for stage in stages:
        tensors = stage(*tensors)
    assert isinstance(tensors, torch.Tensor)
    return tensors
