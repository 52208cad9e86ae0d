"""The open round: what it refuses of updates, and what counts."""

from dataclasses import replace

import numpy as np
import pytest

from ternmesh.codec.encoder import Slice
from ternmesh.codec.entropy_coder import encode_trits
from ternmesh.errors import WireError
from ternmesh.federated.aggregation import encode_update
from ternmesh.federated.open_round import OpenRound, UpdateReassembler
from ternmesh.plan import make_plan
from ternmesh.wire.control import Receipt, Silent, write_control
from ternmesh.wire.update import Manifest, read_chunk, update_digest, write_chunk, write_manifest

MODEL, DIMENSION = bytes(range(32)), 1500
PLAN = make_plan(DIMENSION, rounds=3, local_steps=1, learning_rate=0.1, frame_mtu=164, up_zeros=0.5)
CHUNKS = encode_update(
    np.random.default_rng(0).normal(0, 0.01, DIMENSION).astype(np.float32), MODEL, 0, PLAN
)[0]
HEAD = Manifest(0, MODEL[:8], 10, update_digest(CHUNKS), len(CHUNKS))


def test_the_update_of_an_aggregator_counts_with_its_members() -> None:
    arrived, root = OpenRound(PLAN, MODEL[:8], 0), bytes(range(16))
    for body in (write_manifest(replace(HEAD, members=3, root=root)), *CHUNKS):
        arrived.add(2, body)
    count = arrived.count()
    assert [(item.address, item.samples, item.members) for item in count.updates] == [(2, 10, 3)]
    assert count.rows[2].root == root
    assert arrived.answers(2) == [Receipt(0, HEAD.digest, count.rows[2].have)]


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
    regional = write_manifest(replace(HEAD, members=2, root=bytes(16)))
    assert reason(made, regional) == "conflict"
    assert reason(made, plain_chunk(1, [1], scale=29696 + 2048)) == "scale"
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
