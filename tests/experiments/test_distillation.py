"""A student learns soft labels and similarities, and no more than it is taught."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from experiments.transfer.distillation import (
    GRADIENT_NORM_MAX,
    LearningSettings,
    Lesson,
    learn,
    predict,
    relational_loss,
    represent,
)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)

    def hidden(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x))


def lesson(count: int = 60) -> Lesson:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 4, generator=generator)
    return Lesson((x,), (2 * x[:, :3]).softmax(1), torch.ones(count))


SETTINGS = LearningSettings(steps=300, learning_rate=0.02)


def train(taught: Lesson, settings: LearningSettings = SETTINGS) -> nn.Module:
    module = Small()
    learn(module, taught, settings, torch.Generator().manual_seed(0))
    return module


def test_soft_labels_are_learned() -> None:
    taught = lesson()
    found = predict(train(taught), taught.inputs).softmax(1)
    assert (found - taught.targets).abs().mean() < 0.03


def test_a_sample_of_weight_zero_is_not_drawn() -> None:
    taught = lesson()
    taught.weights[:30] = 0
    taught.inputs[0][:30] = torch.nan
    assert predict(train(taught), taught.inputs)[30:].isfinite().all()


def test_the_relational_loss_brings_similarities_nearer() -> None:
    taught = lesson()
    generator = torch.Generator().manual_seed(2)
    rows = nn.functional.normalize(torch.randn(60, 5, generator=generator), dim=1)
    taught = Lesson(taught.inputs, taught.targets, taught.weights, rows @ rows.T)
    losses = [
        relational_loss(represent(module, taught.inputs), rows @ rows.T)
        for module in (train(taught), train(taught, LearningSettings(300, 0.02, relational=20.0)))
    ]
    assert losses[1] < 0.8 * losses[0]


def test_steps_are_clipped_inputs_augmented_and_the_module_ends_in_evaluation_mode() -> None:
    taught = replace(lesson(), targets=100 * lesson().targets)  # a hundred times the gradient
    seen: list[Tensor] = []

    def louder(x: Tensor, _generator: torch.Generator) -> Tensor:
        seen.append(x)
        return 2 * x

    module = Small()
    settings = LearningSettings(steps=3, learning_rate=1e-6)
    learn(module, taught, settings, torch.Generator().manual_seed(0), augment=louder)
    assert [len(x) for x in seen] == 3 * [settings.batch]
    unclipped = Small()
    loss = nn.functional.cross_entropy(unclipped(2 * taught.inputs[0]), taught.targets)
    loss.backward()
    norms = [
        torch.cat([p.grad.ravel() for p in one.parameters() if p.grad is not None]).norm()
        for one in (unclipped, module)
    ]
    assert norms[0] > GRADIENT_NORM_MAX >= norms[1] - 1e-5
    assert not module.training
