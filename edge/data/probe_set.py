"""The probe set: samples without labels that models of all architectures of a fleet own."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.data import sources
from edge.data.front import Front
from edge.errors import DataError
from edge.evaluation import softmax
from edge.onnx.session import Inference
from ternmesh.model_package import ModelPackage, TensorSpec
from ternmesh.wire.knowledge import CLASSES_MAX, PROBE_MAX, Topic, topic_of
from ternmesh_service.notify import no_beat

PREDICTIONS_MAX = 1 << 22  # samples times classes
NUMBERS_MAX = 1 << 24  # samples times inputs: they stay in memory
AT_ONCE = 32  # samples in one prediction


@dataclass(frozen=True, slots=True)
class ProbeSet:
    """The inputs of the samples by the model's names, and what packets about them are about."""

    topic: Topic
    arrays: sources.Arrays
    classes: int
    target: TensorSpec  # the model's tensor of classes

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))


def open_probe_set(
    path: Path,
    package: ModelPackage,
    settings: sources.NpzSettings,
    identity: str = "",
    front: Front | None = None,
) -> ProbeSet:
    """The probe set in the file or folder `path`, as this model sees it; DataError.

    Two models have the same probe set where their inputs are the same numbers. `identity` names an
    array of the file that says which samples they are, where models see them in other forms. With a
    `front`, these are the inputs of the front, and the arrays its rows.
    """
    package = package.outside()
    classes = sources.class_count(package)
    if not 0 < classes <= CLASSES_MAX:
        raise DataError(
            f"{package.name} has {classes or 'no'} classes: knowledge packets are about models "
            f"with 1 to {CLASSES_MAX}"
        )
    if package.outputs[0].shape[1:] != (classes,):
        raise DataError(f"the first output of {package.name} is not one row of scores a sample")
    inputs = replace(package, batch_inputs=tuple(sources.input_specs(package)))
    data = sources.open_folder(path, inputs, settings, needs_all=True)
    count = len(data)
    sample = sum(math.prod(spec.shape[1:]) for spec in sources.input_specs(package))
    most = min(PROBE_MAX - 1, PREDICTIONS_MAX // classes, NUMBERS_MAX // max(1, sample))
    if count > most:
        raise DataError(f"{path} has {count} samples: a probe set of this model has up to {most}")
    arrays = data.batch(np.arange(count))
    named = arrays if not identity else {identity: _identity(path, identity, count)}
    topic = topic_of(named, sources.class_names(package))
    arrays = arrays if front is None else front.rows(arrays)
    return ProbeSet(topic, arrays, classes, sources.target_specs(package)[0])


def predict(
    inference: Inference,
    probe: ProbeSet,
    adapter: sources.Arrays | None = None,
    beat: Callable[[], None] = no_beat,
) -> NDArray[np.float32]:
    """Probabilities of the probe set, float32 [samples, classes]; ModelError.

    `adapter` are the tensors of another adapter than that of `inference`. `beat` is called after
    each batch.
    """
    parts = []
    for at in range(0, len(probe), AT_ONCE):
        inputs = {name: array[at : at + AT_ONCE] for name, array in probe.arrays.items()}
        parts.append(softmax(next(iter(inference.predict({**(adapter or {}), **inputs}).values()))))
        beat()
    return np.concatenate(parts).astype(np.float32)


def _identity(path: Path, name: str, count: int) -> sources.Array:
    if path.is_dir():
        raise DataError(f"{path} is a folder: with knowledge.identity name one .npz file")
    with sources.opened_npz(path) as archive:
        if sources.array_head(path, archive, name)[0][:1] != (count,):
            raise DataError(f"{path}: {name} does not hold one value for each sample")
        array: sources.Array = archive[name]
    return array
