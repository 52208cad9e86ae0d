"""The arms of the convergence benchmark: methods, each at its share of the uncompressed bytes."""

from dataclasses import dataclass

from models.bottleneck.codes import TRITS
from models.bottleneck.config import BottleneckConfig, OptimizerConfig
from models.transformer_shape import Shape

SHAPE, SHAPE_QUICK = (
    Shape(width=128, layers=4, heads=4, length=64),
    Shape(width=32, layers=4, heads=2, length=16),
)
STAGES, BATCH = 4, 16
STEPS, STEPS_QUICK, STEPS_LONG = 1500, 20, 6000
QUICK, FULL, LONG = "quick", "full", "long"
EXTENTS = {QUICK: (SHAPE_QUICK, STEPS_QUICK), FULL: (SHAPE, STEPS), LONG: (SHAPE, STEPS_LONG)}
RATIOS = (8, 32, 100)
ID_BYTES, SCALE_BYTES = 1, 2
TABLE_STD = 0.02
NONE = "none"
# The learned basis at full width loses nothing: what is left of it is its token tables. Its loss
# is the stricter thing to compare with, since such tables help a small model by themselves.
TABLES = "tables"
SLOWER = "slower"  # uncompressed at half the rate, which suits it better
# The first layer alone, in one stage. Where it does as well as all, a boundary that lets nothing
# through costs nothing either, and gaps tell of optimisation rather than of what is lost.
ONE_LAYER = "one_layer"
# Name: method, bits of a number, form, and the ratios at which it runs. "fed" is with feedback.
METHODS = {
    "subspace": ("subspace", 32, "rows", RATIOS),
    "subspace_factors": ("subspace", 32, "factors", RATIOS),
    "subspace_deployed": ("subspace", 32, "deployed", (8,)),
    "resbm": ("resbm", 32, "factors", RATIOS),
    "resbm_8bit": ("resbm", 8, "factors", RATIOS),
    "learned": ("learned", 32, "factors", (32,)),
    "learned_8bit": ("learned", 8, "factors", RATIOS),
    "learned_4bit": ("learned", 4, "factors", RATIOS),
    "learned_4bit_fed": ("learned", 4, "factors", (32,)),
    "learned_ternary": ("learned", 2, "factors", (32, 100)),
    "topk": ("topk", 32, "factors", (8,)),
    "topk_fed": ("topk", 32, "factors", (8,)),
}
PUBLISHED = ("subspace", "subspace_deployed", "resbm")


@dataclass(frozen=True, slots=True)
class Arm:
    """One way over the boundaries; `ratio` is how many times fewer payload bytes it may take."""

    name: str
    boundary: BottleneckConfig
    ratio: int = 1
    rate_share: float = 1.0
    feedback: bool = False
    layers: int | None = None


def arms(width: int) -> dict[str, Arm]:
    """All arms for a model's width, the uncompressed ones first."""
    tables = BottleneckConfig("learned", latent=width, table_std=TABLE_STD)
    made = {
        NONE: Arm(NONE, BottleneckConfig()),
        SLOWER: Arm(SLOWER, BottleneckConfig(), rate_share=0.5),
        TABLES: Arm(TABLES, tables),
        ONE_LAYER: Arm(ONE_LAYER, BottleneckConfig(), layers=1),
    }
    for ratio in RATIOS:
        for name, (method, bits, form, ratios) in METHODS.items():
            latent = latent_of(name, ratio, width)
            if ratio in ratios and latent >= 1:
                boundary = BottleneckConfig(
                    method, latent, bits, form, basis_steps=500, table_std=TABLE_STD
                )
                arm = Arm(f"{name}_{ratio}x", boundary, ratio, feedback=name.endswith("_fed"))
                made[arm.name] = arm
    return made


def latent_of(name: str, ratio: int, width: int) -> int:
    """The most numbers whose payloads, both ways and with ids, take a `ratio`-th of float32's."""
    method, bits, _, _ = METHODS[name]
    ids = ID_BYTES if method in ("subspace", "learned") else 0
    one_way = int((2 * 4 * width / ratio - ids) / 2)
    if method == "topk":
        return one_way // 3  # a byte for the place and two for the number
    scale = SCALE_BYTES if bits <= 8 else 0
    per_byte = TRITS if bits == 2 else 8 / bits
    return min(width, int((one_way - scale) * per_byte))


def optimizer(steps: int, rate_share: float = 1.0) -> OptimizerConfig:
    """The same for all arms, but for the rate of one."""
    rate = 2e-3 * rate_share
    return OptimizerConfig(learning_rate=rate, warmup_steps=steps // 15, stiefel_rate=1e-3)
