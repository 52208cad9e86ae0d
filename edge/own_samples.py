"""Training on the host's own samples, for `[own_samples]` of a host: from files, as on a board."""

import time
from collections.abc import Callable
from pathlib import Path

from edge.data.front import Front
from edge.data.sources import FolderData, NpzSettings, open_folder
from edge.errors import EdgeError
from edge.onnx.session import LoadedModel, TrainStep, load_model
from edge.trainer import AdamSettings, Trainer, Vector, round_rng
from ternmesh.config import ConfigError
from ternmesh.plan import Plan

SECONDS_MAX = 1.0  # of one round, after which no step begins: the host serves nobody meanwhile
NAME = "host"  # for the order of samples


class OwnTraining:
    """One round of training at a time, always from the global adapter."""

    def __init__(
        self,
        loaded: LoadedModel,
        data: FolderData,
        plan: Plan,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._initial = loaded.initial
        self._trainer = Trainer(
            TrainStep(loaded.folder, loaded.package), data, loaded.package.batch, AdamSettings()
        )
        self._plan = plan
        self._clock = clock

    def __call__(self, round_number: int, adapter: Vector) -> Vector:
        """What training changes of `adapter` (both float32, D); ModelError.

        As many steps as the plan says, or fewer where they take more than `SECONDS_MAX`.
        """
        ends_at = self._clock() + SECONDS_MAX
        rng = round_rng(0, NAME, round_number)
        self._trainer.begin(round_number, self._initial + adapter, self._plan, rng)
        while self._trainer.step() and self._clock() < ends_at:
            pass
        return self._trainer.delta()


def open_own_samples(model: Path, path: Path, settings: NpzSettings, plan: Plan) -> OwnTraining:
    """Training on the samples at `path` with the model package in `model`; ConfigError."""
    try:
        loaded = load_model(model)
        data = open_folder(path, loaded.package.outside(), settings)
        training = OwnTraining(loaded, Front(loaded).data(data), plan)
        training(0, 0 * loaded.initial)  # a model that cannot be trained here fails now
    except EdgeError as error:
        raise ConfigError(f"[own_samples]: {error}") from error
    return training
