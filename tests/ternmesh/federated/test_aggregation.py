from dataclasses import replace

import numpy as np
import pytest

from ternmesh.codec.scale import SCALE_MAX
from ternmesh.errors import WireError
from ternmesh.federated.aggregation import (
    encode_step,
    encode_update,
    global_delta_q24,
    update_delta_q24,
)
from ternmesh.federated.open_round import UpdateReassembler
from ternmesh.plan import make_plan

MODEL = bytes(range(32))
PLAN = make_plan(3000, rounds=5, local_steps=1, learning_rate=0.1, frame_mtu=164, up_zeros=0.5)


def update(seed: int, round_number: int = 4) -> tuple[np.ndarray, tuple[bytes, ...]]:
    vector = np.random.default_rng(seed).normal(0, 0.01, 3000).astype(np.float32)
    return vector, encode_update(vector, MODEL, round_number, PLAN)[0]


@pytest.mark.parametrize("scale_max", [1, 2047, 2049, 1 << 24, 2**31 - 1])
def test_an_update_is_what_the_host_believes(scale_max: int) -> None:  # R4.1-6
    """A node that was away for long has much to say: a share beyond the plan would be refused."""
    plan = replace(PLAN, scale_max=scale_max)
    reassembler = UpdateReassembler(plan, MODEL[:8], 4)
    for body in encode_update(np.full(3000, 70, np.float32), MODEL, 4, plan)[0]:
        reassembler.add(body)
    vector = reassembler.hypervector()
    assert vector.present.all()
    assert vector.scales.max() <= scale_max
    assert vector.scales.min() > 0.999 * min(scale_max, SCALE_MAX)


def test_a_step_must_be_whole() -> None:  # R4.5-1
    vector = np.ones(3000, np.float32)
    chunks = encode_step(vector, MODEL, 9, PLAN)[0]
    assert global_delta_q24(chunks, MODEL, 9, PLAN).any()
    for wrong in (chunks[:-1], (*chunks[:-1], chunks[0]), (*chunks, chunks[0]), ()):
        with pytest.raises(WireError):
            global_delta_q24(wrong, MODEL, 9, PLAN)


def test_the_shares_of_a_step_are_of_its_version() -> None:  # R4.5-1
    chunks = encode_step(np.ones(3000, np.float32), MODEL, 70_000, PLAN)[0]
    other = encode_step(np.ones(3000, np.float32), MODEL, 69_999, PLAN)[0]
    assert global_delta_q24(chunks, MODEL, 70_000, PLAN).any()
    with pytest.raises(WireError) as caught:
        global_delta_q24((*chunks[:-1], other[-1]), MODEL, 70_000, PLAN)
    assert caught.value.reason == "reference"


def test_a_share_beyond_the_packet_is_refused() -> None:  # R4.1-3
    body = bytearray(update(1)[1][0])
    body[3] = PLAN.up.count
    with pytest.raises(WireError, match="chunks"):
        update_delta_q24([bytes(body)], MODEL, 4, PLAN)
