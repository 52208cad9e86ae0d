"""Deltas of real training: the keyword model, three voices, recorded round by round."""

from dataclasses import replace

import numpy as np

from bench.demo import _clips
from bench.fleet import Vector
from edge import adam
from edge.session import TrainStep, load_bundle
from edge.trainer import Trainer, round_rng
from host.config import RunConfig, plan_of
from models.zoo import bundle_path
from ternmesh_cli.demo.fleet import BOARDS


def record(rounds: int, seed: int = 0) -> list[Vector]:
    """One delta (float32, D) for each round: the boards take turns to be the one recorded.

    Whole float32 deltas are averaged, so that no codec has a hand in what is recorded.
    """
    loaded = load_bundle(bundle_path("keyword"))
    plan = replace(plan_of(RunConfig(), loaded.bundle.dimension), rounds=rounds)
    step = TrainStep(loaded.folder, loaded.bundle, 1)
    data = [_clips("train", board) for board in BOARDS]
    vector, recorded = loaded.initial, []
    for number in range(rounds):
        deltas = []
        for board, clips in zip(BOARDS, data, strict=True):
            trainer = Trainer(step, clips, loaded.bundle.batch, adam.AdamSettings())
            trainer.begin(number, vector, plan, round_rng(seed, board, number))
            while trainer.step():
                pass
            deltas.append(trainer.delta())
        recorded.append(deltas[number % len(deltas)])
        vector = vector + np.mean(deltas, axis=0, dtype=np.float32)
    return recorded
