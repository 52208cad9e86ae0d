"""A Flower ClientApp that trains a model package on plain onnxruntime .

Its arrays are the adapter tensors of the package by name. The server's configuration has what
`[run]` of a host has: `rounds`, `local-steps`, `learning-rate` and `learning-rate-drop`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from edge.errors import ModelError
from edge.evaluation import Evaluator
from edge.onnx.session import Inference, LoadedModel, TrainStep
from edge.trainer import AdamSettings, Dataset, Trainer, Vector, round_rng
from ternmesh.errors import WireError
from ternmesh.model_package import ModelPackage
from ternmesh.plan import make_plan

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"  # records of a message, as FedAvg has them
SAMPLES, ROUND = "num-examples", "server-round"

Config = Mapping[str, Any]
Metrics = dict[str, float | int]
_DEFAULTS = {"rounds": 20, "local-steps": 8, "learning-rate": 0.005, "learning-rate-drop": 0.0}


@dataclass(frozen=True, slots=True)
class FlowerBoard:
    """What one client has; `name` and `seed` decide in which order it draws its samples."""

    loaded: LoadedModel
    data: Dataset
    held_out: Dataset  # of its own, never trained on
    name: str
    seed: int = 0


def client_app(open_board: Callable[[Context], FlowerBoard]) -> ClientApp:
    """A ClientApp for the messages of FedAvg; `open_board` is called for each message.

    What it cannot do (EdgeError with a sentence) is an error in its reply: the run goes on.
    """

    def answer(
        work: Callable[[FlowerBoard, Vector, Config], tuple[Vector | None, Metrics]],
    ) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            board = open_board(context)
            adapter = read_arrays(message.content[ARRAYS], board.loaded.package)
            trained, metrics = work(board, adapter, message.content[CONFIG])
            content = RecordDict({METRICS: MetricRecord(metrics)})
            if trained is not None:
                content[ARRAYS] = write_arrays(trained, board.loaded.package)
            return Message(content, reply_to=message)

        return handle

    app = ClientApp()
    app.train()(answer(train))
    app.evaluate()(answer(evaluate))
    return app


def train(board: FlowerBoard, adapter: Vector, config: Config) -> tuple[Vector, Metrics]:
    """The adapter (float32, D) after one round on the board's samples; ModelError."""
    package = board.loaded.package
    given = {key.replace("-", "_"): config.get(key, usual) for key, usual in _DEFAULTS.items()}
    try:
        number = int(config[ROUND]) - 1  # Flower counts from 1
        plan = make_plan(package.dimension, **given)
    except (WireError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"the server's configuration cannot be used: {error}") from error
    step = TrainStep(board.loaded.folder, package, threads=1)
    trainer = Trainer(step, board.data, package.batch, AdamSettings())
    trainer.begin(number, adapter, plan, round_rng(board.seed, board.name, number))
    while trainer.step():
        pass
    trained = adapter + trainer.delta()
    if trainer.loss is None or not np.isfinite(trained).all():
        raise ModelError(f"round {number + 1} has diverged: choose a smaller learning-rate")
    return trained, {"loss": trainer.loss, SAMPLES: len(board.data)}


def evaluate(board: FlowerBoard, adapter: Vector, _config: Config) -> tuple[None, Metrics]:
    """Loss and metric of an adapter (float32, D) on the samples held out; ModelError."""
    package, count = board.loaded.package, len(board.held_out)
    evaluator = Evaluator(Inference(board.loaded.folder, package), package)
    for _ in evaluator.evaluate(board.held_out, np.arange(count), package.split(adapter)):
        pass
    metric, loss = evaluator.take()
    if metric is None or loss is None:
        raise ModelError("the adapter gives NaN or infinity on the samples held out")
    return None, {"loss": loss, package.metric: metric, SAMPLES: count}


def write_arrays(adapter: Vector, package: ModelPackage) -> ArrayRecord:
    """The tensors of an adapter (float32, D) by name."""
    tensors = package.split(adapter)
    return ArrayRecord({name: Array(np.ascontiguousarray(t)) for name, t in tensors.items()})


def read_arrays(record: ArrayRecord, package: ModelPackage) -> Vector:
    """The adapter (float32, D) in a record; ModelError where it has other tensors, or NaN."""
    if set(record) != {spec.name for spec in package.adapter}:
        raise ModelError(f"the server's arrays are no adapter of {package.name}: names differ")
    parts = []
    for spec in package.adapter:
        tensor = record[spec.name].numpy()
        if tensor.shape != spec.shape or tensor.dtype != np.float32:
            raise ModelError(f"{spec.name} of the server must be float32 {spec.shape}")
        parts.append(tensor.ravel())
    vector: Vector = np.concatenate(parts)
    if not np.isfinite(vector).all():
        raise ModelError("the server's arrays hold NaN or infinity")
    return vector
