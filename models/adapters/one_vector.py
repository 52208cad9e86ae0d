"""One vector for all layers: a seeded isometric map makes LoRA's numbers from it.

LoRA_i = start_i + sign_i theta[group_i] / sqrt(size of the group). This is the one-hot projection
of Uni-LoRA (Li et al. 2025): its columns have length one and do not overlap. Theta begins at zero.
A and B must not both begin at zero, because all gradients would be zero. So A has a frozen start,
drawn as in `add_lora`; that of B is zero.

Groups and signs come from Philox with keys made from the seed, so they can be computed anywhere.
LoRA's numbers (layer by layer, A before B, in C order) are permuted by `permute`; the number at
place p belongs to group p mod d. The sizes of groups differ by at most one.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from models.adapters.base import Adapter, LowRankLinear, adapter_of, freeze, replace
from models.adapters.lora import init_down
from ternmesh.codec.permutation import permute
from ternmesh.generator import derive_key, words

THETA = "theta"
WORD_BITS = 32


def groups(seed: int, count: int, length: int) -> NDArray[np.int64]:
    """The index into theta, of `length` numbers, for each LoRA number: int64 [count]."""
    key = derive_key("one vector groups", seed.to_bytes(8, "little"))
    return permute(key, np.arange(count, dtype=np.uint32), count) % length


def signs(seed: int, count: int) -> NDArray[np.bool_]:
    """Whether each LoRA number is negated: bool [count], the stream's bits, lowest bit first."""
    key = derive_key("one vector signs", seed.to_bytes(8, "little"))
    stream = words(key, -(-count // WORD_BITS)).astype("<u4").view(np.uint8)
    return np.unpackbits(stream, count=count, bitorder="little").astype(np.bool_)


class OneVectorLinear(LowRankLinear):
    """A frozen linear layer plus s A B. All layers read A and B from the same `theta` [d].

    `weights` (float32, [d]) are 1 / sqrt(size) of the groups; `start` [in, rank] belongs to A.
    `places` (int64, A before B) are indices into theta followed by minus theta: one gather in
    place of a product with signs, and one table instead of two.
    """

    def __init__(
        self,
        base: nn.Linear,
        theta: nn.Parameter,
        weights: torch.Tensor,
        places: torch.Tensor,
        start: torch.Tensor,
        scale: float,
    ) -> None:
        super().__init__(base)
        self.theta = theta
        self.scale = scale
        self.register_buffer("weights", weights)
        self.register_buffer("start", start)
        self.register_buffer("places_a", places[: start.numel()].contiguous())
        self.register_buffer("places_b", places[start.numel() :].contiguous())

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        start = self.get_buffer("start")
        numbers = self.theta * self.get_buffer("weights")
        both = torch.cat((numbers, -numbers))
        down = both.index_select(0, self.get_buffer("places_a")).reshape(start.shape)
        up = both.index_select(0, self.get_buffer("places_b")).reshape(start.shape[1], -1)
        return start + down, self.scale * up


def add_one_vector(
    module: nn.Module, patterns: Sequence[str], *, rank: int, alpha: float, length: int, seed: int
) -> Adapter:
    """Freeze `module` and add LoRA from one vector to the layers that `patterns` name, in place.

    D is `length`. The vector is the parameter `theta` of `module`. ValueError for a wrong length.
    """
    matches = freeze(module, patterns, rank)
    counts = [rank * (layer.in_features + layer.out_features) for layer in matches.values()]
    count = sum(counts)
    if not 0 < length <= count:
        raise ValueError(f"length is {length}: it must be 1 to {count}, the size of LoRA itself")
    group = groups(seed, count, length)
    weights = torch.from_numpy(1 / np.sqrt(np.bincount(group)).astype(np.float32))
    places = torch.from_numpy(group + length * signs(seed, count))
    if hasattr(module, THETA):
        raise ValueError(f"the module has a {THETA} already: add the space only once")
    theta = nn.Parameter(torch.zeros(length))
    module.register_parameter(THETA, theta)
    generator = torch.Generator().manual_seed(seed)
    for (name, layer), part in zip(matches.items(), torch.split(places, counts), strict=True):
        start = torch.empty(layer.in_features, rank)
        init_down(start, generator)
        replace(module, name, OneVectorLinear(layer, theta, weights, part, start, alpha / rank))
    return adapter_of({THETA: theta})
