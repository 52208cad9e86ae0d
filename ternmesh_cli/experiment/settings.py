"""What an experiment is told: its arms, and how each of them learns and sends."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge.config import TrainingConfig
from host.config import RunConfig

NODES = ("one", "two")
BATCH, TOKENS = 8, 40
CURVE_EVERY, CURVE_PAIRS = 10, 800  # between the ends, accuracy is taken coarsely
JSON, TERNARY, HYPERVECTOR = "json", "ternary", "hypervector"


@dataclass(frozen=True, slots=True)
class Space:
    """Which numbers are trained besides the head; as `models.spaces.SpaceConfig`.

    No `layers` mean the attention's q, k, v and o.
    """

    space: str = "lora"
    rank: int = 8
    alpha: float = 16.0
    length: int = 1024
    layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to learn together. `codec` says what travels: JSON, TERNARY or HYPERVECTOR."""

    name: str
    title: str
    codec: str
    run: RunConfig
    space: Space = field(default_factory=Space)
    training: TrainingConfig = field(default_factory=TrainingConfig)


@dataclass(frozen=True, slots=True)
class Experiment:
    """What the command line chose. `folder` holds everything that the experiment makes."""

    folder: Path
    data: Path
    encoder: str
    rounds: int
    steps: int
    seed: int
    length: int = 36_000

    def identity(self) -> dict[str, Any]:
        """What must stay the same for a started experiment to go on."""
        return {
            "encoder": self.encoder,
            "rounds": self.rounds,
            "steps": self.steps,
            "seed": self.seed,
            "length": self.length,
            "batch": BATCH,
            "tokens": TOKENS,
        }


def make_arms(experiment: Experiment) -> dict[str, Arm]:
    """The arms of M3 by name, each with the learning rate that suited it on pairs set aside.

    Nobody is left out of a round: the host waits for both nodes.
    """
    everyone: dict[str, Any] = {
        "rounds": experiment.rounds,
        "local_steps": experiment.steps,
        "min_peers": len(NODES),
        "deadline_s": 3600.0,
        "announce_s": 5,
    }
    training = TrainingConfig(seed=experiment.seed, samples_min=1, keep_moments=True)
    published = RunConfig(learning_rate=0.002, learning_rate_drop=1.0, **everyone)
    ours = RunConfig(
        learning_rate=0.005,
        learning_rate_drop=1.0,
        frame_mtu=512,
        up_bytes=1600,
        down_bytes=2650,
        scale_max=10.0,
        **everyone,
    )
    space = Space("one_vector", length=experiment.length)
    arms = (
        Arm("m3a", "M3a: LoRA states as JSON text", JSON, published, training=training),
        Arm("m3b", "M3b: ternary LoRA states, base64", TERNARY, published, training=training),
        Arm("ours", "ternmesh: hypervectors", HYPERVECTOR, ours, space, training),
    )
    return {arm.name: arm for arm in arms}
