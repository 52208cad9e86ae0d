"""Which labelled samples hurt: the influence of each on the held-out loss.

The influence of a sample is the inner product of its gradient with that of the held-out loss: a
step of training on the sample lowers that loss by so much, to the first order (TracIn with the
present adapter as its only checkpoint: Pruthi et al., "Estimating training data influence by
tracing gradient descent", NeurIPS 2020). That product is also the slope of the sample's loss along
the held-out gradient. Two forward passes of a whole batch measure it, where train_step.onnx with
its fixed batch would take a step for each sample.
"""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.label_queue import Later, PresentModel, label_of, newest
from edge.data.replay import ReplayBuffer
from edge.data.sources import class_names
from edge.errors import DataError, ModelError
from edge.evaluation import sample_losses, spread
from edge.trainer import Arrays, Vector
from ternmesh.model_package import ModelPackage

SAMPLES_MAX = 256  # labelled ones, and held-out ones
WORK_S = 2.0  # after which no further batch begins
GRADIENT_S = 0.8  # of these, for the held-out gradient
STEP = 1e-3  # of the adapter's length: gradients are then those of train_step.onnx within 1 %
BY_GRADIENT, BY_LOSS = "gradient", "loss"

Numbers = NDArray[np.float64]


def begin_influence(buffer: ReplayBuffer, model: PresentModel | None) -> Later:
    """The newest labelled samples, those that hurt most first. DataError.

    `harm` is the rise of the held-out loss for a step of length 1 on the sample. Without held-out
    samples or exact gradients it is the loss of the sample, which is high where the model is sure
    of another label.
    """
    names, package = class_names(buffer.package), buffer.package
    if model is None or not names:
        raise DataError("this needs a node that runs, and a model with classes")
    rows = newest(buffer, SAMPLES_MAX) if len(buffer) else []
    keys, labels = [buffer.key(row) for row in rows], [label_of(buffer, row) for row in rows]
    inputs, of = buffer.inputs(rows), len(buffer)
    classes = np.array([buffer.classes[row] for row in rows], np.int64)

    def finish() -> dict[str, Any]:
        now = time.monotonic()
        gradient, held_out = held_out_gradient(model, package, now + GRADIENT_S)
        found = measure(model, package, inputs, classes, gradient, now + WORK_S)
        harms, losses, guesses = found
        order = np.argsort(-harms, kind="stable")
        return {
            "by": BY_LOSS if gradient is None else BY_GRADIENT,
            "samples": len(harms),
            "of": of,
            "held_out": held_out,
            "rows": [
                {
                    "key": keys[at],
                    "label": labels[at],
                    "guess": names[guesses[at]],
                    "harm": float(harms[at]),
                    "loss": float(losses[at]),
                }
                for at in order
            ],
        }

    return finish


def held_out_gradient(
    model: PresentModel, package: ModelPackage, stop_at: float
) -> tuple[Vector | None, int]:
    """The gradient of the held-out loss (float32, D), and the number of samples behind it.

    It ends with the batch in which `stop_at` is reached (seconds, monotonic). None where there is
    no such gradient, or it is zero.
    """
    data, gradient = model.held_out, model.gradient
    if data is None or gradient is None:
        return None, 0
    chosen = np.random.default_rng(0).permutation(spread(len(data), SAMPLES_MAX))
    batches = np.resize(chosen, (-(-chosen.size // package.batch), package.batch))
    total, done = np.zeros_like(model.adapter), 0
    while done < len(batches) and (not done or time.monotonic() < stop_at):
        total += gradient(model.adapter, data.batch(batches[done]))
        done += 1
    if not np.isfinite(total).all():
        raise ModelError("the gradient of the held-out loss is not finite: has training diverged?")
    mean: Vector = total / np.float32(done)
    return (mean if mean.any() else None), min(done * package.batch, chosen.size)


def measure(
    model: PresentModel,
    package: ModelPackage,
    inputs: Arrays,
    classes: NDArray[np.int64],
    gradient: Vector | None,
    stop_at: float,
) -> tuple[Numbers, Numbers, NDArray[np.int64]]:
    """Harm, loss and guessed class of the first samples, until `stop_at`; ModelError."""
    harms, losses, guesses = [np.empty(0)], [np.empty(0)], [np.empty(0, np.int64)]
    norm = 0.0 if gradient is None else float(np.linalg.norm(gradient))
    step = STEP * max(1.0, float(np.linalg.norm(model.adapter)))
    probe = np.float32(step / norm) * gradient if gradient is not None else 0 * model.adapter
    for start in range(0, len(classes), package.batch):
        part = slice(start, start + package.batch)
        batch = {name: array[part] for name, array in inputs.items()}
        outputs = [
            model.scores(batch | package.split(model.adapter + way))
            for way in ((probe, -probe) if norm else (probe,))
        ]
        found = [sample_losses(package.metric, output, classes[part]) for output in outputs]
        losses.append(np.mean(found, axis=0))
        harms.append((found[1] - found[0]) / (2 * step) * norm if norm else losses[-1])
        guesses.append(np.mean(outputs, axis=0).argmax(axis=1))
        if time.monotonic() >= stop_at:
            break
    result = np.concatenate(harms), np.concatenate(losses), np.concatenate(guesses)
    if not np.isfinite(result[:2]).all():
        raise ModelError("the model gives numbers that are not finite: has training diverged?")
    return result
