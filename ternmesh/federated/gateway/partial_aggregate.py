"""A gateway's partial aggregate: made of its boards' updates, settled by a global update.

Values and pure functions. All vectors are kept as samples times update, so that a residual has the
same weight in the next round, whichever boards contribute then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ternmesh.codec.encoder import scatter, zero_residual
from ternmesh.codec.permutation import order
from ternmesh.codec.scale import UNIT
from ternmesh.codec.votes import encode_votes
from ternmesh.federated.aggregation import read_chunks
from ternmesh.federated.events import CountersReserved
from ternmesh.federated.open_round import UpdateReassembler
from ternmesh.federated.robust import bound
from ternmesh.federated.state import NO_RUN
from ternmesh.plan import Plan
from ternmesh.types import Vector
from ternmesh.wire.update import (
    CONTRIBUTORS_MIN,
    MODEL_SIZE,
    SAMPLES_MAX,
    VOTE_CHUNK_KIND,
    Contribution,
    Manifest,
    contributors_max,
    read_bitmap,
    read_chunk,
    read_contributions,
    read_manifest,
    update_digest,
    write_chunk,
    write_contributions,
    write_manifest,
)


@dataclass(frozen=True, slots=True)
class PartialAggregate:
    """A partial aggregate that is sent, until a global update settles it."""

    round: int
    board: str  # its first contributor, in whose name it is sent
    wanted: Vector  # the vector that was encoded, times samples
    bodies: tuple[bytes, ...]  # manifest, contributions, then the chunks in order
    digest: bytes
    samples: int
    rows: Mapping[int, Contribution]  # the contributors' updates, by address


@dataclass(frozen=True, slots=True)
class RunFollowed:
    """The gateway follows another run, with a state of zeros."""

    run: bytes
    plan: Plan


@dataclass(frozen=True, slots=True)
class PartialAggregateMade:
    """A partial aggregate is about to be sent. Store it until it is settled."""

    partial_aggregate: PartialAggregate


@dataclass(frozen=True, slots=True)
class PartialAggregateSettled:
    """A global update has settled the partial aggregate."""

    residual: Vector  # times samples
    is_counted: bool  # the global update lists it


@dataclass(frozen=True, slots=True)
class VersionReached:
    """A newer global update has passed through the gateway, or was announced."""

    version: int


GatewayEvent = (
    CountersReserved | RunFollowed | PartialAggregateMade | PartialAggregateSettled | VersionReached
)


@dataclass(frozen=True, slots=True)
class GatewayState:
    """The stored state of an aggregating gateway."""

    residual: Vector  # times samples
    run: bytes = NO_RUN
    plan: Plan | None = None
    version: int = 0
    pending: PartialAggregate | None = None
    counter: int = 0  # the first seal counter that was never reserved


def new_gateway_state(dimension: int) -> GatewayState:
    """The state of a gateway that has aggregated nothing yet."""
    return GatewayState(zero_residual(dimension))


def read_partial_aggregate(
    round_number: int, board: str, wanted: Vector, bodies: Sequence[bytes]
) -> PartialAggregate:
    """The partial aggregate in these bodies; WireError."""
    head = read_manifest(bodies[0])
    listed = read_contributions(bodies[1])
    rows = dict(zip(head.contributors, listed, strict=True))
    return PartialAggregate(
        round_number, board, wanted, tuple(bodies), head.digest, head.samples, rows
    )


def choose(whole: Mapping[int, UpdateReassembler], plan: Plan) -> dict[int, UpdateReassembler]:
    """The updates for one partial aggregate, by address; empty if there are less than two."""
    chosen: dict[int, UpdateReassembler] = {}
    most = contributors_max(plan.frame_mtu)
    samples = 0
    for address, reassembler in sorted(whole.items()):
        assert reassembler.manifest is not None
        if len(chosen) < most and samples + reassembler.manifest.samples <= SAMPLES_MAX:
            chosen[address] = reassembler
            samples += reassembler.manifest.samples
    return chosen if len(chosen) >= CONTRIBUTORS_MIN else {}


def make_partial_aggregate(
    chosen: Mapping[int, UpdateReassembler],
    residual: Vector,
    model_hash: bytes,
    round_number: int,
    plan: Plan,
    board: str,
) -> PartialAggregate:
    """The partial aggregate of complete updates (two or more, by address) and of the residual."""
    items = [chosen[address] for address in sorted(chosen)]
    updates = [item.update(address) for address, item in sorted(chosen.items())]
    weights, _, factors = bound(updates, ())
    rows = [
        Contribution(item.manifest.digest, max(1, int(weight)))
        for item, weight in zip(items, weights, strict=True)
        if item.manifest is not None
    ]
    samples = sum(row.samples for row in rows)
    total = np.zeros(plan.dimension)
    for row, factor, update in zip(rows, factors, updates, strict=True):
        total += row.samples * factor * update.vector.delta_q24()
    places = order(model_hash, round_number, plan.dimension)
    wanted = (residual + scatter(total, places) * UNIT).astype(np.float32)
    mean = wanted / np.float32(samples)
    slices = encode_votes(mean, places, plan.up, plan.chunk_room, plan.scale_max)
    listed = write_contributions(round_number, rows)
    chunks = [write_chunk(round_number, s, VOTE_CHUNK_KIND) for s in slices]
    head = Manifest(
        round_low=round_number & 0xFFFF,
        model=model_hash[:MODEL_SIZE],
        samples=samples,
        digest=update_digest([listed, *chunks]),
        chunks=len(chunks),
        contributors=tuple(sorted(chosen)),
    )
    bodies = (write_manifest(head), listed, *chunks)
    return read_partial_aggregate(round_number, board, wanted, bodies)


def settle_partial_aggregate(
    partial_aggregate: PartialAggregate,
    have: bytes,
    residual: Vector,
    model_hash: bytes,
    plan: Plan,
) -> Vector:
    """The residual (times samples) after the chunks in the bitmap `have` were counted.

    `residual` is the one before. It stays for the chunks that were not counted, as the boards keep
    these chunks in their own residuals.
    """
    counted = np.array(read_bitmap(have, plan.up.count).tolist(), dtype=np.bool_)
    chunks = (read_chunk(body, VOTE_CHUNK_KIND) for body in partial_aggregate.bodies[2:])
    sent = read_chunks(chunks, plan.up).delta_q24() * UNIT * partial_aggregate.samples
    places = order(model_hash, partial_aggregate.round, plan.dimension)
    after = partial_aggregate.wanted[places] - sent
    is_counted = plan.up.spread(counted)
    return scatter(np.where(is_counted, after, residual[places]), places).astype(np.float32)
