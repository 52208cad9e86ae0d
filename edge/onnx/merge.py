"""Puts the values of an adapter into forward.onnx, for programs that know no adapters.

A board has no onnx package. The file is copied field by field, and only the adapter tensors change:
they become constants with the learned values, and are no inputs any more.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge.errors import ModelError
from edge.onnx.format import GRAPH, MODEL, TENSOR, VALUE
from edge.onnx.reader import FIELDS_MAX
from ternmesh.errors import WireError
from ternmesh.protobuf import MessageSchema, Value, Walk, bytes_field, number_field

DIMS, DATA_TYPE, NAME, RAW_DATA = 1, 2, 8, 9  # fields of a tensor
FLOAT32 = 1

Tensors = Mapping[bytes, NDArray[np.float32]]


def merge_adapter(forward: bytes, adapter: Mapping[str, NDArray[np.float32]]) -> bytes:
    """The bytes of `forward` with these tensors as constants; ModelError where it lacks one."""
    tensors = {name.encode(): tensor for name, tensor in adapter.items()}
    walk = Walk(FIELDS_MAX)
    parts = []
    try:
        for name, value in walk.fields(memoryview(forward), MODEL):
            is_graph = name == "graph" and isinstance(value, memoryview)
            parts.append(_field(MODEL, name, _graph(walk, value, tensors) if is_graph else value))
    except WireError as error:
        raise ModelError(f"forward.onnx cannot be read: {error}") from error
    return b"".join(parts)


def _graph(walk: Walk, data: Value, tensors: Tensors) -> bytes:
    assert isinstance(data, memoryview)
    parts = []
    missing = set(tensors)
    for field, value in walk.fields(data, GRAPH):
        if field in ("initializer", "input"):
            assert isinstance(value, memoryview)
            fields = dict(walk.fields(value, TENSOR if field == "initializer" else VALUE))
            name = bytes(fields.get("name", b""))
            if name in tensors and field == "input":
                continue
            if name in tensors:
                missing.discard(name)
                value = _tensor(name, tensors[name])
        parts.append(_field(GRAPH, field, value))
    if missing:
        raise ModelError(f"forward.onnx has no value for {min(missing)!r}: export the model again")
    return b"".join(parts)


def _tensor(name: bytes, tensor: NDArray[np.float32]) -> memoryview:
    sizes = b"".join(number_field(DIMS, size) for size in tensor.shape)
    raw = bytes_field(RAW_DATA, np.ascontiguousarray(tensor, "<f4").tobytes())
    return memoryview(sizes + number_field(DATA_TYPE, FLOAT32) + bytes_field(NAME, name) + raw)


def _field(schema: MessageSchema, name: str, value: Value | bytes) -> bytes:
    number = next(number for number, field in schema.fields.items() if field.name == name)
    if isinstance(value, int):
        return number_field(number, value)
    return bytes_field(number, bytes(value))
