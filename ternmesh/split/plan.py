"""What board and host agree on before they split a training. SPEC.md section 10.2.

The host decides; the numbers travel in its welcome.
"""

import hashlib
import struct
from dataclasses import asdict, dataclass, fields

from ternmesh.errors import WireError
from ternmesh.wire.activation import BITS, SAMPLES_MAX, WIDTH_MAX, body_size
from ternmesh.wire.pieces import object_max
from ternmesh.wire.seal import FRAME_MAX

FRAME_MTU_MIN = 64
_LIMITS = {
    "width": (1, WIDTH_MAX),
    "width_down": (1, WIDTH_MAX),
    "batch": (2, SAMPLES_MAX),
    "micro_batches": (1, 2**32 - 2),
    "learning_rate_e6": (1, 10_000_000),
    "learning_rate_drop_permille": (0, 10_000),
    "labels_stay": (0, 1),
    "classes": (1, 256),
    "frame_mtu": (FRAME_MTU_MIN, FRAME_MAX),
    "answer_ms": (1, 86_400_000),
    "value_max": (1, 1_000_000),
    "clip_norm_e6": (1, 1_000_000_000),
}


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """One split training. `width` numbers of a sample cross upwards in `bits_up` bits each.

    `width_down` is what an answer has of a sample: logits, or, where `labels_stay` on the board,
    what its head takes. Their bits are `bits_up`; gradients have `bits_gradient`, both ways. Each
    board sends `micro_batches` of `batch` samples and waits `answer_ms` for each answer. No number
    that crosses is larger than `value_max`, and no micro-batch's gradient of a part's parameters
    counts as longer than `clip_norm_e6` millionths: so nobody can spoil the other end's Adam.
    """

    width: int
    bits_up: int
    bits_gradient: int
    batch: int
    micro_batches: int
    learning_rate_e6: int
    learning_rate_drop_permille: int
    labels_stay: int
    classes: int
    width_down: int
    frame_mtu: int
    answer_ms: int
    value_max: int
    clip_norm_e6: int

    def __post_init__(self) -> None:
        for name, (low, high) in _LIMITS.items():
            if not low <= getattr(self, name) <= high:
                raise WireError("plan", f"{name} is {getattr(self, name)}: not {low} to {high}")
        if not {self.bits_up, self.bits_gradient} <= set(BITS):
            raise WireError("plan", f"bits are {', '.join(map(str, BITS))}")
        if self.body_max > object_max(self.frame_mtu):
            raise WireError("plan", f"frames of {self.frame_mtu} bytes do not carry such batches")

    @property
    def answer_bits(self) -> int:
        """Bits of a number in an answer: logits are few and travel whole."""
        return self.bits_up if self.labels_stay else 32

    @property
    def body_max(self) -> int:
        """Bytes of the longest body of this training."""
        widest, most = max(self.width, self.width_down), max(self.bits_up, self.bits_gradient)
        longest = body_size(self.batch, widest, most, self.batch)
        return max(longest, body_size(self.batch, self.width_down, self.answer_bits))

    @property
    def clip_norm(self) -> float:
        """The longest that a micro-batch's gradient counts."""
        return self.clip_norm_e6 / 1e6

    def learning_rate(self, number: int) -> float:
        """The rate of micro-batch `number`: a straight fall, as that of the swarm's rounds."""
        drop = self.learning_rate_drop_permille / 1000
        return self.learning_rate_e6 / 1e6 * max(0.0, 1.0 - drop * number / self.micro_batches)


def to_numbers(plan: SplitPlan) -> tuple[int, ...]:
    """The plan as it travels."""
    return tuple(asdict(plan).values())


def from_numbers(numbers: tuple[int, ...]) -> SplitPlan:
    """The plan of a welcome; WireError."""
    if len(numbers) != len(fields(SplitPlan)):
        raise WireError("plan", f"a plan of a split training has {len(fields(SplitPlan))} numbers")
    return SplitPlan(*numbers)


def model_hash(*parts: bytes) -> bytes:
    """The 32 bytes that name a split model: the model hashes of the bundles on the board."""
    head = struct.pack("<B", len(parts))
    return hashlib.sha256(b"ternmesh split" + head + b"".join(parts)).digest()
