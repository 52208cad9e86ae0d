"""A model cut for a board: its first part, what the host does, and, if labels stay, the head.

`models.split_export` makes bundles of the board's parts.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from models.adapter import Adapter
from models.bottleneck.codes import Float
from models.bottleneck.learned import LearnedBasis
from models.bottleneck.payload import Bottleneck, Context, Direct
from models.bottleneck.resbm import ResidualBottleneck
from models.errors import ExportError

METHODS = ("none", "resbm", "learned")  # top-k and subspace: see docs/DESIGN.md
FIRST, HEAD, HOST = "first", "head", "host.safetensors"
BOUNDARY = "boundary"  # the name of a boundary in the module that it belongs to
FLOATS = Float(32)  # how numbers become bits is the wire's: ternmesh.wire.activation


@dataclass(frozen=True, slots=True)
class Cut:
    """A model in its parts, and what is trained of those on the board.

    `first` takes features [batch, *input_shape] and gives [batch, numbers]; `middle` takes these
    and gives logits of `classes`, or with a `head` what that takes, [batch, numbers].
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int
    first: nn.Module
    middle: nn.Module
    first_adapter: Adapter
    head: nn.Module | None = None
    head_adapter: Adapter | None = None


class Sender(nn.Module):
    """Layers, and what makes small what they give: [batch, length * latent]."""

    def __init__(self, layers: nn.Module, boundary: Bottleneck, length: int) -> None:
        super().__init__()
        self.layers, self.boundary, self.length = layers, boundary, length
        boundary.keep_sender()

    def forward(self, features: Tensor) -> Tensor:
        """The layers' input to the numbers that cross."""
        x = self.layers(features)
        z = self.boundary.shrink(x, _places(self.length, x.device))
        return z.reshape(-1, self.length * self.boundary.latent)


class Receiver(nn.Module):
    """What makes [batch, length, width] of the numbers that crossed, and the layers after that."""

    def __init__(self, boundary: Bottleneck, layers: nn.Module, length: int) -> None:
        super().__init__()
        self.boundary, self.layers, self.length = boundary, layers, length
        boundary.keep_receiver()

    def forward(self, crossed: Tensor) -> Tensor:
        """The numbers that crossed to the layers' output."""
        z = crossed.reshape(-1, self.length, self.boundary.latent)
        result: Tensor = self.layers(self.boundary.grow(z, _places(self.length, z.device)))
        return result


def _places(length: int, device: torch.device) -> Context:
    """Positions in the place of tokens: what a boundary learns of each needs no bytes."""
    return Context(1, length, torch.arange(length, device=device))


def make_boundary(method: str, width: int, latent: int, length: int, seed: int = 0) -> Bottleneck:
    """A boundary of `models.bottleneck` for `length` positions of `width` numbers; ValueError."""
    if method not in METHODS:
        raise ValueError(f"method is {method!r}: it must be one of {', '.join(METHODS)}")
    if method == "none":
        return Direct(width, FLOATS, length)
    if not 0 < latent <= width:
        raise ValueError(f"latent is {latent}: it must be 1 to the width {width}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if method == "resbm":
            return _exportable(ResidualBottleneck(width, latent, FLOATS, length))
        return LearnedBasis(width, latent, FLOATS, length, seed)


class _SiLU(nn.Module):
    """x sigmoid(x) in two operators: torch traces the gradient of its own in place."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


def _exportable(boundary: ResidualBottleneck) -> ResidualBottleneck:
    for network in (boundary.encoder, boundary.decoder):
        assert isinstance(network, nn.Sequential)
        network[1] = _SiLU()
    return boundary


@torch.no_grad()
def fit(boundary: Bottleneck, x: Tensor) -> None:
    """Let a new learned basis begin at the principal components of x [samples, length, width].

    So a model that was trained without a boundary loses least where training begins.
    """
    if not isinstance(boundary, LearnedBasis):
        return
    assert boundary.down is not None
    assert boundary.up is not None
    assert boundary.down_tokens is not None
    assert boundary.up_tokens is not None
    mean = x.mean(0)  # of each position
    rest = (x - mean).reshape(-1, x.shape[-1]).double()
    basis = torch.linalg.eigh(rest.T @ rest)[1].flip(1)[:, : boundary.latent].float()
    boundary.down.copy_(basis)
    boundary.up.copy_(basis)
    boundary.down_tokens.weight.copy_(mean @ basis)
    small, wide = boundary.up_tokens.parameters()  # E is their product
    left, values, right = torch.linalg.svd(mean, full_matrices=False)
    rank = min(len(values), small.shape[1])
    small.zero_()
    wide.zero_()
    small[:, :rank] = left[:, :rank] * values[:rank].sqrt()
    wide[:, :rank] = right[:rank].T * values[:rank].sqrt()


def save_middle(middle: nn.Module, path: Path) -> None:
    """Write what the host's part begins with."""
    save_file({name: value.contiguous() for name, value in middle.state_dict().items()}, path)


def load_middle(middle: nn.Module, path: Path) -> None:
    """Give the host's part the weights of an export; ExportError."""
    try:
        middle.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        why = str(error).strip().splitlines()[-1].strip()  # torch tells of each tensor
        raise ExportError(
            f"{path} does not hold the host's part of this model ({why}): export it again with "
            "the [boundary] of this configuration"
        ) from error


class Make(Protocol):
    """What a configuration names to make the parts: with weights to begin with where it is new."""

    def __call__(self, method: str, latent: int, *, labels_stay: bool, is_new: bool) -> Cut:
        """The parts; ValueError for a boundary that cannot be."""
