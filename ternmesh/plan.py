"""The plan: what the host decides once for a whole run, and every node follows."""

import hashlib
from dataclasses import astuple, dataclass, fields

from ternmesh.errors import WireError
from ternmesh.hypervector.encoder import SPAN_MAX, Slicing, choose_span
from ternmesh.rate import down_rate, up_rate
from ternmesh.wire import pieces, seal, share

FRAME_MTU_MIN, FRAME_MTU_MAX = 164, seal.FRAME_MAX  # the longest manifest takes 164
DIMENSION_MAX = 1 << 24
SLICES_MAX = 1024
PERMILLE = 1000
DROP_MAX = 10 * PERMILLE
MANIFEST_REPEATS_MAX = 3
SNAPSHOT_HEAD_MAX = 2048  # its head with one counted entry, and the longest certificate
NUMBERS_MIN = 11  # what came later is 0 where it is not used, and zeros at the end do not travel


@dataclass(frozen=True, slots=True)
class Plan:
    """The constants of a run. All integers, so that the plan travels and hashes exactly.

    `*_zeros_permille` is the share of zeros in thousandths; `*_span` the coordinates that a
    frame holds; `learning_rate_e6` the learning rate in millionths; `scale_max` the largest
    scale of a share that the host believes, in units of 2**-24; `announce_s` how often the host
    repeats where the run stands. `learning_rate_drop_permille` is how much of the rate has gone
    when the run ends: above 1,000 it has gone before, and the last rounds only send what is
    left. A node whose update has less than `silence_permille` of the energy of what the
    reference has learned so far sends none, for at most `silence_rounds` in a row. Each time that
    a packet is sent, its manifest follows `manifest_repeats` times more: its shares need it.
    """

    dimension: int
    frame_mtu: int
    up_zeros_permille: int
    up_span: int
    down_zeros_permille: int
    down_span: int
    rounds: int
    local_steps: int
    learning_rate_e6: int
    scale_max: int
    announce_s: int
    learning_rate_drop_permille: int = 0
    silence_permille: int = 0
    silence_rounds: int = 0
    manifest_repeats: int = 0

    @property
    def up(self) -> Slicing:
        """How a node's update is cut."""
        return Slicing(self.dimension, self.up_span)

    @property
    def down(self) -> Slicing:
        """How a reference is cut."""
        return Slicing(self.dimension, self.down_span)

    @property
    def share_room(self) -> int:
        """Bytes of code that one sealed share may hold."""
        return share_room(self.frame_mtu)

    def learning_rate(self, round_number: int) -> float:
        """The learning rate of a round: it falls in a straight line over the run, at most to 0."""
        left = PERMILLE * self.rounds - self.learning_rate_drop_permille * round_number
        return self.learning_rate_e6 * 1e-6 * max(left, 0) / (PERMILLE * self.rounds)


def share_room(frame_mtu: int) -> int:
    """Bytes of code that fit in a sealed share of `frame_mtu` bytes."""
    return frame_mtu - seal.OVERHEAD - share.HEAD_SIZE


def make_plan(
    dimension: int,
    *,
    rounds: int,
    local_steps: int,
    learning_rate: float,
    frame_mtu: int = 184,
    up_zeros: float = 0.9,
    down_zeros: float = 0.9,
    scale_max: float = 1.0,
    announce_s: int = 30,
    learning_rate_drop: float = 0.0,
    silence: float = 0.0,
    silence_rounds: int = 0,
    manifest_repeats: int = 0,
    up_bytes: int = 0,
    down_bytes: int = 0,
    nodes: int = 1,
) -> Plan:
    """The plan of a run; the spans follow from the frame size and the share of zeros.

    `up_bytes` and `down_bytes` are rate targets, for a packet and for a reference that counts
    `nodes` nodes; where they are not 0 they choose the share of zeros. WireError where nothing
    fits.
    """
    up_permille, up_span = _cut(dimension, frame_mtu, up_zeros)
    down_permille, down_span = _cut(dimension, frame_mtu, down_zeros)
    if up_bytes:
        up_permille, up_span = up_rate(dimension, frame_mtu, up_bytes, 1 + manifest_repeats)
    if down_bytes:
        down_permille, down_span = down_rate(dimension, frame_mtu, down_bytes, nodes)
    plan = Plan(
        dimension=dimension,
        frame_mtu=frame_mtu,
        up_zeros_permille=up_permille,
        up_span=up_span,
        down_zeros_permille=down_permille,
        down_span=down_span,
        rounds=rounds,
        local_steps=local_steps,
        learning_rate_e6=round(learning_rate * 1e6),
        scale_max=int(scale_max * (1 << 24)),
        announce_s=announce_s,
        learning_rate_drop_permille=round(learning_rate_drop * PERMILLE),
        silence_permille=round(silence * PERMILLE),
        silence_rounds=silence_rounds,
        manifest_repeats=manifest_repeats,
    )
    check_plan(plan)
    return plan


