from dataclasses import replace

import numpy as np
import pytest

from ternmesh.errors import WireError
from ternmesh.hypervector.coding import encode
from ternmesh.hypervector.encoder import Slice
from ternmesh.plan import make_plan
from ternmesh.swarm import step
from ternmesh.swarm.intake import Intake
from ternmesh.wire.manifest import Manifest, packet_digest, write_manifest
from ternmesh.wire.share import read_share, write_share

MODEL = bytes(range(32))
PLAN = make_plan(3000, rounds=5, local_steps=1, learning_rate=0.1, frame_mtu=164, up_zeros=0.5)
SHARES = step.encode_update(
    np.random.default_rng(0).normal(0, 0.01, 3000).astype(np.float32), MODEL, 0, PLAN
)
HEAD = Manifest(0, MODEL[:8], 10, packet_digest(SHARES), len(SHARES))


def intake(*bodies: bytes) -> Intake:
    made = Intake(PLAN, MODEL[:8], 0)
    for body in bodies:
        assert made.add(body)
    return made


def reason(made: Intake, body: bytes) -> str:
    before = (made.manifest, dict(made.bodies))
    with pytest.raises(WireError) as caught:
        made.add(body)
    if caught.value.reason != "digest":
        assert (made.manifest, made.bodies) == before
    return caught.value.reason


def test_a_packet_arrives_in_any_order() -> None:
    made = intake(*SHARES[::-1])
    assert not made.usable
    assert made.add(write_manifest(HEAD))
    assert made.complete
    assert made.have == bytes([(1 << len(SHARES)) - 1])
    units = step.scatter(made.hypervector().units(), step.order(MODEL, 0, 3000))
    assert np.array_equal(units, step.update_units(SHARES, MODEL, 0, PLAN))


def test_a_part_is_usable() -> None:
    made = intake(write_manifest(HEAD), SHARES[2])
    assert made.usable
    assert not made.complete
    assert made.have == b"\x04"


def test_what_comes_again_changes_nothing() -> None:
    made = intake(write_manifest(HEAD), SHARES[0])
    assert not made.add(SHARES[0])
    assert not made.add(write_manifest(HEAD))
    assert len(made.bodies) == 1


def share(index: int, values: list[int], scale: int = 29696) -> bytes:
    part = np.zeros(PLAN.up.size(index), np.int8)
    part[: len(values)] = values
    return write_share(0, Slice(index, scale, encode(part)))


def test_why_bodies_are_refused() -> None:
    made = intake(write_manifest(HEAD), SHARES[0])
    assert reason(made, share(0, [1])) == "conflict"
    assert reason(made, write_manifest(replace(HEAD, samples=11))) == "conflict"
    assert reason(made, write_manifest(replace(HEAD, model=b"othermod"))) == "wrong model"
    assert reason(made, write_manifest(replace(HEAD, shares=9))) == "vector length"
    assert reason(made, write_manifest(replace(HEAD, contributors=(1, 2)))) == "bundle"
    assert reason(made, share(1, [1], scale=29696 + 2048)) == "scale"
    assert reason(made, share(1, [2])) == "bundle"
    outside = write_share(0, replace(read_share(SHARES[1]).slice, index=len(SHARES)))
    assert reason(made, outside) == "vector length"
    long = np.zeros(PLAN.up_span + 1, np.int8)
    long[-1] = 1
    assert reason(made, write_share(0, Slice(1, 29696, encode(long)))) == "coding"


def test_a_packet_that_is_not_what_its_manifest_names() -> None:
    made = intake(*SHARES[:-1], write_manifest(replace(HEAD, digest=b"oops")))
    assert reason(made, SHARES[-1]) == "digest"
    made = intake(*SHARES)
    assert reason(made, write_manifest(replace(HEAD, digest=b"oops"))) == "digest"
