import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ternmesh.errors import CodecError
from ternmesh.wire import activation
from ternmesh.wire.frame import FRAME_MAX, FRAME_OVERHEAD

VALUES = arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 9)),
    elements=st.floats(-(2.0**90), 2.0**90, width=32),
)


@given(VALUES, st.sampled_from(activation.BITS), st.integers(0, 2**32 - 1))
def test_values_come_back_within_half_a_step(values: np.ndarray, bits: int, number: int) -> None:
    # R10.1-3
    answer = activation.Activation(activation.ANSWER, number, values)
    body = activation.write_activation(answer, bits)
    item = activation.read_activation(body)
    assert (item.leg, item.number, item.labels) == (activation.ANSWER, number, b"")
    assert item.values.dtype == np.float32
    assert len(body) == activation.body_size(values.shape[0], values.shape[1], bits)
    if bits == activation.WHOLE:
        assert item.values.tobytes() == values.tobytes()
        return
    largest = np.abs(values).max(axis=1, keepdims=True).astype(np.float64)
    most = 2 ** (bits - 1) - 1
    # Half a step, and what the scale loses as a bfloat16 (2**-8) at the largest value.
    allowed = largest / most * 0.51 + largest * 2.0**-8 + 2.0**-100 * most
    assert (np.abs(item.values - values.astype(np.float64)) <= allowed).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_not_written(wrong: float) -> None:
    values = np.zeros((2, 3), np.float32)
    values[1, 2] = wrong
    with pytest.raises(CodecError, match="diverged"):
        activation.write_activation(activation.Activation(activation.LEARN, 0, values), 4)


@pytest.mark.parametrize("shape", [(0, 3), (256, 3), (2, 0), (1, 65_536)])
def test_shapes_without_a_body(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        activation.write_activation(
            activation.Activation(activation.LEARN, 0, np.zeros(shape, np.float32)), 4
        )


def test_a_clip_of_the_keyword_model_takes_102_bytes() -> None:
    assert activation.body_size(16, 200, 4) - activation.HEAD_SIZE == 16 * 102
    assert activation.body_size(16, 200, 4, 16) + FRAME_OVERHEAD < FRAME_MAX


VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "activations.json").read_text())


@pytest.mark.parametrize("case", VECTORS.values(), ids=list(VECTORS))
def test_golden_bytes(case: dict[str, Any]) -> None:
    body = bytes.fromhex(case["bytes"])
    read = activation.read_activation(body)
    head = case["leg"], case["number"], case["labels"]
    assert (read.leg, read.number, read.labels.hex()) == head
    wanted = [[floats(word)[0] for word in row] for row in case["read"]]
    assert read.values.tolist() == wanted == spec_values(body)


def floats(word: str) -> tuple[float]:
    return struct.unpack("<f", bytes.fromhex(word))


def spec_values(body: bytes) -> list[list[float]]:
    """Section 10.1 of SPEC.md read bit by bit; shares no code with the package."""
    bits, samples, width = body[6], body[7], body[8] | body[9] << 8
    if bits == 32:
        numbers = struct.unpack_from(f"<{samples * width}f", body, 10)
        return [list(numbers[s * width : (s + 1) * width]) for s in range(samples)]
    row = (width * bits + 7) // 8
    found = []
    for s in range(samples):
        [scale] = struct.unpack(">f", bytes([body[11 + 2 * s], body[10 + 2 * s], 0, 0]))
        start = 10 + 2 * samples + s * row
        stream = int.from_bytes(body[start : start + row], "little")
        steps = [stream >> bits * j & 2**bits - 1 for j in range(width)]
        found.append([(step - (2 ** (bits - 1) - 1)) * scale for step in steps])
    return found
