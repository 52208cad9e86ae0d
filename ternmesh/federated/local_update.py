"""A node's own update: decide whether to send it, make it, settle it. Pure functions."""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ternmesh.codec.encoder import Hypervector, settle_residual, zero_residual
from ternmesh.codec.scale import Q24_MAX, UNIT, to_float, to_vector
from ternmesh.errors import WireError
from ternmesh.federated.aggregation import encode_update, read_chunks, scattered
from ternmesh.federated.events import Pending
from ternmesh.plan import PERMILLE, Plan
from ternmesh.security.membership import HOST
from ternmesh.types import DeltaQ24, ModelQ24, Vector
from ternmesh.wire.control import Receipt
from ternmesh.wire.global_update import Counted, GlobalSnapshot, GlobalUpdate
from ternmesh.wire.update import (
    DIGEST_SIZE,
    MODEL_SIZE,
    ROOT_SIZE,
    Manifest,
    read_bitmap,
    read_chunk,
    read_manifest,
    update_hash,
    write_bitmap,
    write_manifest,
)

STEPS = 127  # on both sides of zero, in what an aggregator keeps of its remainder

Sign = Callable[[Manifest, bytes], Manifest]


def _unsigned(head: Manifest, _update: bytes) -> Manifest:
    return head


def is_too_little(
    corrected: Vector, model_q24: ModelQ24, in_a_row: int, plan: Plan, silence: float | None = None
) -> bool:
    """Whether this update is too small to send, after `in_a_row` silent rounds in a row.

    The update's energy is compared with that of the global adapter, so no node is silent before the
    run has learned something. `silence`, a share, replaces the plan's threshold.
    """
    if in_a_row >= plan.silence_rounds:
        return False  # also if silence is off
    threshold = plan.silence_permille if silence is None else PERMILLE * silence
    return PERMILLE * _energy(corrected) < threshold * _energy(to_float(model_q24))


def make_update(
    corrected: Vector,
    model_hash: bytes,
    round_number: int,
    samples: int,
    plan: Plan,
    sign: Sign = _unsigned,
    evaluation: tuple[tuple[int, int], ...] = (),
    members: int = 0,
    root: bytes = b"",
    state: bytes = b"",
) -> Pending:
    """Make the update that carries as much of `corrected` as the plan allows.

    `evaluation` is that of the global adapter before; `members`, `root` and `state` are as in
    `Manifest`. `sign` gets a manifest and the hash of all chunks, and returns the signed manifest.
    """
    chunks, carried = encode_update(corrected, model_hash, round_number, plan)
    whole = update_hash(chunks)
    head = Manifest(
        round_low=round_number & 0xFFFF,
        model=model_hash[:MODEL_SIZE],
        samples=samples,
        digest=whole[:DIGEST_SIZE],
        chunks=len(chunks),
        evaluation=evaluation,
        members=members,
        root=root,
        state=state,
    )
    bodies = (write_manifest(sign(head, whole)), *chunks)
    return Pending(round_number, corrected, head.digest, bodies, carried)


def sign_again(pending: Pending, sign: Sign) -> Pending:
    """Return the same update with a new signature."""
    head, *chunks = pending.bodies
    signed = sign(read_manifest(head), update_hash(chunks))
    return replace(pending, bodies=(write_manifest(signed), *chunks))


def is_whole_receipt(receipt: Receipt, pending: Pending, plan: Plan) -> bool:
    """Whether a receipt names all chunks of the pending update. Raises WireError for another."""
    if receipt.digest != pending.digest:
        raise WireError("digest", "a receipt for an update that this node did not make")
    return bool(read_bitmap(receipt.have, plan.up.count).all())


def settle_update(
    pending: Pending, counted: Iterable[Counted], address: int, model_hash: bytes, plan: Plan
) -> Vector:
    """Return the residual after a global update: `corrected` without the counted chunks.

    The same object if none was counted.
    """
    residual = pending.corrected
    for entry in counted:
        mine = entry.address == address and entry.round == pending.round
        if mine and entry.digest == pending.digest:
            carried = pending.carried or read_chunks(map(read_chunk, pending.bodies[1:]), plan.up)
            carried = only_counted(carried, entry.have)
            delta_q24 = scattered(carried, model_hash, pending.round)
            residual = settle_residual(pending.corrected, to_vector(delta_q24))
    return residual


