"""The plan: the constants that the host chooses once for a run and that every node follows.

A plan may be made from rate targets: so many bytes for an update, so many for a global update. The
bytes are those of MQTT messages: code, headers, seals and length prefixes. Hellos, receipts and
announces are not included.
"""

import hashlib
from dataclasses import astuple, dataclass, field, fields
from typing import Any

from ternmesh.codec.encoder import SPAN_MAX, SPARE_BYTES, Slicing, choose_span
from ternmesh.codec.entropy_coder import bits_per_trit
from ternmesh.config import limits
from ternmesh.errors import WireError
from ternmesh.wire import fragments
from ternmesh.wire.frame import FRAME_MAX, FRAME_OVERHEAD
from ternmesh.wire.global_update import object_max
from ternmesh.wire.update import CHUNK_HEAD_SIZE, MANIFEST_SIZE_MIN

FRAME_MTU_MIN = 128  # room for what a board says in a round: a welcome has up to 116 bytes
FRAME_MTU_MAX = FRAME_MAX
DIMENSION_MAX = 1 << 24
SLICES_MAX = 1024
RECEIPT_OVERHEAD = 29  # bytes of a receipt beside its bitmap, with seal
PERMILLE = 1000
PROBE_OVERHEAD = 70  # bytes of a probe beside its code
MANIFEST_REPEATS_MAX = 3
VERSION_MAX = 0xFFFFFFFF
GLOBAL_SNAPSHOT_HEAD_MAX = 2048  # header with one counted entry, and the longest certificate
NUMBERS_MIN = 11  # later numbers are 0 if unused; zeros at the end are not sent

ZEROS_MIN, ZEROS_MAX = 500, 999  # in thousandths; fewer zeros capture less of a Gaussian vector
ROOM_MIN = 16  # bytes of code that justify the header of a chunk
LENGTH_PREFIX = 2  # bytes before each frame in a message
GLOBAL_UPDATE_HEAD = 140  # largest header of a global update, without chunks and counted entries
COUNTED_ENTRY = 20  # approximate bytes of one counted entry in a global update


@dataclass(frozen=True, slots=True)
class Plan:
    """The constants of a run. All are integers, so that their bytes and hash are exact.

    >>> plan = make_plan(1000, rounds=20, local_steps=10, learning_rate=0.002)
    >>> plan.rounds, plan.learning_rate_e6, plan.last_version
    (20, 2000, 20)
    """

    dimension: int = field(metadata=limits(1, DIMENSION_MAX))  # D, the length of the adapter vector
    frame_mtu: int = field(metadata=limits(FRAME_MTU_MIN, FRAME_MTU_MAX))  # of the longest frame
    # The fraction of zeros in an update, in thousandths, and the coordinates in one of its chunks
    up_zeros_permille: int = field(metadata=limits(0, PERMILLE - 1))
    up_span: int
    # The same for a global update
    down_zeros_permille: int = field(metadata=limits(0, PERMILLE - 1))
    down_span: int
    rounds: int = field(metadata=limits(0, VERSION_MAX))  # 0: the run has no end
    local_steps: int = field(metadata=limits(1, 100_000))  # training steps of a node in a round
    learning_rate_e6: int = field(metadata=limits(1, 10_000_000))  # at first, in millionths
    # The largest scale of a chunk that the host accepts, in units of 2**-24
    scale_max: int = field(metadata=limits(1, 0x7FFFFFFF))
    announce_s: int = field(metadata=limits(1, 86_400))  # interval between the host's announces
    # The part of the learning rate that is gone at the end of the run, in thousandths. Above 1,000
    # it reaches 0 earlier, and the last rounds only send residuals.
    learning_rate_drop_permille: int = field(default=0, metadata=limits(0, 10 * PERMILLE))
    # A node is silent if its update has less than this many thousandths of the energy of the global
    # adapter, for at most so many rounds in a row.
    silence_permille: int = field(default=0, metadata=limits(0, PERMILLE))
    silence_rounds: int = field(default=0, metadata=limits(0, 1000))
    # How often a manifest is repeated: no chunk counts without it
    manifest_repeats: int = field(default=0, metadata=limits(0, MANIFEST_REPEATS_MAX))
    # Without an end: a node trains in so many rounds after new samples came (`federated.news`)
    news_rounds: int = field(default=0, metadata=limits(0, 1_000_000))
    # The share of its own adapter that a node keeps at a global update, in thousandths
    own_permille: int = field(default=0, metadata=limits(0, PERMILLE))
    # An update may count so many rounds after the one for which its training began
    staleness_rounds: int = field(default=0, metadata=limits(0, 1000))

    @property
    def last_version(self) -> int:
        """The version with which the run ends, or the highest possible one."""
        return self.rounds or VERSION_MAX

    @property
    def up(self) -> Slicing:
        return Slicing(self.dimension, self.up_span)

    @property
    def down(self) -> Slicing:
        return Slicing(self.dimension, self.down_span)

    @property
    def zeros_beside_probe_permille(self) -> int:
        """The share of zeros of a global update that leaves room for a probe, of 1,000.

        At least a quarter of its usual nonzeros remain.
        """
        fewest = PERMILLE - (PERMILLE - self.down_zeros_permille) // 4
        down, up = (
            self.dimension * bits_per_trit(zeros / PERMILLE) / 8
            for zeros in (self.down_zeros_permille, self.up_zeros_permille)
        )
        room = down - up - PROBE_OVERHEAD
        for zeros in range(self.down_zeros_permille, fewest):
            if self.dimension * bits_per_trit(zeros / PERMILLE) / 8 <= room:
                return zeros
        return fewest

    @property
    def object_max(self) -> int:
        """Bytes of the longest global update or snapshot of this run."""
        return object_max(self.dimension, self.down.count + self.up.count, self.frame_mtu)

    @property
    def chunk_room(self) -> int:
        """How many bytes of code one sealed chunk can hold."""
        return chunk_room(self.frame_mtu)

    def learning_rate(self, rounds_before: int) -> float:
        """The learning rate after so many rounds of the run, or of the news if it has no end.

        It falls linearly over the rounds of the run, or over `news_rounds`, at most to 0.
        """
        rounds = self.rounds or self.news_rounds
        left = PERMILLE * rounds - self.learning_rate_drop_permille * min(rounds_before, rounds)
        return self.learning_rate_e6 * 1e-6 * max(left, 0) / (PERMILLE * rounds)


