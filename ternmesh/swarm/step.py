"""From packets to the next reference and back: combine, encode, apply. Pure functions.

Everything that decides what a reference is worth is integer arithmetic, so each node and the host
end with the same vector bit for bit.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import WireError
from ternmesh.hypervector import feedback
from ternmesh.hypervector.encoder import (
    Hypervector,
    Slicing,
    decode_slice,
    encode_vector,
    gather,
    scatter,
)
from ternmesh.hypervector.permutation import order
from ternmesh.hypervector.scale import SCALE_MAX, UNIT, to_vector
from ternmesh.plan import PERMILLE, Plan
from ternmesh.wire import manifest
from ternmesh.wire.reference import (
    NO_MODEL,
    Certificate,
    Reference,
    Snapshot,
    read_object,
    reference_hash,
    split_certificate,
)
from ternmesh.wire.share import ROUND_BITS, Share, read_share, write_share

Vector = NDArray[np.float32]
Units = NDArray[np.int64]


def encode_update(vector: Vector, model_hash: bytes, round_number: int, plan: Plan) -> list[bytes]:
    """The share bodies of a node's update (float32, D) for a round, as a host believes them."""
    zeros = plan.up_zeros_permille
    return _write(vector, model_hash, round_number, plan, plan.up, zeros, plan.scale_max)


def encode_step(vector: Vector, model_hash: bytes, version: int, plan: Plan) -> tuple[bytes, ...]:
    """The share bodies of the step (float32, D) that leads to reference `version`."""
    zeros = plan.down_zeros_permille
    return tuple(_write(vector, model_hash, version, plan, plan.down, zeros, SCALE_MAX))


def update_units(
    shares: Iterable[bytes], model_hash: bytes, round_number: int, plan: Plan
) -> Units:
    """What the given share bodies of an update are worth, in units of 2**-24 (int64, D)."""
    vector = read_shares(map(read_share, shares), plan.up)
    return scatter(vector.units(), order(model_hash, round_number, plan.dimension))


def step_units(shares: Sequence[bytes], model_hash: bytes, version: int, plan: Plan) -> Units:
    """What the step to `version` adds, in units of 2**-24 (int64, D); WireError if not whole."""
    read = [read_share(body) for body in shares]
    if any(share.round_low != version % (1 << ROUND_BITS) for share in read):
        raise WireError("reference", "a share of a reference is of another version")
    vector = read_shares(read, plan.down)
    if len(shares) != plan.down.count or not vector.present.all():
        raise WireError("reference", f"a reference of this run has {plan.down.count} shares")
    return scatter(vector.units(), order(model_hash, version, plan.dimension))


def read_step(
    data: bytes, dimension: int, model_hash: bytes, check: Callable[[bytes, Certificate], None]
) -> tuple[Reference | Snapshot, bytes]:
    """The reference or snapshot in an object that arrived, and the hash of its content.

    WireError, also from `check`, which is asked about the certificate before anything is read.
    """
    content, certificate = split_certificate(data)
    check(content, certificate)
    step = read_object(content, dimension)
    is_named = isinstance(step, Snapshot) or step.model != NO_MODEL
    if is_named and step.model != model_hash[: manifest.MODEL_SIZE]:
        raise WireError("wrong model", "a reference for another model")
    return step, reference_hash(content)


def read_shares(shares: Iterable[Share], slicing: Slicing) -> Hypervector:
    """The hypervector of the given shares; WireError for one that does not belong."""
    slices = []
    for share in shares:
        if share.slice.index >= slicing.count:
            raise WireError("vector length", f"a packet here has {slicing.count} shares")
        slices.append((share.slice.index, *decode_slice(share.slice, slicing)))
    return gather(slices, slicing)


def combine(
    packets: Sequence[tuple[int, Hypervector]], model_hash: bytes, round_number: int, plan: Plan
) -> Vector:
    """The mean update (float32, D) of packets weighted by samples, share by share.

    A share that only some nodes delivered is the mean over those; one that nobody delivered is
    zero.
    """
    total = np.zeros(plan.dimension, dtype=np.int64)
    weight = np.zeros(plan.up.count, dtype=np.int64)
    for samples, vector in packets:
        total += samples * vector.units()
        weight += samples * vector.present
    per_coordinate = np.repeat(np.maximum(weight, 1), plan.up_span)[: plan.dimension]
    mean = np.empty(plan.dimension, dtype=np.float32)
    mean[order(model_hash, round_number, plan.dimension)] = total / per_coordinate * UNIT
    return mean


def make_step(
    packets: Sequence[tuple[int, Hypervector]],
    residual: Vector,
    model_hash: bytes,
    version: int,
    plan: Plan,
) -> tuple[tuple[bytes, ...], Units, Vector]:
    """The step to `version` from the packets of the round before and the host's own residual.

    Its share bodies, what they add in units of 2**-24 (int64, D), and the new residual.
    """
    mean = combine(packets, model_hash, version - 1, plan)
    wanted = feedback.update(residual, mean)
    shares = encode_step(wanted, model_hash, version, plan)
    units = step_units(shares, model_hash, version, plan)
    return shares, units, feedback.settle(wanted, to_vector(units))


def _write(
    vector: Vector,
    model_hash: bytes,
    number: int,
    plan: Plan,
    slicing: Slicing,
    zeros: int,
    scale_max: int,
) -> list[bytes]:
    places = order(model_hash, number, plan.dimension)
    slices = encode_vector(vector, places, slicing, zeros / PERMILLE, plan.share_room, scale_max)
    return [write_share(number, item) for item in slices]
