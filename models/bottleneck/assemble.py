"""From a configuration to stages: cuts, boundaries, and layers confined to the subspace."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.bottleneck.codes import Code, Float, Integer, Ternary, TopK
from models.bottleneck.config import BITS, BottleneckConfig
from models.bottleneck.frame import Frame, make_basis, make_table
from models.bottleneck.learned import LearnedBasis
from models.bottleneck.payload import Bottleneck, Direct
from models.bottleneck.resbm import ResidualBottleneck
from models.bottleneck.subspace import FACTORS, ROWS, SubspaceBottleneck, confine
from models.stages import Stage, cut


@dataclass(frozen=True, slots=True)
class Layout:
    """A model as boundaries see it.

    `outputs` are the last names of the layers that write into the residual stream, `tokens` that of
    the token table; `positions` [length, width] is what is added to a token's row.
    """

    width: int
    vocabulary: int
    outputs: tuple[str, ...]
    tokens: str
    positions: Tensor | None = None


def code_of(config: BottleneckConfig) -> Code:
    """How the numbers become bytes; ValueError."""
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
    layout: Layout,
    config: BottleneckConfig,
    stages: int,
    batch: int,
    length: int,
    recompute: bool = False,
) -> tuple[list[Stage], Frame | None]:
    """The stages for micro-batches [batch, length], and the frame where there is one; ValueError.

    All layers before the last boundary are confined in place where the method asks for it.
    """
    if config.method in ("topk", "resbm", "subspace", "learned") and config.latent > layout.width:
        raise ValueError(f"latent is {config.latent}: it must not exceed the width {layout.width}")
    parts = cut(layers, stages)
    frame = _frame(layout, config) if config.method == "subspace" else None
    if frame is not None:
        form = FACTORS if config.form == "factors" else ROWS
        for layer in (layer for part in parts[:-1] for layer in part):
            confine(layer, (*layout.outputs, layout.tokens), frame, form)
    boundaries = [_boundary(layout, config, frame, place) for place in range(stages - 1)]
    made = [
        Stage(part, entry, exit_, batch, length, recompute)
        for part, entry, exit_ in zip(parts, [None, *boundaries], [*boundaries, None], strict=True)
    ]
    return made, frame


def _frame(layout: Layout, config: BottleneckConfig) -> Frame:
    basis = make_basis(layout.width, config.latent, config.seed)
    table = make_table(layout.vocabulary, layout.width, config.table_std, config.seed)
    return Frame(basis, table, layout.positions)


def _boundary(
    layout: Layout, config: BottleneckConfig, frame: Frame | None, place: int
) -> Bottleneck:
    code, vocabulary = code_of(config), layout.vocabulary
    if frame is not None:
        return SubspaceBottleneck(frame, code)
    with torch.random.fork_rng(devices=[]):
        seed = config.seed + place
        torch.manual_seed(seed)
        if config.method == "resbm":
            return ResidualBottleneck(layout.width, config.latent, code, vocabulary)
        if config.method == "learned":
            return LearnedBasis(layout.width, config.latent, code, vocabulary, seed)
    return Direct(layout.width, code, vocabulary)