def of_rounds(rounds: int) -> str:
    """Return what follows a round's number in a text: nothing in a run without an end."""
    return f" of {rounds}" if rounds else ""


def run_length(rounds: int) -> str:
    """Return the length of a run in words."""
    return f"{rounds} rounds" if rounds else "without end"


def chunk_room(frame_mtu: int) -> int:
    """How many bytes of code fit in a sealed chunk of `frame_mtu` bytes."""
    return frame_mtu - FRAME_OVERHEAD - CHUNK_HEAD_SIZE


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
    news_rounds: int = 0,
    cooperation: float = 1.0,
    staleness_rounds: int = 0,
    up_bytes: int = 0,
    down_bytes: int = 0,
    nodes: int = 1,
) -> Plan:
    """The plan of a run; the spans follow from the frame size and the fraction of zeros.

    If they are not 0, `up_bytes` and `down_bytes` choose the fraction of zeros: they are the sizes
    of an update and of a global update that counts `nodes` nodes. WireError if nothing fits.

    >>> make_plan(1000, rounds=20, local_steps=10, learning_rate=0.002).frame_mtu
    184
    """
    up_permille, up_span = _zeros_and_span(dimension, frame_mtu, up_zeros)
    down_permille, down_span = _zeros_and_span(dimension, frame_mtu, down_zeros)
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
        news_rounds=news_rounds,
        own_permille=PERMILLE - round(cooperation * PERMILLE),
        staleness_rounds=staleness_rounds,
    )
    check_plan(plan)
    return plan


def _zeros_and_span(dimension: int, frame_mtu: int, zeros: float) -> tuple[int, int]:
    """The fraction of zeros in thousandths, and the span whose slices fill their frames."""
    permille = round(zeros * PERMILLE)
    if dimension < 1 or frame_mtu < FRAME_MTU_MIN or not 0 <= permille < PERMILLE:
        return permille, max(dimension, 1)  # check_plan raises the error
    return permille, choose_span(dimension, chunk_room(frame_mtu), permille / PERMILLE)


def to_numbers(plan: Plan) -> tuple[int, ...]:
    """The plan's numbers as a welcome carries them: at least 11, without zeros after these."""
    numbers = astuple(plan)
    used = [index for index, number in enumerate(numbers, 1) if number]
    return numbers[: max(NUMBERS_MIN, *used)]


