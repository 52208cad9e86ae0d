"""How well a demo's rooms understand ten words of all three voices, from clips nobody reports on.

What boards report decides how much each of them counts, so it is no fair measure of the result.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge.data.sources import FolderData, NpzSettings, open_folder
from edge.evaluation import Evaluator
from edge.onnx.session import Inference, LoadedModel, TrainStep
from edge.trainer import AdamSettings, Trainer, round_rng
from models.zoo import rooms_path
from ternmesh.plan import Plan
from ternmesh.types import Vector
from ternmesh_cli import keys
from ternmesh_cli.demo.fleet import BOARDS, ROWS
from ternmesh_cli.export import learned_on_host


@dataclass(frozen=True, slots=True)
class Judged:
    """Shares of clips that are right."""

    alone: dict[str, float]  # by room: with what its own board learns from its own clips
    fleet: float  # with the fleet's adapter, which all boards have
    averaged: float  # with the average of whole adapters in float32 in each round


def judge(config: Path, plan: Plan, seed: int) -> Judged:
    """Judge the fleet whose host has this configuration and may run; train its two peers here."""
    loaded, learned, _ = learned_on_host(config, keys.read(config))
    evaluator = Evaluator(Inference(loaded.folder, loaded.package), loaded.package)
    clips = _open(loaded, part="judged")

    def share(adapter: Vector) -> float:
        for _ in evaluator.evaluate(clips, np.arange(len(clips)), loaded.package.split(adapter)):
            pass
        return evaluator.take()[0] or 0.0

    heard = {room: _open(loaded, speaker=room, part="heard") for room in BOARDS}
    return Judged(
        {room: share(_trained(loaded, {room: data}, plan, seed)) for room, data in heard.items()},
        share(learned),
        share(_trained(loaded, heard, plan, seed)),
    )


def _open(loaded: LoadedModel, **where: str) -> FolderData:
    return open_folder(rooms_path(), loaded.package, NpzSettings(**ROWS, where=where))


def _trained(loaded: LoadedModel, heard: Mapping[str, FolderData], plan: Plan, seed: int) -> Vector:
    """What boards learn whose whole adapters are averaged in each round; one alone just learns."""
    step, vector = TrainStep(loaded.folder, loaded.package, 1), loaded.initial
    batch, sizes = loaded.package.batch, [len(data) for data in heard.values()]
    trainers = {room: Trainer(step, data, batch, AdamSettings()) for room, data in heard.items()}
    for number in range(plan.rounds):
        for room, trainer in trainers.items():
            trainer.begin(number, vector, plan, round_rng(seed, room, number))
            while trainer.step():
                pass
        deltas = [trainer.delta() for trainer in trainers.values()]
        vector = vector + np.average(deltas, axis=0, weights=sizes).astype(np.float32)
    return vector
