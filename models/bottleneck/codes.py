"""Codes that turn a payload's numbers into bytes: floats, or integers of 8 or 4 bits.

A code handles each token's vector alone, so no token's bytes depend on a later token. The bytes
travel as the bits of a float32 tensor. Autograd returns the gradient of such a tensor in the same
size and type, so the coded gradient travels back the same way, and the pipeline engine only sees
float32 tensors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from models.errors import BottleneckError

WORD = 4  # bytes of a float32
TINY = 1e-30


class Code(Protocol):
    """Encodes rows of float32 [rows, width] as rows of bytes, uint8 [rows, size(width)]."""

    def size(self, width: int) -> int:
        """Bytes of a row."""

    def encode(self, x: Tensor) -> Tensor:
        """float32 [rows, width] to uint8 [rows, size(width)]."""

    def decode(self, data: Tensor, width: int) -> Tensor:
        """uint8 [rows, size(width)] to float32 [rows, width], as exactly as the code allows."""


@dataclass(frozen=True, slots=True)
class Float:
    """float32, or bfloat16 with 16 bits."""

    bits: int = 32

    @property
    def _type(self) -> torch.dtype:
        return torch.float32 if self.bits == 32 else torch.bfloat16

    def size(self, width: int) -> int:
        return width * self.bits // 8

    def encode(self, x: Tensor) -> Tensor:
        return x.to(self._type).contiguous().view(torch.uint8)

    def decode(self, data: Tensor, width: int) -> Tensor:  # noqa: ARG002
        return data.view(self._type).float()


@dataclass(frozen=True, slots=True)
class Integer:
    """Integers of 8 or 4 bits. A row begins with its step size, a bfloat16."""

    bits: int = 8

    @property
    def _most(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def size(self, width: int) -> int:
        return 2 + -(-width * self.bits // 8)

    def encode(self, x: Tensor) -> Tensor:
        step = (x.abs().amax(1, keepdim=True) / self._most).clamp_min(TINY).bfloat16()
        steps = (x / step.float()).round().clamp(-self._most, self._most)
        whole = (steps.nan_to_num() + self._most).to(torch.uint8)
        if self.bits == 4:
            whole = torch.nn.functional.pad(whole, (0, x.shape[1] % 2))
            whole = whole[:, ::2] | whole[:, 1::2] << 4
        return torch.cat((step.view(torch.uint8), whole), dim=1)

    def decode(self, data: Tensor, width: int) -> Tensor:
        """Each number is within half a step of what was encoded."""
        # A single row keeps its old stride unless it is copied, and `view` refuses odd ones.
        step = data[:, :2].clone(memory_format=torch.contiguous_format).view(torch.bfloat16).float()
        whole = data[:, 2:]
        if self.bits == 4:
            whole = torch.stack((whole & 15, whole >> 4), dim=2).flatten(1)[:, :width]
        return (whole.float() - self._most) * step


def words(code: Code, rows: int, width: int) -> int:
    """How many float32 words hold the bytes of `rows` vectors."""
    return -(-rows * code.size(width) // WORD)


def to_words(code: Code, x: Tensor) -> Tensor:
    """float32 [words] whose bits are the coded rows of x [..., width], padded with zeros."""
    data = code.encode(x.detach().reshape(-1, x.shape[-1]).float()).flatten()
    return torch.nn.functional.pad(data, (0, -len(data) % WORD)).view(torch.float32)


def from_words(code: Code, wire: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x of `shape` [..., width] from its words; BottleneckError for a wrong size or NaN."""
    rows, width = math.prod(shape[:-1]), shape[-1]
    size = code.size(width)
    if wire.shape != (words(code, rows, width),):
        raise BottleneckError(
            f"a payload has {tuple(wire.shape)} words instead of {words(code, rows, width)}: "
            "start all ranks with the same configuration"
        )
    data = wire.detach().contiguous().view(torch.uint8)[: rows * size].view(rows, size)
    x = code.decode(data, width)
    # On a GPU this would wait for it; there, the norm of the gradients tells at the end of a step.
    if not x.is_cuda and not bool(torch.isfinite(x).all()):
        raise BottleneckError(
            "a payload holds a number that is not finite: the training has diverged, or a rank is "
            "broken; lower the learning rate, or continue from an older checkpoint"
        )
    return x.view(shape)


class _Compress(torch.autograd.Function):
    """x to words; backward turns the words of the gradient, coded by `back`, into numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, code: Code, back: Code) -> Tensor:
        ctx.back, ctx.shape, ctx.dtype = back, tuple(x.shape), x.dtype
        return to_words(code, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        used = words(ctx.back, math.prod(ctx.shape[:-1]), ctx.shape[-1])
        return from_words(ctx.back, grads[0][:used], ctx.shape).to(ctx.dtype), None, None


class _Expand(torch.autograd.Function):
    """Words to x; backward turns the gradient into words, and zeros behind them.

    Autograd wants a gradient of the input's size. So `back` must not take more than `code`.
    """

    @staticmethod
    def forward(ctx: Any, wire: Tensor, code: Code, back: Code, shape: tuple[int, ...]) -> Tensor:
        ctx.back, ctx.words = back, wire.numel()
        return from_words(code, wire, shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        wire = to_words(ctx.back, grads[0])
        return torch.nn.functional.pad(wire, (0, ctx.words - wire.numel())), None, None, None


compress: Callable[[Tensor, Code, Code], Tensor] = _Compress.apply
expand: Callable[[Tensor, Code, Code, tuple[int, ...]], Tensor] = _Expand.apply
