"""The settings of the small transformer, of boundaries and optimisers.

`host.pipeline.config` reads them where torch is not installed.
"""

from dataclasses import dataclass, field

from ternmesh.config import choices, limits

METHODS = ("none", "int8", "resbm", "subspace", "learned")
FORMS = ("rows", "factors")
BITS = (4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Shape:
    """The transformer's sizes; `length` is the longest sequence in tokens."""

    vocabulary: int = field(default=256, metadata=limits(2, 1 << 20))
    width: int = field(default=128, metadata=limits(2, 65_536))
    layers: int = field(default=4, metadata=limits(1, 1024))
    heads: int = field(default=4, metadata=limits(1, 1024))
    length: int = field(default=128, metadata=limits(2, 65_536))


@dataclass(frozen=True, slots=True)
class BottleneckConfig:
    """How stages compress what they send. All ranks must use the same values.

    `latent` is how many numbers are sent for a token (0: an eighth of the width), each of `bits`:
    32, 16, 8 or 4. Gradients have `back_bits`, at most `bits`. The method "none" sends bfloat16, or
    float32 where `bits` is 32. `form` is how subspace networks stay in their subspace; its basis
    moves by a step of `basis_rate` every `basis_steps` steps (0: never). `slow` numbers the
    boundaries that are compressed, from "0"; the others send bfloat16. Without it all are.
    """

    method: str = field(default="resbm", metadata=choices(*METHODS))
    latent: int = field(default=0, metadata=limits(0, 65_536))
    bits: int = field(default=8, metadata=limits(4, 32))
    form: str = field(default="factors", metadata=choices(*FORMS))
    seed: int = field(default=0, metadata=limits(0, 2**31 - 1))
    basis_steps: int = field(default=0, metadata=limits(0, 1_000_000))
    basis_rate: float = field(default=0.1, metadata=limits(0.0, 100.0))
    table_std: float = field(default=0.02, metadata=limits(0.0, 100.0))
    back_bits: int = field(default=4, metadata=limits(4, 32))
    slow: tuple[str, ...] = ()

    def numbers(self, width: int) -> int:
        """How many numbers are sent for a token of `width` channels."""
        return width if self.method in ("none", "int8") else self.latent or max(1, width // 8)


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """How weights are trained. Muon trains the matrices inside the layers, AdamW the rest.

    `stiefel_rate` is the step of an orthonormal basis, relative to its norm.
    """

    name: str = field(default="muon", metadata=choices("adamw", "muon"))
    learning_rate: float = field(default=1e-3, metadata=limits(1e-7, 10.0))
    stiefel_rate: float = field(default=1e-3, metadata=limits(0.0, 1.0))
    weight_decay: float = field(default=0.01, metadata=limits(0.0, 10.0))
    warmup_steps: int = field(default=100, metadata=limits(0, 1_000_000))
    final_share: float = field(default=0.1, metadata=limits(0.0, 1.0))

    def share(self, step: int, steps: int) -> float:
        """The factor of all rates in step `step` of `steps`: a linear rise, then a linear fall."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        left = (steps - step) / max(1, steps - self.warmup_steps)
        return self.final_share + (1 - self.final_share) * left
