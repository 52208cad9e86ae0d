"""The open round: what it refuses of updates and partial aggregates, and what of both counts."""

from dataclasses import replace

import numpy as np
import pytest

from ternmesh.codec.encoder import Slice
from ternmesh.codec.entropy_coder import encode_trits
from ternmesh.codec.scale import encode_scale
from ternmesh.errors import WireError
from ternmesh.federated.aggregation import encode_update
from ternmesh.federated.gateway.partial_aggregate import (
    PartialAggregate,
    choose,
    make_partial_aggregate,
)
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.local_update import make_update
from ternmesh.federated.open_round import OpenRound, UpdateReassembler
from ternmesh.federated.state import HostSettings, RegisteredNode, new_host_state, new_node_state
from ternmesh.plan import Plan, make_plan
from ternmesh.wire.control import Receipt, Silent, write_control
from ternmesh.wire.frame import Header, seal_open
from ternmesh.wire.update import (
    SAMPLES_MAX,
    VOTE_CHUNK_KIND,
    Manifest,
    read_chunk,
    read_manifest,
    update_digest,
    write_chunk,
    write_manifest,
)

MODEL, RUN, DIMENSION = bytes(range(32)), b"run-id-8", 1500
PLAN = make_plan(DIMENSION, rounds=3, local_steps=1, learning_rate=0.1, frame_mtu=164, up_zeros=0.5)
NODES = {1, 2, 3, 4}
CHUNKS = encode_update(
    np.random.default_rng(0).normal(0, 0.01, DIMENSION).astype(np.float32), MODEL, 0, PLAN
)[0]
HEAD = Manifest(0, MODEL[:8], 10, update_digest(CHUNKS), len(CHUNKS))


def bodies_of(address: int, samples: int = 10) -> tuple[bytes, ...]:
    rng = np.random.default_rng(address)
    vector = (rng.standard_t(3, DIMENSION) * 0.01).astype(np.float32)
    return make_update(vector, MODEL, 0, samples * address, PLAN).bodies


def aggregate_of(*addresses: int, plan: Plan = PLAN) -> PartialAggregate:
    intakes = {}
    for address in addresses:
        intakes[address] = UpdateReassembler(plan, MODEL[:8], 0)
        for body in bodies_of(address):
            intakes[address].add(body)
    residual = new_node_state(DIMENSION).residual
    return make_partial_aggregate(choose(intakes, plan), residual, MODEL, 0, plan, "ada")


def new_round(nodes: set[int] | None = NODES) -> OpenRound:
    return OpenRound(PLAN, MODEL[:8], 0, nodes)


def put(arrived: OpenRound, address: int, *bodies: bytes) -> None:
    for body in bodies:
        arrived.add(arrived.place(address, body), body)


def test_a_whole_bundle_stands_for_its_contributors() -> None:  # R6.8-2, R6.8-3
    arrived, partial_aggregate = new_round(), aggregate_of(2, 3)
    put(arrived, 2, *partial_aggregate.bodies)
    assert arrived.present() == {2, 3}
    assert [arrived.delivered(c) for c in (1, 2, 3)] == ["none", "whole", "whole"]
    count = arrived.count()
    assert [item.samples for item in count.updates] == [50]
    assert {c: row.digest for c, row in count.rows.items()} == {
        c: partial_aggregate.rows[c].digest for c in (2, 3)
    }
    [row] = set(count.partial_aggregates.values())
    assert (row.address, row.digest) == (2, partial_aggregate.digest)
    [receipt] = arrived.answers(3)
    assert receipt == Receipt(0, partial_aggregate.rows[3].digest, row.have)


def test_a_gateway_bounds_its_boards_as_the_host_does() -> None:
    honest = aggregate_of(1, 2, 3)
    intakes = {}
    for address, factor, samples in ((1, 1, 10), (2, 1, 20), (3, 30, SAMPLES_MAX - 30)):
        rng = np.random.default_rng(address)
        vector = (factor * rng.standard_t(3, DIMENSION) * 0.01).astype(np.float32)
        intakes[address] = UpdateReassembler(PLAN, MODEL[:8], 0)
        for body in make_update(vector, MODEL, 0, samples, PLAN).bodies:
            intakes[address].add(body)
    residual = new_node_state(DIMENSION).residual
    made = make_partial_aggregate(choose(intakes, PLAN), residual, MODEL, 0, PLAN, "ada")
    assert [row.samples for row in made.rows.values()] == [10, 20, 40]
    assert made.samples == read_manifest(made.bodies[0]).samples == 70
    length = np.linalg.norm(made.wanted / made.samples)
    assert length < 1.5 * np.linalg.norm(honest.wanted / honest.samples)


