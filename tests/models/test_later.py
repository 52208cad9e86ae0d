"""Gradients of weights that are left for later are those that autograd computes at once."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from models.later import LaterGradients


@pytest.mark.parametrize("is_bf16", [False, True])
def test_what_is_left_is_what_autograd_adds(is_bf16: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4, bias=False))
    found = []
    for later in (None, LaterGradients()):
        model.zero_grad()
        for seed in range(3):
            torch.manual_seed(seed)
            x = torch.randn(2, 3, 6, requires_grad=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16), later or nullcontext():
                out = model(x)
            out.float().square().sum().backward()
        if later is not None:
            assert (model[0].weight.grad, later.batches) == (None, 3)
            while later.batches:
                later.run_one()
        found.append([x.grad, *(each.grad for each in model.parameters())])
    assert all(map(torch.equal, *found))
