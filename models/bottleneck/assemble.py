"""Builds the stages of a configuration: cuts, boundaries, and layers confined to the subspace."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.bottleneck.codes import Code, Float, Integer
from models.bottleneck.config import BITS, BottleneckConfig
from models.bottleneck.learned import LearnedBasis
from models.bottleneck.payload import Bottleneck, Direct
from models.bottleneck.resbm import ResidualBottleneck
from models.bottleneck.shared_subspace import SharedSubspace, make_basis, make_table
from models.bottleneck.subspace import FACTORS, ROWS, SubspaceBottleneck, confine


@dataclass(frozen=True, slots=True)
class StageLayout:
    """What the boundaries need from a model. Names are the last parts of dotted module names."""

    width: int
    vocabulary: int
    outputs: tuple[str, ...]  # names of the layers that write into the residual stream
    tokens: str  # name of the token table
    positions: Tensor | None = None  # [length, width], added to the rows of the token table


def code_of(config: BottleneckConfig, *, is_back: bool = False) -> Code:
    """The code that a configuration asks for, forward or back; ValueError."""
    bits = {"none": 32 if config.bits == 32 else 16, "int8": 8}.get(config.method, config.bits)
    if is_back and config.method not in ("none", "int8"):
        bits = min(bits, config.back_bits)
    if bits not in BITS:
        raise ValueError(f"bits is {bits}: it must be one of {', '.join(map(str, BITS))}")
    return Integer(bits) if bits <= 8 else Float(bits)


def confine_part(
    part: Sequence[nn.Module],
    layout: StageLayout,
    config: BottleneckConfig,
    subspace: SharedSubspace | None,
) -> None:
    """Confine the layers of a stage before the last one, in place; ValueError."""
    form = FACTORS if config.form == "factors" else ROWS
    if subspace is not None:
        for layer in part:
            confine(layer, (*layout.outputs, layout.tokens), subspace, form)


def subspace_of(layout: StageLayout, config: BottleneckConfig) -> SharedSubspace | None:
    """The subspace of a model, or None where the method has none; ValueError."""
    if config.numbers(layout.width) > layout.width:
        raise ValueError(f"latent is {config.latent}: it must not exceed the width {layout.width}")
    if config.method != "subspace":
        return None
    basis = make_basis(layout.width, config.numbers(layout.width), config.seed)
    table = make_table(layout.vocabulary, layout.width, config.table_std, config.seed)
    return SharedSubspace(basis, table, layout.positions)


def boundary_at(
    place: int, layout: StageLayout, config: BottleneckConfig, subspace: SharedSubspace | None
) -> Bottleneck:
    """The boundary between the stages `place` and `place` + 1."""
    if config.slow and str(place) not in config.slow:
        made: Bottleneck = Direct(layout.width, Float(16), layout.vocabulary)
        made.sends_ids = config.method in ("subspace", "learned")  # for the boundaries behind it
        return made
    made = _compressed(place, layout, config, subspace)
    made.back = code_of(config, is_back=True)
    return made


def _compressed(
    place: int, layout: StageLayout, config: BottleneckConfig, subspace: SharedSubspace | None
) -> Bottleneck:
    code, vocabulary = code_of(config), layout.vocabulary
    if subspace is not None:
        return SubspaceBottleneck(subspace, code)
    latent = config.numbers(layout.width)
    with torch.random.fork_rng(devices=[]):
        seed = config.seed + place
        torch.manual_seed(seed)
        if config.method == "resbm":
            return ResidualBottleneck(layout.width, latent, code, vocabulary)
        if config.method == "learned":
            return LearnedBasis(layout.width, latent, code, vocabulary, seed)
    return Direct(layout.width, code, vocabulary)