def from_numbers(numbers: tuple[int, ...]) -> Plan:
    """The plan in a welcome, or WireError."""
    most = len(fields(Plan))
    if not NUMBERS_MIN <= len(numbers) <= most:
        raise WireError("plan", f"a plan has {NUMBERS_MIN} to {most} numbers, not {len(numbers)}")
    plan = Plan(*numbers)
    check_plan(plan)
    if to_numbers(plan) != numbers:
        raise WireError("plan", "a plan must not end in zeros")
    return plan


def check_plan(plan: Plan) -> None:
    """WireError for a plan outside the limits of SPEC.md section 5."""
    up_max = min(SLICES_MAX, 8 * max(1, plan.frame_mtu - RECEIPT_OVERHEAD))  # in one receipt
    up, down = (-(-plan.dimension // slices) for slices in (up_max, SLICES_MAX))
    longest = min(plan.dimension, SPAN_MAX)
    check_limits(plan, up_span=(up, longest), down_span=(down, longest))
    if (plan.rounds == 0) != (plan.news_rounds > 0):
        raise WireError("plan", "news_rounds is for runs without an end, which need it")
    with_an_end = ("silence_permille", "silence_rounds", "staleness_rounds")
    if plan.rounds == 0 and (wrong := [name for name in with_an_end if getattr(plan, name)]):
        raise WireError("plan", f"{wrong[0]} needs a run with an end: leave it out, or set rounds")
    if plan.dimension > (dimension_max := global_snapshot_max(plan.frame_mtu)):
        raise WireError(
            "plan", f"dimension is {plan.dimension}: frames of this size allow {dimension_max}"
        )


def check_limits(plan: Any, **also: tuple[int, int]) -> None:
    """WireError for a number of a plan outside the limits of its field, or those in `also`."""
    for item in fields(plan):
        value = getattr(plan, item.name)
        low, high = item.metadata.get("limits") or also.get(item.name, (value, value))
        if not low <= value <= high:
            raise WireError("plan", f"{item.name} is {value}: it must be {low} to {high}")


def global_snapshot_max(frame_mtu: int) -> int:
    """The longest adapter vector whose global snapshot fits in the fragments of one object."""
    return (fragments.object_max(frame_mtu) - GLOBAL_SNAPSHOT_HEAD_MAX) // 4


def genesis(model_hash: bytes, run: bytes, plan: Plan) -> bytes:
    """The 16 bytes that name version 0 of a run, and stand for the run in other hashes."""
    numbers = b"".join(number.to_bytes(4, "little") for number in to_numbers(plan))
    return hashlib.sha256(b"ternmesh genesis" + model_hash + run + numbers).digest()[:16]


def up_rate(dimension: int, frame_mtu: int, bytes_max: int, manifests: int = 1) -> tuple[int, int]:
    """Zeros in thousandths and span for updates of `bytes_max`; WireError if nothing fits."""
    manifest = LENGTH_PREFIX + FRAME_OVERHEAD + MANIFEST_SIZE_MIN
    per_chunk = LENGTH_PREFIX + FRAME_OVERHEAD + CHUNK_HEAD_SIZE
    left = bytes_max - manifests * manifest
    return _fit(dimension, bytes_max, left, chunk_room(frame_mtu), per_chunk)


def down_rate(dimension: int, frame_mtu: int, bytes_max: int, nodes: int) -> tuple[int, int]:
    """Zeros in thousandths and span for global updates of `bytes_max` that count `nodes` nodes."""
    content = bytes_max * fragments.fragment_size(frame_mtu) // (frame_mtu + LENGTH_PREFIX)
    per_chunk = LENGTH_PREFIX + CHUNK_HEAD_SIZE
    left = content - GLOBAL_UPDATE_HEAD - COUNTED_ENTRY * nodes
    return _fit(dimension, bytes_max, left, chunk_room(frame_mtu), per_chunk)


def _fit(
    dimension: int, bytes_max: int, left: int, room_max: int, per_chunk: int
) -> tuple[int, int]:
    """As few chunks as possible, filled as far as `left` bytes allow."""
    chunks = max(1, -(-left // (room_max + per_chunk)), -(-dimension // SPAN_MAX))
    room = min(room_max, left // chunks - per_chunk)
    span = -(-dimension // chunks)
    for zeros in range(ZEROS_MIN, ZEROS_MAX + 1):
        if room >= ROOM_MIN and bits_per_trit(zeros / 1000) * span <= 8 * (room - SPARE_BYTES):
            return zeros, span
    raise WireError("plan", f"{bytes_max} bytes are too few for {dimension} numbers")
