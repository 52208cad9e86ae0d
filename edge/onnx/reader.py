"""Reads the parts of an ONNX file that a check needs, without the onnx package and within limits.

The bytes of a tensor are counted, not copied. The rules about the content are in `edge.onnx.check`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from edge.errors import ModelError
from edge.onnx import format as proto
from ternmesh.errors import WireError
from ternmesh.protobuf import Value, Walk, varints

FIELDS_MAX = 300_000  # of a whole file; a 22 M-parameter encoder has 28,600
NODES_MAX = 20_000
TENSORS_MAX = 10_000  # initializers; also inputs or outputs of the graph
VALUES_MAX = 50_000
PORTS_MAX = 1024  # inputs or outputs of one node
ATTRIBUTES_MAX = 16
OPSETS_MAX = 4
NAME_BYTES_MAX = 512
RANK_MAX = 8
SIZE_MAX = (1 << 31) - 1  # of one axis
SHOWN_MAX = 60  # bytes of a name in a message

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tensor:
    """An initializer."""

    name: bytes
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One operator; `axis` is the number of its attribute of that name, or 0."""

    operator: bytes
    domain: bytes
    inputs: tuple[bytes, ...]
    outputs: tuple[bytes, ...]
    axis: int = 0


@dataclass(frozen=True, slots=True)
class Graph:
    """The graph of a model: names of its inputs and outputs, its nodes, its weights."""

    inputs: list[bytes]
    outputs: list[bytes]
    nodes: list[GraphNode]
    initializers: list[Tensor]


@dataclass(frozen=True, slots=True)
class Model:
    """A whole file."""

    ir_version: int
    opsets: list[tuple[bytes, int]]  # domain and version
    graph: Graph


def read_model(data: memoryview) -> Model:
    """The model in `data`; ModelError if it is damaged or has parts that a board does not take."""
    try:
        return _Reader().model(data)
    except WireError as error:
        raise ModelError(str(error)) from error


class _Reader:
    def __init__(self) -> None:
        self._walk = Walk(FIELDS_MAX)

    def model(self, data: memoryview) -> Model:
        version = 0
        graph = None
        opsets: list[tuple[bytes, int]] = []
        for name, value in self._walk.fields(data, proto.MODEL):
            match name:
                case "ir_version":
                    version = _number(value)
                case "graph":
                    graph = _view(value)
                case "opset_import":
                    _bounded(opsets, OPSETS_MAX, "operator sets").append(self._opset(_view(value)))
        if graph is None:
            raise ModelError("it has no graph")
        return Model(version, opsets, self._graph(graph))

    def _opset(self, data: memoryview) -> tuple[bytes, int]:
        fields = dict(self._walk.fields(data, proto.OPSET))
        return _name(fields.get("domain", _EMPTY)), _number(fields.get("version", 0))

    def _graph(self, data: memoryview) -> Graph:
        graph = Graph([], [], [], [])
        parts: dict[str, tuple[list[Any], int, Callable[[memoryview], Any]]] = {
            "node": (graph.nodes, NODES_MAX, self._node),
            "initializer": (graph.initializers, TENSORS_MAX, self._tensor),
            "input": (graph.inputs, TENSORS_MAX, self._value),
            "output": (graph.outputs, TENSORS_MAX, self._value),
            "value_info": ([], VALUES_MAX, self._value),
        }
        for name, value in self._walk.fields(data, proto.GRAPH):
            if name in parts:
                items, count_max, read = parts[name]
                _bounded(items, count_max, f"{name}s").append(read(_view(value)))
        return graph

    def _node(self, data: memoryview) -> GraphNode:
        inputs: list[bytes] = []
        outputs: list[bytes] = []
        operator = b""
        domain = b""
        attributes: dict[bytes, int] = {}
        for name, value in self._walk.fields(data, proto.NODE):
            match name:
                case "input" | "output":
                    ports = inputs if name == "input" else outputs
                    _bounded(ports, PORTS_MAX, f"{name}s of a node").append(_name(value))
                case "op_type":
                    operator = _name(value)
                case "domain":
                    domain = _name(value)
                case "attribute":
                    key, number = self._attribute(_view(value))
                    if key in attributes or len(attributes) == ATTRIBUTES_MAX:
                        raise ModelError("a node has an attribute twice, or too many of them")
                    attributes[key] = number
        axis = attributes.get(b"axis", 0)
        return GraphNode(operator, domain, tuple(inputs), tuple(outputs), axis)

    def _attribute(self, data: memoryview) -> tuple[bytes, int]:
        """Its name, and its number if it is one."""
        key = b""
        kind = number = 0
        values = set()
        for name, value in self._walk.fields(data, proto.ATTRIBUTE):
            if name == "name":
                key = _name(value)
            elif name == "type":
                kind = _number(value)
            elif name != "doc_string":
                values.add(name)
                if name == "i":
                    number = next(varints(value))
                elif name == "t":
                    self._tensor(_view(value))
        wanted = proto.ATTRIBUTE_TYPES.get(kind)
        is_list = wanted in ("floats", "ints")
        if wanted is None or not ({wanted} >= values if is_list else {wanted} == values):
            raise ModelError(f"the attribute {shown(key)} has values of another type")
        return key, number

    def _tensor(self, data: memoryview) -> Tensor:
        name = b""
        kind = 0
        numbers = _Numbers(self._walk)
        dims: list[int] = []
        for key, value in self._walk.fields(data, proto.TENSOR):
            match key:
                case "dims":
                    for size in varints(value):
                        _bounded(dims, RANK_MAX, "axes of a tensor").append(size)
                case "data_type":
                    kind = _number(value)
                case "name":
                    name = _name(value)
                case "data_location" if value != 0:
                    raise ModelError(f"the tensor {shown(name)} lies outside the model's file")
                case _ if key == "raw_data" or key in proto.TYPED_DATA:
                    numbers.add(key, value)
        what = f"the tensor {shown(name)}"
        numbers.check(kind, _count(dims, what), what)
        return Tensor(name, tuple(dims))

    def _value(self, data: memoryview) -> bytes:
        name = b""
        for key, value in self._walk.fields(data, proto.VALUE):
            if key == "name":
                name = _name(value)
            elif key == "type":
                for _ in self._walk.fields(_view(value), proto.TYPE):
                    continue
        return name