def counted_elsewhere(
    step: GlobalUpdate | GlobalSnapshot, pending: Pending, address: int, plan: Plan
) -> Sequence[Counted]:
    """What a step counts of an update that another host has got; all, where that is not known."""
    sent_to = pending.sent_to
    assert sent_to is not None
    if isinstance(step, GlobalUpdate) and not step.root:
        if sent_to.name == HOST:
            own = [row for row in step.counted if row.address == sent_to.address]
            return [replace(row, address=address) for row in own]
        sums = [row.address for row in step.counted if row.root and row.round == pending.round]
        if not (sent_to.via in sums if sent_to.via else sums):
            return []
    return all_of(pending, address, plan)


def settle_by_step(
    pending: Pending,
    step: GlobalUpdate | GlobalSnapshot,
    rows: Sequence[Counted],
    address: int,
    model_hash: bytes,
    plan: Plan,
) -> Vector:
    """What is left of an update after a step that counts `rows`. WireError for wrong ones."""
    if pending.sent_to is not None:
        rows = counted_elsewhere(step, pending, address, plan)
    residual = settle_update(pending, rows, address, model_hash, plan)
    if read_manifest(pending.bodies[0]).members:
        if residual is pending.corrected:
            residual = zero_residual(residual.size)  # the others keep their updates
        residual = kept_remainder(residual)
    return residual


def all_of(pending: Pending, address: int, plan: Plan) -> Sequence[Counted]:
    """The row by which all of an update counts."""
    whole = write_bitmap(range(plan.up.count), plan.up.count)
    return [Counted(address, pending.round, pending.digest, whole)]


def only_counted(carried: Hypervector, have: bytes) -> Hypervector:
    """Return the slices of an update whose chunks the bitmap `have` names. Raises WireError."""
    return carried.only(np.array(read_bitmap(have, carried.slicing.count).tolist(), dtype=np.bool_))


def in_steps(residual: Vector) -> tuple[int, NDArray[np.int8]]:
    """A residual in whole steps of a power of two (its exponent), -127 to 127: it can be shown."""
    largest = float(np.abs(residual).max())
    exponent = math.frexp(largest / (STEPS + 1))[1] if largest else 0
    steps = np.rint(residual / np.float32(2.0**exponent))
    return exponent, np.clip(steps, -STEPS, STEPS).astype(np.int8)


def of_steps(exponent: int, steps: NDArray[np.int8]) -> Vector:
    """The inverse of `in_steps`, as an aggregator goes on with it (float32)."""
    return steps.astype(np.float32) * np.float32(2.0**exponent)


def kept_remainder(residual: Vector) -> Vector:
    """What an aggregator keeps of what its update could not carry: what it can show."""
    return of_steps(*in_steps(residual))


def state_of(residual: Vector) -> bytes:
    """The hash by which an aggregator's update names the residual that it was added to."""
    return hashlib.sha256(residual.astype("<f4").tobytes()).digest()[:ROOT_SIZE]


def keep_own(
    own_q24: ModelQ24 | None, counted: Vector, moved_q24: DeltaQ24, plan: Plan
) -> ModelQ24 | None:
    """Return what a node keeps beside the global adapter (int32 [D]), which moved by `moved_q24`.

    `counted` is what the fleet took of its work. The adapter that the node uses, together with its
    residual, thus moves by the share `cooperation` from where its training ended to the global one.
    """
    if not plan.own_permille:
        return None
    apart = counted.astype(np.float64) / UNIT - moved_q24
    if own_q24 is not None:
        apart += own_q24
    kept = np.rint(apart * (plan.own_permille / PERMILLE))
    return np.clip(kept, -Q24_MAX, Q24_MAX).astype(np.int32)


def _energy(vector: Vector) -> float:
    wide = vector.astype(np.float64)
    return float(np.dot(wide, wide))
