"""One arm of M3 with one seed: `python -m bench.m3_worker ARM SEED ROUNDS PAIRS FOLDER`.

It prints one JSON line: accuracy of the adapter on the first PAIRS held-out pairs, which of
them are right, and bytes on the wire of one board and round.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.simulated_fleet import Clips, average_in_float, correct, run_fleet
from edge.onnx.session import load_model
from host.config import RunConfig, plan_of

BOARDS, TEST = ("board-0", "board-1"), "test"
STEPS = 10


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to learn together; `kind` is "float" or "ours"."""

    kind: str
    space: str = "lora"
    seeds: int = 8
    drop: float = 0.0
    keys: bool = False
    run: Mapping[str, Any] = field(default_factory=dict)


COMMON = {"learning_rate": 2e-3, "learning_rate_drop": 1.0, "local_steps": STEPS}
OURS = {**COMMON, "frame_mtu": 512, "scale_max": 10.0}
SMALL = {**OURS, "learning_rate": 5e-3, "up_bytes": 1600, "down_bytes": 2650}
LARGE = {**OURS, "up_bytes": 10_000, "down_bytes": 10_000}
ARMS = {
    "float": Arm("float", run=COMMON),
    "10kb": Arm("ours", "lora_r4", run=LARGE),
    "1600b": Arm("ours", "one_vector", run=SMALL),
    "1600b_drop20": Arm("ours", "one_vector", drop=0.2, run={**SMALL, "manifest_repeats": 1}),
    "1600b_keys": Arm("ours", "one_vector", seeds=2, keys=True, run=SMALL),
}


def run(arm: Arm, seed: int, rounds: int, pairs: int, folder: Path) -> dict[str, Any]:
    """Train one arm and judge its adapters."""
    began = time.monotonic()
    loaded = load_model(folder / arm.space)
    data = [read(folder, board) for board in BOARDS]
    plan = plan_of(RunConfig(rounds=rounds, **arm.run), loaded.package.dimension)
    if arm.kind == "ours":
        made = run_fleet(loaded, data, plan, seed, drop=arm.drop, keep_moments=True, keys=arm.keys)
        vector, up, down = made.vector, made.bytes_up, made.bytes_down
    else:
        vector = average_in_float(loaded, data, plan, seed, keep_moments=True)
        up = down = 4.0 * plan.dimension
    trained = time.monotonic() - began
    test = read(folder, TEST)
    judged = Clips({name: array[:pairs] for name, array in test.arrays.items()})
    right = correct(loaded, vector, judged)
    return {
        "accuracy": float(right.mean()),
        "right": "".join("01"[int(is_right)] for is_right in right),
        "bytes_up": up,
        "bytes_down": down,
        "train_s": round(trained, 1),
    }


def read(folder: Path, name: str) -> Clips:
    """A split as `bench.m3.prepare` wrote it."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as arrays:
        return Clips({key: arrays[key] for key in arrays.files})


def main() -> None:
    """Run the command in the module's docstring."""
    arm, seed, rounds, pairs, folder = sys.argv[1:6]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print(json.dumps(run(ARMS[arm], int(seed), int(rounds), int(pairs), Path(folder))))


if __name__ == "__main__":
    main()
