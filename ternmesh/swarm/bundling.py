"""A gateway's bundle: made of whole packets of its boards, and what is left of it. Pure functions.

Everything is kept as samples times update, so that what one round leaves behind weighs the same in
the next, whoever is in its bundle then.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ternmesh.hypervector.encoder import scatter
from ternmesh.hypervector.permutation import order
from ternmesh.hypervector.scale import UNIT
from ternmesh.hypervector.votes import encode_votes
from ternmesh.plan import Plan
from ternmesh.swarm.bitmap import read_bitmap
from ternmesh.swarm.bundle_records import Bundle
from ternmesh.swarm.events import Vector
from ternmesh.swarm.intake import Intake
from ternmesh.swarm.step import read_shares
from ternmesh.wire import contributions, manifest, share
from ternmesh.wire.contributions import Contribution
from ternmesh.wire.manifest import Manifest


def read_bundle(round_number: int, board: str, wanted: Vector, bodies: Sequence[bytes]) -> Bundle:
    """The bundle that these bodies are; WireError."""
    head = manifest.read_manifest(bodies[0])
    listed = contributions.read_contributions(bodies[1])
    rows = dict(zip(head.contributors, listed, strict=True))
    return Bundle(round_number, board, wanted, tuple(bodies), head.digest, head.samples, rows)


def choose(whole: Mapping[int, Intake], plan: Plan) -> dict[int, Intake]:
    """The packets that go into one bundle, by context; empty where there are not two."""
    chosen: dict[int, Intake] = {}
    most, samples = contributions.contributors_max(plan.frame_mtu), 0
    for context, intake in sorted(whole.items()):
        assert intake.manifest is not None
        if len(chosen) < most and samples + intake.manifest.samples <= manifest.SAMPLES_MAX:
            chosen[context] = intake
            samples += intake.manifest.samples
    return chosen if len(chosen) >= contributions.CONTRIBUTORS_MIN else {}


def make_bundle(
    chosen: Mapping[int, Intake],
    residual: Vector,
    model_hash: bytes,
    round_number: int,
    plan: Plan,
    board: str,
) -> Bundle:
    """The bundle of whole packets (two or more, by context) and of what was left before."""
    packets = [(i.manifest, i.hypervector()) for _, i in sorted(chosen.items()) if i.manifest]
    rows = [Contribution(item.digest, item.samples) for item, _ in packets]
    samples = sum(item.samples for item, _ in packets)
    total = np.zeros(plan.dimension, dtype=np.int64)
    for item, vector in packets:
        total += item.samples * vector.units()
    places = order(model_hash, round_number, plan.dimension)
    wanted = (residual + scatter(total, places) * UNIT).astype(np.float32)
    mean = wanted / np.float32(samples)
    slices = encode_votes(mean, places, plan.up, plan.share_room, plan.scale_max)
    listed = contributions.write_contributions(round_number, rows)
    shares = [share.write_share(round_number, s, contributions.SHARE_KIND) for s in slices]
    head = Manifest(
        round_low=round_number & 0xFFFF,
        model=model_hash[: manifest.MODEL_SIZE],
        samples=samples,
        digest=manifest.packet_digest([listed, *shares]),
        shares=len(shares),
        contributors=tuple(sorted(chosen)),
    )
    bodies = (manifest.write_manifest(head), listed, *shares)
    return read_bundle(round_number, board, wanted, bodies)


def settle_bundle(
    bundle: Bundle, have: bytes, residual: Vector, model_hash: bytes, plan: Plan
) -> Vector:
    """What is left (float32, D, times samples) when the shares in the bitmap `have` were counted.

    `residual` is what was left before it: where nothing was counted, the boards got theirs back.
    """
    counted = read_bitmap(have, plan.up.count)
    carried = bundle_units(bundle.bodies[2:], plan) * UNIT * bundle.samples
    places = order(model_hash, bundle.round, plan.dimension)
    after = bundle.wanted[places] - carried
    is_counted = np.repeat(counted, plan.up_span)[: plan.dimension]
    settled = np.empty_like(residual)
    settled[places] = np.where(is_counted, after, residual[places])
    return settled


def bundle_units(shares: Sequence[bytes], plan: Plan) -> NDArray[np.int64]:
    """What shares of a bundle are worth, in slice order, in units of 2**-24 (int64, D)."""
    read = (share.read_share(body, contributions.SHARE_KIND) for body in shares)
    return read_shares(read, plan.up).units()
