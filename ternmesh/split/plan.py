"""The plan of a split training: the host makes it and sends it in its welcome. SPEC.md 10.2."""

from dataclasses import asdict, dataclass, field, fields

from ternmesh.config import limits
from ternmesh.errors import WireError
from ternmesh.plan import check_limits
from ternmesh.wire.activation import BITS, SAMPLES_MAX, WHOLE, WIDTH_MAX, body_size
from ternmesh.wire.fragments import object_max
from ternmesh.wire.frame import FRAME_MAX

FRAME_MTU_MIN = 64
ANSWER_BITS = WHOLE  # logits are few: they are not rounded


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The numbers of one split training, in the order in which they travel.

    The last one bounds what a peer can do to the Adam moments of the other end.
    """

    width: int = field(metadata=limits(1, WIDTH_MAX))  # numbers of a sample, upwards
    bits_up: int  # of a number in activations
    bits_gradient: int  # of a number in gradients, both ways
    batch: int = field(metadata=limits(2, SAMPLES_MAX))  # samples of a micro-batch
    micro_batches: int = field(metadata=limits(1, 2**32 - 2))  # of each board
    learning_rate_e6: int = field(metadata=limits(1, 10_000_000))
    learning_rate_drop_permille: int = field(metadata=limits(0, 10_000))
    classes: int = field(metadata=limits(1, 256))
    frame_mtu: int = field(metadata=limits(FRAME_MTU_MIN, FRAME_MAX))
    answer_ms: int = field(metadata=limits(1, 86_400_000))  # how long a board waits
    clip_norm_e6: int = field(metadata=limits(1, 1_000_000_000))  # of a micro-batch's gradient

    def __post_init__(self) -> None:
        check_limits(self)
        if not {self.bits_up, self.bits_gradient} <= set(BITS):
            raise WireError("plan", f"bits are {', '.join(map(str, BITS))}")
        if self.body_max > object_max(self.frame_mtu):
            raise WireError("plan", f"frames of {self.frame_mtu} bytes do not carry such batches")

    @property
    def body_max(self) -> int:
        """Bytes of the longest body of this training."""
        bits = max(self.bits_up, self.bits_gradient)
        longest = body_size(self.batch, self.width, bits, self.batch)
        return max(longest, body_size(self.batch, self.classes, ANSWER_BITS))

    @property
    def clip_norm(self) -> float:
        """The norm to which the gradient of a micro-batch is shortened."""
        return self.clip_norm_e6 / 1e6

    def learning_rate(self, number: int) -> float:
        """The rate for micro-batch `number`: it falls in a straight line, as in a fleet's run."""
        drop = self.learning_rate_drop_permille / 1000
        return self.learning_rate_e6 / 1e6 * max(0.0, 1.0 - drop * number / self.micro_batches)


def to_numbers(plan: SplitPlan) -> tuple[int, ...]:
    return tuple(asdict(plan).values())


def from_numbers(numbers: tuple[int, ...]) -> SplitPlan:
    """The plan of a welcome; WireError."""
    if len(numbers) != len(fields(SplitPlan)):
        raise WireError("plan", f"a plan of a split training has {len(fields(SplitPlan))} numbers")
    return SplitPlan(*numbers)
