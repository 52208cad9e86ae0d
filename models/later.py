"""Gradients of weights, computed while nothing else can be: "zero bubble" (Qi et al., 2023).

Another stage waits for the gradient of a stage's input. Those of its weights are needed only by the
optimiser.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Left = deque[tuple[Tensor, Tensor, Tensor]]  # a weight, and its layer's input and gradient


class LaterGradients(TorchFunctionMode):
    """Linear layers that run in this context leave the gradients of their weights to `run_one`.

    >>> later = LaterGradients()
    >>> layer = torch.nn.Linear(2, 1)
    >>> with later:
    ...     loss = layer(torch.ones(3, 2)).sum()
    >>> loss.backward()
    >>> layer.weight.grad is None, later.batches
    (True, 1)
    >>> later.run_one()
    >>> layer.weight.grad, later.batches
    (tensor([[3., 3.]]), 0)
    """

    def __init__(self) -> None:
        super().__init__()
        self._batches: deque[Left] = deque()
        self._newest = Left()

    @property
    def batches(self) -> int:
        """How many backward passes have left something. Their layers' inputs are kept so long."""
        return len(self._batches)

    @torch.no_grad()
    def run_one(self) -> None:
        """Compute the oldest gradient that was left; IndexError where `batches` is 0."""
        weight, x, gradient = self._batches[0].popleft()
        if not self._batches[0]:
            self._batches.popleft()
        made = (gradient.flatten(0, -2).T @ x.flatten(0, -2)).to(weight.dtype)
        weight.grad = made if weight.grad is None else weight.grad.add_(made)

    def __enter__(self) -> Self:
        self._newest = Left()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self,
        function: Callable[..., Any],
        _types: Iterable[type],
        arguments: tuple[Any, ...] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is functional.linear and torch.is_grad_enabled():
            return self._linear(*arguments, **(named or {}))
        return function(*arguments, **(named or {}))

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not (weight.is_leaf and weight.requires_grad):
            return functional.linear(input, weight, bias)
        layer = _Linear.apply(self._batches, self._newest, input, weight, bias)  # type: ignore[no-untyped-call]
        made: Tensor = layer
        return made


class _Linear(torch.autograd.Function):
    """torch's linear layer, whose backward pass adds to `left`, and that to `batches`."""

    @staticmethod
    def forward(
        ctx: Any, batches: deque[Left], left: Left, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        made = functional.linear(x, weight, bias)
        ctx.save_for_backward(x.to(made.dtype), weight)  # autocast computes with such numbers
        ctx.batches, ctx.left, ctx.has_bias = batches, left, bias is not None
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if not ctx.left:
            ctx.batches.append(ctx.left)
        ctx.left.append((weight, x, gradient))
        of_bias = gradient.flatten(0, -2).sum(0) if ctx.has_bias else None
        return None, None, gradient @ weight.to(gradient.dtype), None, of_bias
