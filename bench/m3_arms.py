"""The arms of the M3 benchmark. A change of one makes only its own results old."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STEPS = 10


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to learn together; `kind` is "float", "alone", "m3b" or "ours"."""

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
    "alone": Arm("alone", seeds=2, run=COMMON),
    "m3b": Arm("m3b", seeds=2, run=COMMON),
}
