"""A model cut between board and host.

`models.split.export` makes a model package of the board's part.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from models.adapters.base import Adapter
from models.bottleneck.codes import Float
from models.bottleneck.learned import LearnedBasis
from models.bottleneck.payload import Bottleneck, BoundaryContext, Direct
from models.errors import ExportError

METHODS = ("none", "learned")
FIRST, HOST = "first", "host.safetensors"
BOUNDARY = "boundary"  # the submodule's name in Sender and Receiver
FLOATS = Float(32)  # ternmesh.wire.activation has the code for the wire


@dataclass(frozen=True, slots=True)
class Cut:
    """The parts of a model, and the adapter that boards train."""

    name: str
    input_shape: tuple[int, ...]
    classes: int
    first: nn.Module  # on the board: features [batch, *input_shape] to [batch, numbers]
    rest: nn.Module  # on the host: to logits [batch, classes]
    adapter: Adapter  # of the first part


class BoundarySender(nn.Module):
    """Layers, and the sending side of a boundary behind them."""

    def __init__(self, layers: nn.Module, boundary: Bottleneck, length: int) -> None:
        super().__init__()
        self.layers = layers
        self.boundary = boundary
        self.length = length
        boundary.keep_sender()

    def forward(self, features: Tensor) -> Tensor:
        """The layers' input to the numbers that cross, [batch, length * latent]."""
        x = self.layers(features)
        z = self.boundary.shrink(x, _places(self.length, x.device))
        return z.reshape(-1, self.length * self.boundary.latent)


class BoundaryReceiver(nn.Module):
    """The receiving side of a boundary, and layers behind it."""

    def __init__(self, boundary: Bottleneck, layers: nn.Module, length: int) -> None:
        super().__init__()
        self.boundary = boundary
        self.layers = layers
        self.length = length
        boundary.keep_receiver()

    def forward(self, crossed: Tensor) -> Tensor:
        """The numbers that crossed, [batch, length * latent], to the layers' output."""
        z = crossed.reshape(-1, self.length, self.boundary.latent)
        result: Tensor = self.layers(self.boundary.grow(z, _places(self.length, z.device)))
        return result


def _places(length: int, device: torch.device) -> BoundaryContext:
    """Positions in place of tokens: both sides know them, so they take no bytes."""
    return BoundaryContext(1, length, torch.arange(length, device=device))


def make_boundary(method: str, width: int, latent: int, length: int) -> Bottleneck:
    """A boundary of `models.bottleneck` for `length` positions of `width` numbers; ValueError."""
    if method not in METHODS:
        raise ValueError(f"method is {method!r}: it must be one of {', '.join(METHODS)}")
    if method == "none":
        return Direct(width, FLOATS, length)
    if not 0 < latent <= width:
        raise ValueError(f"latent is {latent}: it must be 1 to the width {width}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LearnedBasis(width, latent, FLOATS, length, 0)


@torch.no_grad()
def fit(boundary: Bottleneck, x: Tensor) -> None:
    """Set a new learned basis to the principal components of x [samples, length, width].

    A model that was trained without a boundary then loses the least at the start.
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


def save_rest(rest: nn.Module, path: Path) -> None:
    """Write the initial weights of the host's part."""
    save_file({name: value.contiguous() for name, value in rest.state_dict().items()}, path)


def load_rest(rest: nn.Module, path: Path) -> None:
    """Load the weights of an export into the host's part; ExportError."""
    try:
        rest.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        why = str(error).strip().splitlines()[-1].strip()  # torch lists each tensor
        raise ExportError(
            f"{path} does not hold the host's part of this model ({why}): export it again with "
            "the [boundary] of this configuration"
        ) from error


class Make(Protocol):
    """The function that a configuration names; it makes the parts of a model.

    Where `is_new` is false, the caller loads the weights.
    """

    def __call__(self, method: str, latent: int, *, is_new: bool) -> Cut:
        """The parts; ValueError for an impossible boundary."""
