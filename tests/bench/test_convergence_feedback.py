"""The ablation's feedback gives back what a code lost, and only where something is learned."""

import torch

from bench.convergence_feedback import feed_back
from models.bottleneck.codes import Ternary
from models.bottleneck.payload import Context, Direct

CONTEXT = Context(1, 1)


def test_what_is_sent_of_the_same_numbers_sums_up_to_them() -> None:
    x = torch.tensor([[[1.0, 0.3, -0.2]]])
    boundary = Direct(3, Ternary(), 256)
    feed_back(boundary)
    total, gradients = torch.zeros(3), torch.zeros(3)
    for _ in range(400):
        leaf = x.clone().requires_grad_()
        sent = boundary(leaf, CONTEXT)
        sent.backward(x)
        assert leaf.grad is not None
        total, gradients = total + sent.detach().flatten(), gradients + leaf.grad.flatten()
    assert torch.allclose(total / 400, x.flatten(), atol=0.02)
    assert torch.allclose(gradients / 400, x.flatten(), atol=0.02)


def test_judging_leaves_what_was_lost_alone() -> None:
    x = torch.tensor([[[1.0, 0.3, -0.2]]])
    plain, boundary = Direct(3, Ternary(), 256), Direct(3, Ternary(), 256)
    feed_back(boundary)
    boundary(x.clone().requires_grad_(), CONTEXT)
    with torch.no_grad():
        assert torch.equal(boundary(x, CONTEXT), plain(x, CONTEXT))
