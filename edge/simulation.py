"""A whole fleet in one process, as far as learning goes: real training and codec, no links."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import fmean

import numpy as np

from edge.config import NodeConfig
from edge.data.front import Front
from edge.data.sources import FolderData, open_folder
from edge.evaluation import Evaluator
from edge.onnx.session import Inference, LoadedModel, TrainStep
from edge.trainer import AdamSettings, Arrays, Indexes, Trainer, round_rng
from ternmesh.codec.encoder import add_residual, settle_residual, zero_residual
from ternmesh.codec.scale import add_q24, to_float, to_vector
from ternmesh.config import ConfigError
from ternmesh.federated.aggregation import encode_update, make_step, scattered
from ternmesh.model_package import ModelPackage
from ternmesh.plan import Plan


class DealtOut:
    """Some of the samples: those of one board."""

    def __init__(self, data: FolderData, indexes: Indexes) -> None:
        self._data = data
        self._indexes = indexes

    def __len__(self) -> int:
        return len(self._indexes)

    def batch(self, indexes: Indexes) -> Arrays:
        return self._data.batch(self._indexes[indexes])

    def set_aside(self, reasons: Mapping[int, str]) -> None:
        """Nothing: a forecast reports on no sample."""


def learn(
    configs: Sequence[NodeConfig], loaded: LoadedModel, plan: Plan, boards: int
) -> Iterator[tuple[float | None, float]]:
    """Accuracy and loss after each round of a fleet.

    The samples of each of `configs` are dealt out to as many boards as those of the others, and
    what boards learn is judged on all held-out samples. ConfigError, DataError, ModelError.
    """
    package, model_hash = loaded.package, loaded.package.model_hash()
    seed, threads = configs[0].training.seed, configs[0].training.threads
    front = Front(loaded, threads)
    opened = [_open(config, package.outside(), front) for config in configs]
    parts: list[DealtOut] = []
    for number, (data, _) in enumerate(opened):
        count = len(range(number, boards, len(opened)))
        if len(data) < count:
            raise ConfigError(f"{len(data)} samples are too few for {count} boards")
        dealt = np.random.default_rng((seed, number)).permutation(len(data))
        parts += [DealtOut(data, dealt[at::count]) for at in range(count)]
    step, weights = TrainStep(loaded.folder, package, threads), list(map(len, parts))
    trainers = [Trainer(step, part, package.batch, AdamSettings()) for part in parts]
    evaluator = Evaluator(Inference(loaded.folder, package), package)
    residuals = [zero_residual(plan.dimension) for _ in parts]
    residual, model_q24 = zero_residual(plan.dimension), np.zeros(plan.dimension, np.int32)
    for version in range(1, plan.rounds + 1):
        updates = []
        for number, trainer in enumerate(trainers):
            begin = loaded.initial + to_float(model_q24) + residuals[number]
            rng = round_rng(seed, f"board-{number}", version - 1)
            trainer.begin(version - 1, begin, plan, rng)
            while trainer.step():
                pass
            vector = add_residual(residuals[number], trainer.delta())
            _, carried = encode_update(vector, model_hash, version - 1, plan)
            updates.append(to_vector(scattered(carried, model_hash, version - 1)))
            residuals[number] = settle_residual(vector, updates[-1])
        mean = np.average(updates, axis=0, weights=weights).astype(np.float32)
        _, step_q24, residual = make_step(mean, residual, model_hash, version, plan)
        model_q24 = add_q24(model_q24, step_q24)
        tensors = package.split(loaded.initial + to_float(model_q24))
        found = []
        for _, held_out in opened:
            for _ in evaluator.evaluate(held_out, np.arange(len(held_out)), tensors):
                pass
            found.append(evaluator.take())
        right = [share for share, _ in found if share is not None]
        losses = [inf if loss is None else loss for _, loss in found]
        yield (fmean(right) if right else None), fmean(losses)


def _open(config: NodeConfig, package: ModelPackage, front: Front) -> tuple[FolderData, FolderData]:
    """What a board trains on, and what it is judged on."""
    if config.data.path is None or config.evaluate.path is None:
        raise ConfigError("a forecast needs samples: name files in [data] and [evaluate] path")
    data = open_folder(Path(config.data.path), package, config.data)
    held_out = open_folder(Path(config.evaluate.path), package, config.evaluate)
    return front.data(data), front.data(held_out)