@pytest.mark.parametrize("order", ["own first", "bundle first"])
def test_a_node_is_never_counted_twice(order: str) -> None:  # R6.8-2
    arrived, partial_aggregate = new_round(), aggregate_of(1, 2)
    parts = [(1, bodies_of(1)), (1, partial_aggregate.bodies), (4, bodies_of(4))]
    for address, bodies in parts if order == "own first" else parts[1:] + parts[:1]:
        put(arrived, address, *bodies)
    count = arrived.count()
    assert sorted(item.samples for item in count.updates) == [30, 40]
    assert list(count.rows) == [1, 2, 4]
    assert set(count.partial_aggregates) == {1, 2}


def test_what_is_whole_goes_before_a_part_of_a_bundle() -> None:  # R6.8-2
    arrived, partial_aggregate = new_round(), aggregate_of(1, 2)
    put(arrived, 1, *partial_aggregate.bodies[:-1])
    assert arrived.delivered(2) == "part"
    assert set(arrived.count().partial_aggregates) == {1, 2}
    put(arrived, 2, *bodies_of(2))
    count = arrived.count()
    assert (count.partial_aggregates, list(count.rows)) == ({}, [2])
    put(arrived, 1, partial_aggregate.bodies[-1])
    assert set(arrived.count().partial_aggregates) == {1, 2}, "whole, it goes before everything"


def test_of_two_bundles_the_first_whole_one_counts() -> None:  # R6.8-2
    """Not the lower context: the other's contributors already have their receipts."""
    arrived, late, early = new_round(), aggregate_of(1, 2), aggregate_of(2, 3)
    put(arrived, 1, *late.bodies[:-1])
    put(arrived, 2, *early.bodies)
    put(arrived, 1, late.bodies[-1])
    assert set(arrived.count().partial_aggregates) == {2, 3}
    assert arrived.present() == {2, 3}
    assert arrived.answers(1) == []


def refusal(bodies: tuple[bytes, ...], address: int = 1, nodes: set[int] | None = NODES) -> str:
    arrived = new_round(nodes)
    with pytest.raises(WireError) as refused:
        put(arrived, address, *bodies)
    return refused.value.reason


def changed(partial_aggregate: PartialAggregate, **changes: object) -> tuple[bytes, ...]:
    head = replace(read_manifest(partial_aggregate.bodies[0]), **changes)  # type: ignore[arg-type]
    return write_manifest(head), *partial_aggregate.bodies[1:]


def one_chunk(votes: int, scale: float) -> bytes:
    values = np.zeros(PLAN.up.size(0), np.int8)
    values[0] = votes
    item = Slice(0, encode_scale(scale), encode_trits(values))
    return write_chunk(0, item, VOTE_CHUNK_KIND)


BUNDLE_12 = aggregate_of(1, 2)


@pytest.mark.parametrize(
    ("bodies", "address", "nodes", "reason"),
    [
        (BUNDLE_12.bodies, 2, NODES, "manifest"),
        (BUNDLE_12.bodies, 1, {1}, "unknown node"),
        (BUNDLE_12.bodies, 1, None, "bundle"),
        (changed(BUNDLE_12, contributors=(1,)), 1, NODES, "manifest"),
        (changed(BUNDLE_12, contributors=(1, 2, 3)), 1, NODES, "digest"),
        (changed(BUNDLE_12, samples=31), 1, NODES, "digest"),
        (changed(BUNDLE_12, digest=b"\x00\x00\x00\x00"), 1, NODES, "digest"),
        (changed(BUNDLE_12, model=b"othermod"), 1, NODES, "wrong model"),
        (changed(BUNDLE_12, chunks=1), 1, NODES, "vector length"),
        ((one_chunk(127, 0.01),), 1, NODES, "scale"),
        ((BUNDLE_12.bodies[1], aggregate_of(1, 3).bodies[1]), 1, NODES, "conflict"),
        ((BUNDLE_12.bodies[2], one_chunk(1, 0.01)), 1, NODES, "conflict"),
    ],
)
def test_what_is_not_a_bundle_is_refused(
    bodies: tuple[bytes, ...], address: int, nodes: set[int] | None, reason: str
) -> None:  # R4.6-3, R4.6-4
    assert refusal(bodies, address, nodes) == reason


