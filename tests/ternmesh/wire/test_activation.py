import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ternmesh.errors import CodecError, WireError
from ternmesh.wire import activation
from ternmesh.wire.activation import (
    ANSWER,
    BITS,
    GRADIENT_DOWN,
    LEARN,
    WHOLE,
    Activation,
    body_size,
    read_activation,
    write_activation,
)
from ternmesh.wire.frame import FRAME_MAX, FRAME_OVERHEAD

VALUES = arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 9)),
    elements=st.floats(-(2.0**90), 2.0**90, width=32),
)


@given(VALUES, st.sampled_from(BITS), st.integers(0, 2**32 - 1))
def test_values_come_back_within_half_a_step(values: np.ndarray, bits: int, number: int) -> None:
    # R10.1-3
    body = write_activation(Activation(ANSWER, number, values), bits)
    item = read_activation(body)
    assert (item.leg, item.number, item.labels) == (ANSWER, number, b"")
    assert item.values.dtype == np.float32
    assert len(body) == body_size(values.shape[0], values.shape[1], bits)
    if bits == WHOLE:
        assert item.values.tobytes() == values.tobytes()
        return
    largest = np.abs(values).max(axis=1, keepdims=True).astype(np.float64)
    most = 2 ** (bits - 1) - 1
    # Half a step, and what the scale loses as a bfloat16 (2**-8) at the largest value.
    allowed = largest / most * 0.51 + largest * 2.0**-8 + 2.0**-100 * most
    assert (np.abs(item.values - values.astype(np.float64)) <= allowed).all()


@given(VALUES, st.sampled_from(BITS))
def test_what_was_read_is_written_as_the_same_bytes(values: np.ndarray, bits: int) -> None:
    labels = bytes(range(len(values)))
    body = write_activation(Activation(LEARN, 7, values, labels), bits)
    item = read_activation(body)
    assert item.labels == labels
    assert write_activation(item, bits) == body


HEADS = st.tuples(
    st.integers(0, 6), st.sampled_from((*BITS, 1, 9)), st.integers(0, 3), st.integers(0, 4)
)


@given(st.binary(max_size=60), HEADS)
def test_any_bytes_are_an_activation_or_a_wire_error(
    data: bytes, head: tuple[int, int, int, int]
) -> None:
    leg, bits, samples, width = head
    shaped = activation._HEAD.pack(activation.KIND, leg, 3, bits, samples, width) + data
    size = body_size(samples, width, bits) if bits in BITS else 0
    for body in (data, shaped, shaped[:size], shaped[: size + samples]):
        try:
            item = read_activation(body)
        except WireError:
            continue
        assert np.isfinite(item.values).all()
        assert write_activation(item, body[6]) == body


def body(change: dict[int, int], bits: int = 4) -> bytes:
    """Two samples of three numbers, with some bytes changed."""
    values = np.array([[1, -2, 7], [0, 0.5, 0.25]], np.float32)
    content = bytearray(write_activation(Activation(LEARN, 5, values, b"\x01\x02"), bits))
    for place, byte in change.items():
        content[place] = byte
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "length"),
        (body({})[:9], "length"),
        (body({0: 0x02}), "length"),
        (body({})[:-1], "length"),  # a label is missing
        (body({}) + b"\x00", "length"),
        (body({1: ANSWER}), "length"),  # labels in an answer
        (body({1: GRADIENT_DOWN + 1}), "shape"),
        (body({6: 1}), "shape"),  # bits of a number
        (body({7: 0}), "shape"),  # samples
        (body({8: 0}), "shape"),  # width
        (body({10: 0x80, 11: 0x7F}), "payload"),  # a scale of infinity
        (body({10: 0xC0, 11: 0x7F}), "payload"),  # of NaN
        (body({10: 0x80, 11: 0xBF}), "payload"),  # of -1
        (body({10: 0x01, 11: 0x00}), "payload"),  # a tiny one
        (body({10: 0x00, 11: 0x00}), "payload"),  # none, and steps
        (body({10: 0x7F, 11: 0x7F}), "payload"),  # steps of it overflow
        (body({15: 0xF0 | 15}), "payload"),  # padding, and a step of 8
        (body({15: 0x10 | 14}), "payload"),  # padding alone
        (body({14: 0x77, 15: 0x07}), "payload"),  # a scale, and no step
        (body({10: 0, 11: 0, 12: 0xC0, 13: 0x7F}, WHOLE), "payload"),  # a number that is NaN
    ],
)
def test_why_an_activation_is_refused(content: bytes, reason: str) -> None:  # R10.1-1, R10.1-2
    assert read_activation(body({})).number == 5
    with pytest.raises(WireError) as caught:
        read_activation(content)
    assert caught.value.reason == reason


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_not_written(wrong: float) -> None:
    values = np.zeros((2, 3), np.float32)
    values[1, 2] = wrong
    with pytest.raises(CodecError, match="diverged"):
        write_activation(Activation(LEARN, 0, values), 4)


@pytest.mark.parametrize("shape", [(0, 3), (256, 3), (2, 0), (1, 65_536)])
def test_shapes_without_a_body(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        write_activation(Activation(LEARN, 0, np.zeros(shape, np.float32)), 4)


def test_a_clip_of_the_keyword_model_takes_102_bytes() -> None:
    assert body_size(16, 200, 4) - activation.HEAD_SIZE == 16 * 102
    assert body_size(16, 200, 4, 16) + FRAME_OVERHEAD < FRAME_MAX


VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "activations.json").read_text())


@pytest.mark.parametrize("case", VECTORS.values(), ids=list(VECTORS))
def test_golden_bytes(case: dict[str, Any]) -> None:
    values = np.array([[floats(word)[0] for word in row] for row in case["values"]], np.float32)
    item = Activation(case["leg"], case["number"], values, bytes.fromhex(case["labels"]))
    body = bytes.fromhex(case["bytes"])
    assert write_activation(item, case["bits"]) == body
    read = read_activation(body)
    assert (read.leg, read.number, read.labels) == (item.leg, item.number, item.labels)
    wanted = [[floats(word)[0] for word in row] for row in case["read"]]
    assert read.values.tolist() == wanted == spec_values(body)


def floats(word: str) -> tuple[float]:
    found: tuple[float] = struct.unpack("<f", bytes.fromhex(word))
    return found


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
