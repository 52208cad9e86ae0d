"""The reader takes what the onnx package takes, reads the same, and stays within its memory."""

import tracemalloc
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.errors import ModelError
from edge.onnx import reader
from edge.onnx.check import check
from models.zoo import FOLDER
from ternmesh.model_package import FORWARD, TRAIN_STEP

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'ternmesh[dev]'")
DecodeError = pytest.importorskip("google.protobuf.message").DecodeError

PEAK_MAX = 4 << 20  # bytes of names and nodes as Python objects
INPUT_MAX = 65_536


def field(number: int, content: bytes) -> bytes:
    """One length-delimited protobuf field."""
    size = len(content)
    head = bytes([number << 3 | 2])
    while size >= 0x80:
        head, size = head + bytes([size & 0x7F | 0x80]), size >> 7
    return head + bytes([size]) + content


def model(node: Any, **constants: np.ndarray) -> bytes:
    """A model of one node with input x and output y."""
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("x", kind, [2, 3])],
        [onnx.helper.make_tensor_value_info("y", kind, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = [onnx.helper.make_opsetid("", 20)]
    return onnx.helper.make_model(graph, opset_imports=opset).SerializeToString()


MODELS = (
    model(onnx.helper.make_node("Gather", ["w", "x"], ["y"], axis=-1), w=np.ones((2, 3))),
    model(onnx.helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[1, 1], pads=[0, 1, 0, 1])),
    model(onnx.helper.make_node("Add", ["x", "w"], ["y"]), w=np.ones((2, 3), np.float32)),
)


def refuse(data: bytes) -> None:
    """Refused with our own error; or taken, and then the onnx package reads the same in it."""
    try:
        check(memoryview(data))
        ours = reader.read_model(memoryview(data)).graph
    except ModelError:
        return
    with suppress(DecodeError):
        compare(ours, onnx.load_from_string(data).graph)


def compare(ours: reader.Graph, theirs: Any) -> None:
    """Both readers see the same graph, and the other one no data outside the file."""

    def names(items: Iterable[Any]) -> list[bytes]:
        return [item.name.encode() for item in items]

    assert ours.inputs == names(theirs.input)
    assert ours.outputs == names(theirs.output)
    assert [tensor.name for tensor in ours.initializers] == names(theirs.initializer)
    assert len(ours.nodes) == len(theirs.node)
    for mine, other in zip(ours.nodes, theirs.node, strict=True):
        assert (mine.operator, mine.domain) == (other.op_type.encode(), other.domain.encode())
        assert mine.inputs == tuple(name.encode() for name in other.input)
        assert mine.outputs == tuple(name.encode() for name in other.output)
        for attribute in other.attribute:
            assert not attribute.HasField("g")
            if (attribute.type, attribute.name) == (onnx.AttributeProto.INT, "axis"):
                assert mine.axis == attribute.i
    for tensor in theirs.initializer:
        assert not onnx.external_data_helper.uses_external_data(tensor)


@pytest.mark.parametrize("file", [FORWARD, TRAIN_STEP])
def test_the_onnx_package_reads_the_same(file: str) -> None:
    data = (FOLDER / "keyword" / file).read_bytes()
    ours = reader.read_model(memoryview(data)).graph
    compare(ours, onnx.load_from_string(data).graph)
    shapes = {tensor.name: tensor.shape for tensor in ours.initializers}
    for tensor in onnx.load_from_string(data).graph.initializer:
        assert shapes[tensor.name.encode()] == tuple(tensor.dims)


@given(st.binary(max_size=300))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_taken_or_refused(data: bytes) -> None:
    refuse(data)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_change_of_a_model_is_refused_or_means_the_same_to_onnx(data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(MODELS)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    refuse(bytes(content))


def wide_inputs() -> dict[str, bytes]:
    def graph(part: bytes) -> bytes:
        return field(7, part * (INPUT_MAX // len(part) - 1))[:INPUT_MAX]

    named = b"".join(
        field(1, field(2, index.to_bytes(3, "little")) + field(4, b"Or")) for index in range(5000)
    )
    tensors = b"".join(
        field(5, b"\x08\x00\x10\x07" + field(8, index.to_bytes(3, "little")))
        for index in range(4500)
    )
    values = b"".join(field(11, field(1, index.to_bytes(3, "little"))) for index in range(9000))
    return {
        "empty nodes": graph(field(1, b"")),
        "nodes of their own names": field(7, named)[:INPUT_MAX],
        "initializers of their own names": field(7, tensors)[:INPUT_MAX],
        "inputs of their own names": field(7, values)[:INPUT_MAX],
        "ports of one node": graph(field(1, b"\x0a\x00" * 500)),
        "packed numbers": field(7, field(5, b"\x10\x07" + field(7, b"\x01" * 65_000))),
        "attributes": graph(field(1, field(5, b"\xa0\x01\x02\x18\x01"))),
        "ends inside a tensor": field(7, field(5, field(9, bytes(65_000))))[:-1],
    }


@pytest.mark.parametrize("name", wide_inputs())
def test_the_peak_while_refusing_is_bounded(name: str) -> None:
    data = wide_inputs()[name]
    assert len(data) <= INPUT_MAX
    tracemalloc.start()
    refuse(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= PEAK_MAX, f"{name}: {peak} bytes"
