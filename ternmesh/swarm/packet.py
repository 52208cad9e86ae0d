"""A node's own packet: whether it is worth sending, how it is made, what is left of it. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from ternmesh.hypervector import feedback
from ternmesh.hypervector.scale import to_float, to_vector
from ternmesh.plan import PERMILLE, Plan
from ternmesh.swarm.bitmap import read_counted
from ternmesh.swarm.events import Fixed, Pending, Vector
from ternmesh.swarm.step import encode_update, update_units
from ternmesh.wire import manifest
from ternmesh.wire.manifest import Manifest
from ternmesh.wire.reference import Counted

Sign = Callable[[Manifest, bytes], Manifest]
SignFor = Callable[[bytes, int, Manifest, bytes], Manifest]


def _unsigned(head: Manifest, _packet: bytes) -> Manifest:
    return head


def is_too_little(corrected: Vector, fixed: Fixed, in_a_row: int, plan: Plan) -> bool:
    """Whether a node with this to say (float32, D) keeps it, after so many silent rounds in a row.

    Its energy is held against that of all steps so far (int32, D): a run that has learned nothing
    yet makes nobody silent.
    """
    if in_a_row >= plan.silence_rounds:
        return False  # also where silence is off
    return PERMILLE * _energy(corrected) < plan.silence_permille * _energy(to_float(fixed))


def make_packet(
    corrected: Vector,
    model_hash: bytes,
    round_number: int,
    samples: int,
    plan: Plan,
    sign: Sign = _unsigned,
) -> Pending:
    """The packet that carries `corrected` (float32, D) as far as the plan allows.

    `sign` fills in the signature of a manifest, given the packet's whole hash.
    """
    shares = encode_update(corrected, model_hash, round_number, plan)
    digest = manifest.packet_digest(shares)
    head = Manifest(
        round_low=round_number & 0xFFFF,
        model=model_hash[: manifest.MODEL_SIZE],
        samples=samples,
        digest=digest,
        shares=len(shares),
    )
    head = sign(head, manifest.packet_hash(shares))
    return Pending(round_number, corrected, digest, (manifest.write_manifest(head), *shares))


def sign_again(pending: Pending, run: bytes, sign: SignFor) -> Pending:
    """The same packet with the signature that `sign` gives it now."""
    head, *shares = pending.bodies
    whole = manifest.packet_hash(shares)
    signed = sign(run, pending.round, manifest.read_manifest(head), whole)
    return replace(pending, bodies=(manifest.write_manifest(signed), *shares))


def packet_bodies(pending: Pending, plan: Plan) -> tuple[bytes, ...]:
    """What is sent of a packet each time: its repeated manifests last, so that one burst of losses
    does not take all of them.
    """
    return pending.bodies + pending.bodies[:1] * plan.manifest_repeats


def settle_packet(
    pending: Pending, counted: Iterable[Counted], context: int, model_hash: bytes, plan: Plan
) -> Vector:
    """What the packet was made from (float32, D) without what was counted of it; WireError."""
    residual = pending.corrected
    for entry in counted:
        mine = entry.context == context and entry.round == pending.round
        if mine and entry.digest == pending.digest:
            shares = read_counted(pending.bodies[1:], entry.have)
            units = update_units(shares, model_hash, pending.round, plan)
            residual = feedback.settle(pending.corrected, to_vector(units))
    return residual


def _energy(vector: Vector) -> float:
    wide = vector.astype(np.float64)
    return float(np.dot(wide, wide))
