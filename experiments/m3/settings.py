"""Settings of the experiment: its three arms, and how each of them trains and sends."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge.config import TrainingConfig
from host.config import RunConfig

NODES = ("one", "two")
BATCH = 8
TOKENS = 40
JSON, TERNARY, HYPERVECTOR = "json", "ternary", "hypervector"


@dataclass(frozen=True, slots=True)
class Space:
    """Which numbers are trained besides the head; see `models.adapters.spaces.SpaceConfig`."""

    space: str = "lora"
    rank: int = 8
    alpha: float = 16.0
    length: int = 1024


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to learn together. `codec` is JSON, TERNARY or HYPERVECTOR."""

    name: str
    title: str
    codec: str
    run: RunConfig
    space: Space = field(default_factory=Space)
    training: TrainingConfig = field(default_factory=TrainingConfig)


@dataclass(frozen=True, slots=True)
class Experiment:
    """The choices of the command line."""

    folder: Path  # holds everything that the experiment writes
    data: Path  # holds the SNLI files
    encoder: str
    rounds: int
    steps: int  # local steps of a node in a round
    seed: int
    length: int  # numbers that the ternmesh arm trains besides the head


def make_arms(experiment: Experiment) -> dict[str, Arm]:
    """Return the arms by name.

    The learning rates were chosen on pairs outside the test set. The host waits for both nodes.
    """
    common: dict[str, Any] = {
        "rounds": experiment.rounds,
        "local_steps": experiment.steps,
        "min_peers": len(NODES),
        "deadline_s": 3600.0,
        "announce_s": 5,
    }
    training = TrainingConfig(seed=experiment.seed, samples_min=1, keep_moments=True)
    published = RunConfig(learning_rate=0.002, learning_rate_drop=1.0, **common)
    ours = RunConfig(
        learning_rate=0.005,
        learning_rate_drop=1.0,
        frame_mtu=512,
        up_bytes=1600,
        down_bytes=2650,
        scale_max=10.0,
        **common,
    )
    space = Space("one_vector", length=experiment.length)
    arms = (
        Arm("m3a", "M3a: LoRA states as JSON text", JSON, published, training=training),
        Arm("m3b", "M3b: ternary LoRA states, base64", TERNARY, published, training=training),
        Arm("ours", "ternmesh: hypervectors", HYPERVECTOR, ours, space, training),
    )
    return {arm.name: arm for arm in arms}
