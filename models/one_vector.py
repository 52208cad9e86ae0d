"""One vector for all layers: LoRA's numbers are read from it through a seeded isometric map.

LoRA_i = start_i + sign_i theta[group_i] / sqrt(size of the group): the one-hot projection of
Uni-LoRA (Li et al. 2025), with columns of length one that never overlap. Theta is zero at the
start. LoRA cannot start there, for A and B would both be zero and so would every gradient: the
frozen start of A is drawn as in `add_lora`, and that of B is zero.

Groups and signs come from Philox with keys of the seed, so that anyone can compute them again:
LoRA's numbers, layer by layer, each with A before B in C order, are put into the order of
`permute`; the one at place p belongs to group p mod d. Groups thus differ by at most one in size.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from models.adapter import Adapter, LowRankLinear, freeze, replace
from models.lora import init_down
from ternmesh.generator import derive_key, words
from ternmesh.hypervector.permutation import permute

THETA = "theta"
WORD_BITS = 32


def groups(seed: int, count: int, length: int) -> NDArray[np.int64]:
    """Which of `length` numbers each of `count` LoRA numbers reads (int64, count)."""
    key = derive_key("one vector groups", seed.to_bytes(8, "little"))
    return permute(key, np.arange(count, dtype=np.uint32), count) % length


def signs(seed: int, count: int) -> NDArray[np.bool_]:
    """Whether each LoRA number reads with a minus: bit i of the stream, lowest bit first."""
    key = derive_key("one vector signs", seed.to_bytes(8, "little"))
    stream = words(key, -(-count // WORD_BITS)).astype("<u4").view(np.uint8)
    return np.unpackbits(stream, count=count, bitorder="little").astype(np.bool_)


class OneVectorLinear(LowRankLinear):
    """A frozen linear layer plus s A B, with A and B read from `theta`, which all layers share.

    `shares` (float32, d) are the 1 / sqrt(size) of the groups, and `start` is that of A. `places`
    (int64, A before B) point into theta followed by minus theta: one gather instead of a product
    with signs, and one table instead of two.
    """

    def __init__(
        self,
        base: nn.Linear,
        theta: nn.Parameter,
        shares: torch.Tensor,
        places: torch.Tensor,
        start: torch.Tensor,
        scale: float,
    ) -> None:
        super().__init__(base)
        self.theta = theta
        self.scale = scale
        self.register_buffer("shares", shares)
        self.register_buffer("start", start)
        self.register_buffer("places_a", places[: start.numel()].contiguous())
        self.register_buffer("places_b", places[start.numel() :].contiguous())

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A, and s B."""
        start = self.get_buffer("start")
        numbers = self.theta * self.get_buffer("shares")
        both = torch.cat((numbers, -numbers))
        down = both.index_select(0, self.get_buffer("places_a")).reshape(start.shape)
        up = both.index_select(0, self.get_buffer("places_b")).reshape(start.shape[1], -1)
        return start + down, self.scale * up


def add_one_vector(
    module: nn.Module,
    patterns: Sequence[str],
    *,
    rank: int,
    alpha: float,
    length: int,
    seed: int = 0,
) -> Adapter:
    """Freeze `module` and let the linear layers named by `patterns` share one vector, in place.

    D is `length`. The vector is the parameter `theta` of `module`.
    """
    matches = freeze(module, patterns, rank)
    counts = [rank * (layer.in_features + layer.out_features) for layer in matches.values()]
    count = sum(counts)
    if not 0 < length <= count:
        raise ValueError(f"length is {length}: it must be 1 to {count}, what LoRA itself has")
    group = groups(seed, count, length)
    shares = torch.from_numpy(1 / np.sqrt(np.bincount(group)).astype(np.float32))
    places = torch.from_numpy(group + length * signs(seed, count))
    if hasattr(module, THETA):
        raise ValueError(f"the module has a {THETA} already: a model takes one such vector")
    theta = nn.Parameter(torch.zeros(length))
    module.register_parameter(THETA, theta)
    generator = torch.Generator().manual_seed(seed)
    for (name, layer), part in zip(matches.items(), torch.split(places, counts), strict=True):
        start = torch.empty(layer.in_features, rank)
        init_down(start, generator)
        replace(module, name, OneVectorLinear(layer, theta, shares, part, start, alpha / rank))
    return Adapter((THETA,), (theta.detach().clone(),), (None,))
