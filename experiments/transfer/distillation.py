"""Training with soft labels: a student learns what another model knows, whatever its architecture.

Its own labelled samples and the samples of the probe set are drawn by weight into each batch. The
loss is the cross-entropy with soft labels (Hinton, Vinyals, Dean 2015), and optionally a relational
one: pairs of samples are to be as similar as for the teacher (Tung and Mori, ICCV 2019).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

GRADIENT_NORM_MAX = 1.0
WARM_UP = 0.1  # the share of steps in which the learning rate rises

Augment = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True, slots=True)
class Lesson:
    """Samples to learn from.

    `inputs` have the samples as first axis, `targets` are probabilities [samples, classes], and
    `weights` [samples] say how often each is drawn. `similarity` holds the teacher's cosines of the
    samples' pairs, float32 [samples, samples], NaN where it is not known.
    """

    inputs: tuple[Tensor, ...]
    targets: Tensor
    weights: Tensor
    similarity: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """How a model learns. `relational` is the weight of the relational loss."""

    steps: int
    learning_rate: float
    batch: int = 32
    weight_decay: float = 0.01
    relational: float = 0.0


def join(lessons: Sequence[Lesson], shares: Sequence[float]) -> Lesson:
    """One lesson of several without similarities, each with its share of the draws."""
    shared = [
        lesson.weights / lesson.weights.sum() * share
        for lesson, share in zip(lessons, shares, strict=True)
    ]
    return Lesson(
        tuple(torch.cat(part) for part in zip(*(one.inputs for one in lessons), strict=True)),
        torch.cat([lesson.targets for lesson in lessons]),
        torch.cat(shared),
    )


def learn(
    module: nn.Module,
    lesson: Lesson,
    settings: LearningSettings,
    generator: torch.Generator,
    *,
    augment: Augment | None = None,
) -> None:
    """Train the parameters of `module` that require a gradient, in place.

    `module` has the methods `hidden(*inputs)` [batch, features] and `head(hidden)`, its logits.
    `augment` changes the first input.
    """
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(
        trained, settings.learning_rate, weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, settings.learning_rate, total_steps=settings.steps, pct_start=WARM_UP
    )
    module.train()
    for _ in range(settings.steps):
        drawn = torch.multinomial(
            lesson.weights, settings.batch, replacement=True, generator=generator
        )
        inputs = [one[drawn] for one in lesson.inputs]
        if augment is not None:
            inputs[0] = augment(inputs[0], generator)
        hidden = module.hidden(*inputs)  # type: ignore[operator]
        logits = module.head(hidden)  # type: ignore[operator]
        loss = functional.cross_entropy(logits, lesson.targets[drawn])
        if lesson.similarity is not None:
            known = lesson.similarity[drawn][:, drawn]
            loss = loss + settings.relational * relational_loss(hidden, known)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(trained, GRADIENT_NORM_MAX)
        optimiser.step()
        schedule.step()
    module.eval()


def relational_loss(hidden: Tensor, similarity: Tensor) -> Tensor:
    """How far the cosines of `hidden` [batch, features] are from the teacher's [batch, batch].

    The features are centred over the batch, as those that a hypervector was made of. Unknown pairs
    (NaN) count nothing.
    """
    rows = functional.normalize(hidden - hidden.mean(0), dim=1)
    known = ~similarity.isnan()
    apart = (rows @ rows.T - similarity.nan_to_num()) * known
    return apart.square().sum() / known.sum().clamp(min=1)


def predict(module: nn.Module, inputs: tuple[Tensor, ...], batch: int = 128) -> Tensor:
    """Logits [samples, classes] of a module in evaluation mode."""
    return _in_batches(module, inputs, batch)


def represent(module: nn.Module, inputs: tuple[Tensor, ...], batch: int = 128) -> Tensor:
    """Hidden representations [samples, features] of a module in evaluation mode."""
    return _in_batches(module.hidden, inputs, batch)  # type: ignore[arg-type]


def _in_batches(call: Callable[..., Tensor], inputs: tuple[Tensor, ...], batch: int) -> Tensor:
    starts = range(0, len(inputs[0]), batch)
    with torch.no_grad():
        return torch.cat([call(*(one[at : at + batch] for one in inputs)) for at in starts])
