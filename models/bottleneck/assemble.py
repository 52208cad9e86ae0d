"""Builds the stages of a configuration: cuts, boundaries, and layers confined to the subspace."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.bottleneck.codes import Code, Float, Integer, Ternary, TopK
from models.bottleneck.config import BITS, BottleneckConfig
from models.bottleneck.learned import LearnedBasis
from models.bottleneck.payload import Bottleneck, Direct
from models.bottleneck.resbm import ResidualBottleneck
from models.bottleneck.shared_subspace import SharedSubspace, make_basis, make_table
from models.bottleneck.subspace import FACTORS, ROWS, SubspaceBottleneck, confine
from models.stages import Stage, cut


@dataclass(frozen=True, slots=True)
class StageLayout:
    """What the boundaries need from a model. Names are the last parts of dotted module names."""

    width: int
    vocabulary: int
    outputs: tuple[str, ...]  # names of the layers that write into the residual stream
    tokens: str  # name of the token table
    positions: Tensor | None = None  # [length, width], added to the rows of the token table


def code_of(config: BottleneckConfig) -> Code:
    """The code that a configuration asks for; ValueError."""
    if config.method == "topk":
        return TopK(config.latent)
    bits = {"none": 32, "int8": 8}.get(config.method, config.bits)
    if bits not in BITS:
        raise ValueError(f"bits is {bits}: it must be one of {', '.join(map(str, BITS))}")
    if bits == 2:
        return Ternary()
    return Integer(bits) if bits <= 8 else Float(bits)


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
    if config.method in ("topk", "resbm", "subspace", "learned") and config.latent > layout.width:
        raise ValueError(f"latent is {config.latent}: it must not exceed the width {layout.width}")
    parts = cut(layers, stages)
    subspace = _subspace(layout, config) if config.method == "subspace" else None
    if subspace is not None:
        form = FACTORS if config.form == "factors" else ROWS
        for layer in (layer for part in parts[:-1] for layer in part):
            confine(layer, (*layout.outputs, layout.tokens), subspace, form)
    boundaries = [_boundary(layout, config, subspace, place) for place in range(stages - 1)]
    made = [
        Stage(part, entry, exit_, batch, length, recompute)
        for part, entry, exit_ in zip(parts, [None, *boundaries], [*boundaries, None], strict=True)
    ]
    return made, subspace


def _subspace(layout: StageLayout, config: BottleneckConfig) -> SharedSubspace:
    basis = make_basis(layout.width, config.latent, config.seed)
    table = make_table(layout.vocabulary, layout.width, config.table_std, config.seed)
    return SharedSubspace(basis, table, layout.positions)


def _boundary(
    layout: StageLayout, config: BottleneckConfig, subspace: SharedSubspace | None, place: int
) -> Bottleneck:
    code, vocabulary = code_of(config), layout.vocabulary
    if subspace is not None:
        return SubspaceBottleneck(subspace, code)
    with torch.random.fork_rng(devices=[]):
        seed = config.seed + place
        torch.manual_seed(seed)
        if config.method == "resbm":
            return ResidualBottleneck(layout.width, config.latent, code, vocabulary)
        if config.method == "learned":
            return LearnedBasis(layout.width, config.latent, code, vocabulary, seed)
    return Direct(layout.width, code, vocabulary)