def test_a_bundle_holds_no_more_than_a_manifest_may_say() -> None:
    def whole(samples: int) -> UpdateReassembler:
        reassembler = UpdateReassembler(PLAN, MODEL[:8], 0)
        reassembler.manifest = Manifest(0, MODEL[:8], samples, bytes(4), PLAN.up.count)
        return reassembler

    most = SAMPLES_MAX
    assert list(choose({1: whole(most), 2: whole(1)}, PLAN)) == []
    assert list(choose({1: whole(most - 3), 2: whole(9), 3: whole(3)}, PLAN)) == [1, 3]
    many = choose({address: whole(1) for address in range(1, 60)}, PLAN)
    assert list(many) == list(range(1, 22)), "as many as the list of a 164-byte frame names"


def reassembler(*bodies: bytes) -> UpdateReassembler:
    made = UpdateReassembler(PLAN, MODEL[:8], 0)
    for body in bodies:
        assert made.add(body)
    return made


def reason(made: UpdateReassembler, body: bytes) -> str:
    before = (made.manifest, dict(made.bodies))
    with pytest.raises(WireError) as caught:
        made.add(body)
    if caught.value.reason != "digest":
        assert (made.manifest, made.bodies) == before
    return caught.value.reason


def plain_chunk(index: int, values: list[int], scale: int = 29696) -> bytes:
    part = np.zeros(PLAN.up.size(index), np.int8)
    part[: len(values)] = values
    return write_chunk(0, Slice(index, scale, encode_trits(part)))


def test_why_bodies_are_refused() -> None:
    made = reassembler(write_manifest(HEAD), CHUNKS[0])
    assert reason(made, plain_chunk(0, [1])) == "conflict"
    assert reason(made, write_manifest(replace(HEAD, samples=11))) == "conflict"
    assert reason(made, write_manifest(replace(HEAD, model=b"othermod"))) == "wrong model"
    assert reason(made, write_manifest(replace(HEAD, chunks=9))) == "vector length"
    assert reason(made, write_manifest(replace(HEAD, contributors=(1, 2)))) == "bundle"
    assert reason(made, plain_chunk(1, [1], scale=29696 + 2048)) == "scale"
    assert reason(made, plain_chunk(1, [2])) == "bundle"
    outside = write_chunk(0, replace(read_chunk(CHUNKS[1]).slice, index=len(CHUNKS)))
    assert reason(made, outside) == "vector length"
    long = np.zeros(PLAN.up_span + 1, np.int8)
    long[-1] = 1
    assert reason(made, write_chunk(0, Slice(1, 29696, encode_trits(long)))) == "coding"


def test_a_packet_that_is_not_what_its_manifest_names() -> None:
    made = reassembler(*CHUNKS[:-1], write_manifest(replace(HEAD, digest=b"oops")))
    assert reason(made, CHUNKS[-1]) == "digest"
    made = reassembler(*CHUNKS)
    assert reason(made, write_manifest(replace(HEAD, digest=b"oops"))) == "digest"


@pytest.mark.parametrize("all_train", [False, True])
def test_who_is_ready_is_found_for_one_node_as_for_all(all_train: bool) -> None:
    told, part, whole = write_control(Silent(0)), CHUNKS[:1], (write_manifest(HEAD), *CHUNKS)
    steps = [(1, (told,)), (2, (told, *part)), (3, part), (4, (told, *whole)), (5, whole)]
    for order_of in (steps, steps[::-1]):
        made = OpenRound(PLAN, MODEL[:8], 0, all_train=all_train)
        for address, bodies in order_of:
            for body in bodies:
                made.add(address, body)
            assert made.ready() == {a for a in range(7) if made.is_ready(a)}


# At the host


def new_host() -> HostProtocol:
    """A host that takes no partial aggregates."""
    nodes = tuple(RegisteredNode(c, f"n{c}", 10 * c) for c in sorted(NODES))
    state = replace(new_host_state(DIMENSION), nodes=nodes, started=True)
    settings = HostSettings(1, 60.0)
    host = HostProtocol(plan=PLAN, settings=settings, model_hash=MODEL, run=RUN, state=state)
    host.start(0.0)
    return host


def send(host: HostProtocol, address: int, *bodies: bytes) -> list[object]:
    frames = [seal_open(Header(address, i), body) for i, body in enumerate(bodies)]
    host.receive_frames(f"n{address}", frames, 1.0)
    events: list[object] = []
    while (event := host.next_event()) is not None:
        events.append(event)
    return events


def test_a_run_without_bundles_refuses_each_of_their_bodies() -> None:  # R4.6-5
    host = new_host()
    send(host, 1, *BUNDLE_12.bodies)
    chunks = len(BUNDLE_12.bodies) - 2
    assert host.refused == {"bundle": 1, "kind": 1 + chunks}
    assert host.round.delivered(1) == "none"