def _cut(dimension: int, frame_mtu: int, zeros: float) -> tuple[int, int]:
    """A share of zeros in thousandths, and the span for which its slices fill their frames."""
    permille = round(zeros * PERMILLE)
    if dimension < 1 or frame_mtu < FRAME_MTU_MIN or not 0 <= permille < PERMILLE:
        return permille, max(dimension, 1)  # check_plan says what is wrong
    return permille, choose_span(dimension, share_room(frame_mtu), permille / PERMILLE)


def to_numbers(plan: Plan) -> tuple[int, ...]:
    """The plan as it travels in a welcome: without the zeros at its end, but 11 at least."""
    numbers = astuple(plan)
    used = [index for index, number in enumerate(numbers, 1) if number]
    return numbers[: max(NUMBERS_MIN, *used)]


def from_numbers(numbers: tuple[int, ...]) -> Plan:
    """The plan that a welcome holds, or WireError."""
    most = len(fields(Plan))
    if not NUMBERS_MIN <= len(numbers) <= most:
        raise WireError("plan", f"a plan has {NUMBERS_MIN} to {most} numbers, not {len(numbers)}")
    plan = Plan(*numbers)
    check_plan(plan)
    if to_numbers(plan) != numbers:
        raise WireError("plan", "zeros at the end of a plan do not travel")
    return plan


def check_plan(plan: Plan) -> None:
    """WireError for a plan outside the limits of SPEC.md section 5."""
    limits = {
        "dimension": (1, DIMENSION_MAX),
        "frame_mtu": (FRAME_MTU_MIN, FRAME_MTU_MAX),
        "up_zeros_permille": (0, PERMILLE - 1),
        "down_zeros_permille": (0, PERMILLE - 1),
        "up_span": (-(-plan.dimension // SLICES_MAX), min(plan.dimension, SPAN_MAX)),
        "down_span": (-(-plan.dimension // SLICES_MAX), min(plan.dimension, SPAN_MAX)),
        "rounds": (1, 0xFFFFFFFF),
        "local_steps": (1, 100_000),
        "learning_rate_e6": (1, 10_000_000),
        "scale_max": (1, 0x7FFFFFFF),
        "announce_s": (1, 86_400),
        "learning_rate_drop_permille": (0, DROP_MAX),
        "silence_permille": (0, PERMILLE),
        "silence_rounds": (0, 1000),
        "manifest_repeats": (0, MANIFEST_REPEATS_MAX),
    }
    for name, (low, high) in limits.items():
        value = getattr(plan, name)
        if not low <= value <= high:
            raise WireError("plan", f"{name} is {value}: it must be {low} to {high}")
    if plan.dimension > (dimension_max := snapshot_max(plan.frame_mtu)):
        raise WireError(
            "plan", f"dimension is {plan.dimension}: frames of this size carry {dimension_max}"
        )


def snapshot_max(frame_mtu: int) -> int:
    """The longest adapter vector whose snapshot still fits the pieces of one object."""
    return (pieces.object_max(frame_mtu) - SNAPSHOT_HEAD_MAX) // 4


def genesis(model_hash: bytes, run: bytes, plan: Plan) -> bytes:
    """The 16-byte hash that stands before the first reference of a run."""
    numbers = b"".join(number.to_bytes(4, "little") for number in to_numbers(plan))
    return hashlib.sha256(b"ternmesh genesis" + model_hash + run + numbers).digest()[:16]
