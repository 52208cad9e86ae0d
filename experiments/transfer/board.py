"""The student on a board: its exported package on onnxruntime, and trained there by packet."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from edge.data.feed import Rehearsal
from edge.knowledge import TaughtSamples
from edge.onnx.session import Inference, TrainStep, load_model, write_adapter
from edge.trainer import AdamSettings, Trainer, round_rng
from experiments.data import Clips
from models.adapters.base import adapter_of
from models.export import export
from ternmesh.plan import make_plan
from ternmesh.wire.knowledge import Labels

BATCH, LEARNING_RATE = 32, 5e-3
ROUNDS, STEPS = 30, 40

Array = NDArray[Any]


def run_on_board(
    module: nn.Module,
    fresh: nn.Module,
    labels: tuple[str, ...],
    few: tuple[Array, Array],
    probe: Array,
    taught: Labels,
    test: tuple[Array, Array],
) -> dict[str, float]:
    """Accuracies on `test` (features and classes), through onnxruntime, of two students.

    "board" was trained in torch, with a LoRA adapter. "board_trained" is `fresh`, trained by the
    exported train step on the few labels and those of the packet.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = {"board": _accuracy(_export(module, labels, Path(folder, "a")), None, test)}
        path = _export(fresh, labels, Path(folder, "b"))
        found["board_trained"] = _accuracy(path, _train(path, few, probe, taught), test)
    return found


def _export(module: nn.Module, labels: tuple[str, ...], folder: Path) -> Path:
    trained = {name: one for name, one in module.named_parameters() if one.requires_grad}
    example = (torch.rand(BATCH, 50, 32),), (torch.zeros(BATCH, dtype=torch.int64),)
    export(module, adapter_of(trained), functional.cross_entropy, example, folder,
           name="student", labels=labels)  # fmt: skip
    return folder


def _train(path: Path, few: tuple[Array, Array], probe: Array, taught: Labels) -> Array:
    """The adapter after a run of one board, float32 [D]."""
    loaded = load_model(path)
    [inputs] = (spec.name for spec in loaded.package.inputs)
    target = loaded.package.batch_inputs[-1]
    known = TaughtSamples({inputs: probe}, target)
    known.teach(taught, np.ones(len(taught)))
    data = Rehearsal(Clips({inputs: few[0], target.name: few[1]}), known)
    trainer = Trainer(TrainStep(path, loaded.package, 1), data, BATCH, AdamSettings(),
                      keep_moments=True)  # fmt: skip
    plan = make_plan(loaded.package.dimension, rounds=ROUNDS, local_steps=STEPS,
                     learning_rate=LEARNING_RATE, learning_rate_drop=1.0)  # fmt: skip
    vector = loaded.initial
    for number in range(ROUNDS):
        trainer.begin(number, vector, plan, round_rng(0, "student", number))
        while trainer.step():
            pass
        vector = vector + trainer.delta()
    return vector


def _accuracy(path: Path, vector: Array | None, test: tuple[Array, Array]) -> float:
    loaded = load_model(path)
    inference = Inference(path, loaded.package)
    if vector is not None:
        adapter = path / "trained.onnx_adapter"
        write_adapter(adapter, loaded.package, vector, 1)
        inference.use_adapter(adapter)
    [name] = (spec.name for spec in loaded.package.inputs)
    [logits] = inference.predict({name: test[0]}).values()
    return float((logits.argmax(1) == test[1]).mean())