class _Numbers:
    """Counts the numbers of a tensor."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._field = ""  # the one field that holds the numbers
        self._count = 0  # or bytes, of raw data

    def add(self, key: str, value: Value) -> None:
        if self._field not in ("", key):
            raise ModelError(f"a tensor has both {self._field} and {key}")
        self._field = key
        if key == "raw_data":
            self._count = len(_view(value))
        elif key in proto.TYPED_SIZES:
            assert isinstance(value, memoryview)
            count, partial = divmod(len(value), proto.TYPED_SIZES[key])
            if partial:
                raise ModelError(f"a tensor's {key} ends inside a number")
            self._count += count
        else:
            for _ in varints(value):
                self._walk.spend(1)
                self._count += 1

    def check(self, kind: int, count: int, what: str) -> None:
        """ModelError unless there are `count` numbers of this data type."""
        if kind not in proto.ELEMENT_SIZES:
            raise ModelError(f"{what} is of the data type {kind}, which a board does not take")
        unit, wanted = "numbers", count
        if self._field == "raw_data":
            unit, wanted = "bytes", count * proto.ELEMENT_SIZES[kind]
        elif self._field and kind not in proto.TYPED_DATA[self._field]:
            raise ModelError(f"{what} has numbers in {self._field}, which is of other types")
        if self._count != wanted:
            raise ModelError(f"{what} holds {self._count} {unit} and its shape needs {wanted}")


_EMPTY = memoryview(b"")


def _count(dims: list[int], what: str) -> int:
    if any(not 0 <= size <= SIZE_MAX for size in dims):
        raise ModelError(f"{what} has an axis whose size is not 0 to {SIZE_MAX}")
    return math.prod(dims)


def _bounded(items: list[T], count_max: int, what: str) -> list[T]:
    """`items`, if it has room for one more."""
    if len(items) >= count_max:
        raise ModelError(f"it has more than {count_max} {what}")
    return items


def _number(value: Value) -> int:
    """A small number: another reader might truncate a larger one to 32 bits."""
    assert isinstance(value, int)
    if value > SIZE_MAX:
        raise ModelError(f"it has the number {value} where a small one is needed")
    return value


def _view(value: Value) -> memoryview:
    assert isinstance(value, memoryview)
    return value


def _name(value: Value) -> bytes:
    view = _view(value)
    if len(view) > NAME_BYTES_MAX:
        raise ModelError(f"it has a name of more than {NAME_BYTES_MAX} bytes")
    name = bytes(view)
    try:
        name.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"it has a name that is not UTF-8: {shown(name)}") from error
    return name


def shown(name: bytes) -> str:
    """A name for a message: always one short line of ASCII."""
    return ascii(name[:SHOWN_MAX].decode(errors="replace"))
