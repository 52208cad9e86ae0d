"""Gradients of weights, computed while nothing else can be: "zero bubble" (Qi et al., 2023).

Other stages wait for the gradients of inputs. Those of weights are for the optimiser alone.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

WIDE = 8  # times its input: gradients of wider outputs, such as logits, take much memory
Left = deque[tuple[Tensor, Tensor, Tensor]]  # a weight, and its layer's input and gradient


class LaterGradients(TorchFunctionMode):
    """Linear layers that run in this context leave the gradients of their weights to `run_one`."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: deque[Left] = deque()
        self._newest = Left()

    @property
    def batches(self) -> int:
        """How many backward passes have left something: inputs, and gradients of outputs."""
        return len(self._batches)

    @torch.no_grad()
    def run_one(self) -> None:
        """Compute the oldest gradient that was left; IndexError where `batches` is 0."""
        weight, x, gradient = self._batches[0].popleft()
        if not self._batches[0]:
            self._batches.popleft()
        rows, columns = (each.reshape(-1, each.shape[-1]) for each in (gradient, x))
        made = (rows.T @ columns).to(weight.dtype)
        weight.grad = made if weight.grad is None else weight.grad.add_(made)

    def __enter__(self) -> Self:
        self._newest = Left()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self,
        function: Callable[..., Any],
        _types: Iterable[type],
        given: tuple[Any, ...] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is functional.linear and torch.is_grad_enabled():
            function = self._linear
        return function(*given, **(named or {}))

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        is_trained = input.requires_grad and weight.requires_grad and weight.is_leaf
        if not is_trained or len(weight) > WIDE * weight.shape[1]:
            return functional.linear(input, weight, bias)
        made, version = functional.linear(input, weight.detach(), bias), input._version
        left, x = self._newest, input.detach().to(made.dtype)  # with autocast not that of `input`

        def leave(gradient: Tensor) -> None:
            # Autograd does not see it here.
            assert input._version == version, "a layer has changed another one's input in place"
            if not left:
                self._batches.append(left)
            left.append((weight, x, gradient))

        made.register_hook(leave)  # type: ignore[no-untyped-call]
        return made
