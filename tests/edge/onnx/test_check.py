"""Hostile ONNX files are refused before onnxruntime sees them, each for its own reason."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.errors import ModelError
from edge.onnx import reader
from edge.onnx.check import OPSETS, SIZES, check, check_file
from edge.onnx.session import LoadedModel, load_model
from models.zoo import FOLDER
from ternmesh.model_package import FORWARD, OPERATORS, TRAIN_STEP

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'ternmesh[dev]'")
helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def node(kind, inputs=("x",), outputs=("y",), **more):
    return helper.make_node(kind, list(inputs), list(outputs), **more)


def model(*nodes, constants=(), opsets=(("", 20),), **more):
    graph = helper.make_graph(
        list(nodes) or [node("Relu")],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        list(constants),
    )
    imports = [helper.make_opsetid(*opset) for opset in opsets]
    return helper.make_model(graph, opset_imports=imports, ir_version=9, **more)


def numbers(name, *values):
    return onnx.numpy_helper.from_array(np.array(values, np.int64), name)


def changed(change: Callable, *args, **more) -> bytes:
    made = model(*args, **more)
    change(made)
    return made.SerializeToString()


def with_tensor(change: Callable) -> bytes:
    """A model whose weight w of 2 x 3 floats was changed."""
    weight = onnx.numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    made = model(node("Add", ("x", "w")), constants=[weight])
    change(made.graph.initializer[0])
    return made.SerializeToString()


def external(location: str) -> bytes:
    def change(tensor):
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return with_tensor(change)


def field(number: int, content: bytes) -> bytes:
    """One length-delimited protobuf field."""
    size = len(content)
    head = bytes([number << 3 | 2])
    while size >= 0x80:
        head, size = head + bytes([size & 0x7F | 0x80]), size >> 7
    return head + bytes([size]) + content


def bomb(kind: str, *values: int) -> bytes:
    constant = node("Constant", (), ("c",), value=numbers("", 1))
    grown = node(kind, ("s",) if kind == "ConstantOfShape" else ("c", "s"))
    return model(constant, grown, constants=[numbers("s", *values)]).SerializeToString()


def functions(depth: int) -> bytes:
    def change(made):
        for index in range(depth):
            inner = helper.make_node(f"f{index - 1}", ["a"], ["b"], domain="local")
            opset = [helper.make_opsetid("local", 1)]
            made.functions.append(
                helper.make_function("local", f"f{index}", ["a"], ["b"], [inner], opset)
            )

    return changed(change, opsets=(("", 20), ("local", 1)))


def nested(depth: int) -> bytes:
    branch = helper.make_graph([node("Relu", ("x",), ("z",))], "b", [], [])
    for _ in range(depth):
        inner = node("If", ("x",), ("z",), then_branch=branch)
        branch = helper.make_graph([inner], "b", [], [])
    return model(node("If", then_branch=branch, else_branch=branch)).SerializeToString()


def sparse() -> bytes:
    def change(made):
        made.graph.sparse_initializer.add().dims.append(4)

    return changed(change)


def sequence_input() -> bytes:
    def change(made):
        made.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", FLOAT, None))

    return changed(change)


def in_domain(domain: str, kind: str) -> bytes:
    return model(node(kind, domain=domain), opsets=(("", 20), (domain, 1))).SerializeToString()


def only(kind: str, *inputs: str, constants=()) -> bytes:
    return model(node(kind, ("x", *inputs)), constants=constants).SerializeToString()


def cast(kind: int) -> bytes:
    return model(node("Cast", to=kind)).SerializeToString()


def padded(*pads: int, more: tuple[str, ...] = ()) -> bytes:
    made = model(node("Pad", ("x", "p", *more)), constants=[numbers("p", *pads), numbers("a", 0)])
    return made.SerializeToString()


def chain(kind: str, length: int, product_at: int = 0) -> bytes:
    """Each node doubles the first axis; a matrix product at `product_at` begins anew."""
    weight = onnx.numpy_helper.from_array(np.ones((3, 3), np.float32), "w")
    nodes = []
    for at in range(1, length + 1):
        given = "x" if at == 1 else f"y{at - 1}"
        if at == product_at:
            nodes.append(node("MatMul", (given, "w"), (f"y{at}",)))
        elif kind == "Concat":
            nodes.append(node("Concat", (given, given), (f"y{at}",), axis=0))
        else:
            nodes.append(node("Pad", (given, "p"), (f"y{at}",)))
    nodes.append(node("Relu", (f"y{length}",)))
    return model(*nodes, constants=[weight, numbers("p", 1, 0, 0, 0)]).SerializeToString()


def size_of_data() -> bytes:
    whole = node("Cast", ("x",), ("n",), to=INT64)
    return model(whole, node("Expand", ("x", "n"))).SerializeToString()


def resized_by_data(kind: str, index: int, count: int) -> bytes:
    """Input `index` of `count` is computed from data; the others are constants."""
    whole = node("Cast", ("x",), ("n",), to=INT64)
    inputs = ["x", *["s"] * (count - 1)]
    inputs[index] = "n"
    constants = [numbers("s", 1, 1)]
    return model(whole, node(kind, inputs), constants=constants).SerializeToString()


def expanded_by_a_slice() -> bytes:
    """What Shape gives is no data, as long as no shape is."""
    return model(
        node("Cast", ("x",), ("n",), to=INT64),
        node("Slice", ("x", "s", "n"), ("part",)),
        node("Shape", ("part",), ("size",)),
        node("Expand", ("x", "size")),
        constants=[numbers("s", 0)],
    ).SerializeToString()


def set_dims(*dims: int) -> Callable:
    def change(tensor):
        del tensor.dims[:]
        tensor.dims.extend(dims)

    return change


def declared(*dims: int) -> bytes:
    def change(made):
        made.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, list(dims)))

    return changed(change)


def location_in_64_bits() -> bytes:
    """data_location 2**32 + 1, which a reader of 32 bits takes for EXTERNAL."""
    plain = with_tensor(lambda tensor: None)
    tensor = onnx.load_from_string(plain).graph.initializer[0].SerializeToString()
    more = tensor + bytes.fromhex("70 8180808010")
    graph = onnx.load_from_string(plain).graph
    del graph.initializer[:]
    made = onnx.load_from_string(plain)
    made.ClearField("graph")
    return made.SerializeToString() + field(7, graph.SerializeToString() + field(5, more))


def two_graphs() -> bytes:
    """A harmless graph, and a second that protobuf would merge into it."""
    second = model(node("Loop", ("x",), ("z",))).graph.SerializeToString()
    return model().SerializeToString() + field(7, second)


def deep(depth: int) -> bytes:
    content = b""
    for _ in range(depth):
        content = field(6, content)  # AttributeProto.g, GraphProto has no 6
    return field(7, field(1, field(5, content)))


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    # Data outside the file: CVE-2022-25882, CVE-2024-27318, CVE-2026-27489, CVE-2026-34447.
    "external data above the folder": (lambda: external("../../etc/passwd"), "another file"),
    "external data by an absolute path": (lambda: external("/etc/passwd"), "another file"),
    "external data through a symlink": (lambda: external("link.bin"), "another file"),
    "external data in the current directory": (lambda: external("weights.bin"), "another file"),
    "external data beside the file": (lambda: external("./forward.bin"), "another file"),
    "external data without a location": (
        lambda: with_tensor(lambda t: setattr(t, "data_location", 1)),
        "lies outside",
    ),
    "an external location in 64 bits": (location_in_64_bits, "lies outside"),
    # Weights that are not as large as their shape says: CVE-2024-27319 and its like.
    "an initializer that is too short": (
        lambda: with_tensor(set_dims(2, 4)), "holds 24 bytes and its shape needs 32"
    ),
    "an initializer that is too long": (
        lambda: with_tensor(set_dims(2, 2)), "holds 24 bytes and its shape needs 16"
    ),
    "an initializer without data": (
        lambda: with_tensor(lambda t: t.ClearField("raw_data")), "holds 0 numbers"
    ),
    "an initializer of enormous axes": (
        lambda: with_tensor(set_dims(1 << 31, 1 << 31, 4)), "axis whose size is"
    ),
    "axes whose product overflows": (
        lambda: with_tensor(set_dims(1 << 30, 1 << 30, 16)), "holds 24 bytes"
    ),
    "an initializer of a negative axis": (lambda: with_tensor(set_dims(-1, -6)), "axis whose size"),
    "an initializer of many axes": (lambda: with_tensor(set_dims(*[1] * 9)), "more than 8 axes"),
    "an initializer of text": (
        lambda: with_tensor(lambda t: setattr(t, "data_type", 8)), "data type 8"
    ),
    "an initializer of an unknown type": (
        lambda: with_tensor(lambda t: setattr(t, "data_type", 99)), "data type 99"
    ),
    "numbers twice": (
        lambda: with_tensor(lambda t: t.float_data.extend([1.0] * 6)), "both"
    ),
    "segments": (lambda: with_tensor(lambda t: setattr(t.segment, "begin", 1)), "segments"),
    "a sparse initializer": (sparse, "sparse"),
    "a size that a constant tensor does not have": (
        lambda: model(
            node("Constant", (), ("y",), value=onnx.TensorProto(dims=[1 << 20], data_type=FLOAT))
        ).SerializeToString(),
        "holds 0 numbers and its shape needs 1048576",
    ),
    # Code that is not ours: contrib kernels read out of bounds, functions 3,000 deep crash.
    "MatMulNBits of another domain": (
        lambda: in_domain("com.microsoft", "MatMulNBits"), "'com.microsoft'"
    ),
    "Attention of another domain": (
        lambda: in_domain("com.microsoft", "Attention"), "'com.microsoft'"
    ),
    "a custom operator": (lambda: in_domain("evil", "Relu"), "'evil'"),
    "an allowed name in a domain that is not imported": (
        lambda: model(node("Relu", domain="evil")).SerializeToString(), "domain 'evil'"
    ),
    "functions 3,000 deep": (lambda: functions(3000), "functions of its own"),
    "a function that calls itself": (lambda: functions(1), "functions of its own"),
    "an overloaded node": (
        lambda: changed(lambda m: setattr(m.graph.node[0], "overload", "o")), "overload"
    ),
    "training information": (
        lambda: changed(lambda m: m.training_info.add()), "a field 20"
    ),
    "metadata": (lambda: changed(lambda m: m.metadata_props.add(key="ort_config")), "metadata"),
    "an old operator set": (
        lambda: model(opsets=(("", 9),)).SerializeToString(), "operator set is version 9"
    ),
    "an operator set to come": (
        lambda: model(opsets=(("", 4000),)).SerializeToString(), "operator set is version 4000"
    ),
    "no operator set": (lambda: model(opsets=()).SerializeToString(), "none"),
    "a format to come": (lambda: changed(lambda m: setattr(m, "ir_version", 99)), "version 99"),
    # Graphs in graphs, loops.
    "a loop": (lambda: only("Loop"), "'Loop' is not on the list"),
    "an If": (lambda: nested(0), "graph inside the graph"),
    "an If 20 deep": (lambda: nested(20), "graph inside the graph"),
    "fields 10,000 deep": (lambda: deep(10_000), "graph inside the graph"),
    # A few bytes that become gigabytes.
    "a ConstantOfShape bomb": (lambda: bomb("ConstantOfShape", 1 << 28), "expand to"),
    "a ConstantOfShape bomb of many axes": (
        lambda: bomb("ConstantOfShape", *[1 << 10] * 4), "expand to"
    ),
    "a ConstantOfShape of a size from data": (
        lambda: only("ConstantOfShape"), "depends on data"
    ),
    "a ConstantOfShape of a computed size": (
        lambda: model(
            node("Mul", ("s", "s"), ("t",)),
            node("ConstantOfShape", ("t",)),
            constants=[numbers("s", 1 << 20)],
        ).SerializeToString(),
        "is not a constant",
    ),
    "two ConstantOfShape that are too much together": (
        lambda: model(
            node("ConstantOfShape", ("s",), ("a",)),
            node("ConstantOfShape", ("s",)),
            constants=[numbers("s", 3 << 23)],
        ).SerializeToString(),
        "expand to",
    ),
    "a ConstantOfShape without a size": (
        lambda: model(node("ConstantOfShape", ())).SerializeToString(), "is not a constant"
    ),
    "an Expand bomb": (lambda: bomb("Expand", 1 << 20, 1 << 20), "expand to"),
    "an Expand to a size from data": (size_of_data, "depends on data"),
    "an Expand to the shape of a Slice by data": (expanded_by_a_slice, "result of 'Slice'"),
    "a Pad bomb": (lambda: padded(0, 1 << 40, 0, 0), "padding"),
    "a Pad bomb that names its axes": (
        lambda: padded(0, 1 << 40, more=("", "a")), "padding"
    ),
    "a chain of Concat": (lambda: chain("Concat", 17), "joining enlarges a tensor more than"),
    "a chain of Pad": (lambda: chain("Pad", 17), "padding or joining enlarges"),
    "a Pad bomb of many axes": (lambda: padded(999, 999, 999, 999), "padding"),
    "a padding bomb in a pooling": (
        lambda: model(
            node("MaxPool", kernel_shape=[1, 1], pads=[1 << 30] * 4)
        ).SerializeToString(),
        "padding",
    ),
    "a Tile bomb": (lambda: only("Tile", "s", constants=[numbers("s", 9, 9)]), "'Tile' is not"),
    "a Range bomb": (lambda: only("Range"), "'Range' is not"),
    "a Resize bomb": (lambda: only("Resize"), "'Resize' is not"),
    "random numbers": (lambda: only("RandomNormalLike"), "'RandomNormalLike' is not"),
    "an image decoder": (lambda: only("ImageDecoder"), "'ImageDecoder' is not"),
    "sizes out of values": (lambda: only("NonZero"), "'NonZero' is not"),
    "a Cast to text": (lambda: cast(8), "'Cast' has a data type"),
    "an enormous input": (lambda: declared(1 << 20, 1 << 20), "more than 1073741824 bytes"),
    "an input that is a sequence": (sequence_input, "a sequence"),
    # Bounds.
    "many nodes": (
        lambda: model(*[node("Relu", (), ())] * (reader.NODES_MAX + 1)).SerializeToString(),
        "more than 20000 nodes",
    ),
    "many inputs of a node": (
        lambda: model(node("Sum", ["x"] * 1025)).SerializeToString(), "more than 1024 inputs"
    ),
    "many attributes": (
        lambda: model(node("Relu", **{f"a{n}": 1 for n in range(17)})).SerializeToString(),
        "too many of them",
    ),
    "an attribute of many numbers": (
        lambda: model(node("Relu", a=[1] * 65)).SerializeToString(), "more than 64 numbers"
    ),
    "a long name": (lambda: only("R" * 513), "more than 512 bytes"),
    # What readers disagree about.
    "a name that is no text": (
        lambda: model().SerializeToString().replace(b"Relu", b"R\xff\xfe."),
        "a name that is not UTF-8",
    ),
    "two graphs": (two_graphs, "two of graph"),
    "a value made twice": (
        lambda: model(node("Relu"), node("Tanh")).SerializeToString(), "'y' is defined twice"
    ),
    "a value before it is made": (
        lambda: model(node("Relu", ("z",)), node("Relu", ("x",), ("z",))).SerializeToString(),
        "'z' is used before",
    ),
    "an output that nothing makes": (
        lambda: model(node("Relu", ("x",), ("z",))).SerializeToString(), "output 'y'"
    ),
    "an attribute of another type": (
        lambda: changed(
            lambda m: setattr(m.graph.node[0].attribute[0], "type", 3), node("Softmax", axis=1)
        ),
        "values of another type",
    ),
    "an attribute of a function": (
        lambda: changed(
            lambda m: setattr(m.graph.node[0].attribute[0], "ref_attr_name", "a"),
            node("Softmax", axis=1),
        ),
        "a field 21",
    ),
    "a group": (lambda: b"\x3b\x3c", "wrong wire type"),
    "a number that does not end": (lambda: b"\x08" + b"\xff" * 20, "ends nowhere"),
    "a number of more than 64 bits": (lambda: b"\x08" + b"\xff" * 9 + b"\x02", "too long"),
    "a length beyond the end": (lambda: b"\x3a\xff\xff\xff\xff\x07\x00", "ends inside"),
    "half a file": (lambda: model().SerializeToString()[:-9], "ends inside"),
    "no graph": (lambda: b"\x08\x09", "no graph"),
    "a field that ONNX does not have": (lambda: field(13, b""), "a field 13"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_for_its_own_reason(name: str) -> None:
    make, reason = HOSTILE[name]
    with pytest.raises(ModelError, match=reason) as caught:
        check(memoryview(make()))
    sentence = str(caught.value)
    assert len(sentence) < 300
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("kind", "index", "count"),
    [
        *(("Reshape", 1, 2), ("ReduceSum", 1, 2)),
        *(("Slice", 1, 3), ("Slice", 2, 3), ("Slice", 3, 4), ("Slice", 4, 5)),
        *(("Split", 1, 2), ("Squeeze", 1, 2), ("Unsqueeze", 1, 2)),
    ],
)
def test_a_size_that_depends_on_data_is_refused(kind: str, index: int, count: int) -> None:
    with pytest.raises(ModelError, match=f"the size of the result of '{kind}' depends on data"):
        check(memoryview(resized_by_data(kind, index, count)))


def test_the_bomb_of_77_bytes_is_that_small() -> None:
    """What the surveyed one does: nothing but a shape and one operator."""
    shape = field(
        5, b"\x08\x01\x10\x07" + field(8, b"s") + field(9, (1 << 33).to_bytes(8, "little"))
    )
    made = field(1, field(1, b"s") + field(2, b"y") + field(4, b"ConstantOfShape"))
    data = b"\x08\x09" + field(7, made + shape + field(12, field(1, b"y"))) + field(8, b"\x10\x14")
    assert len(data) <= 77
    with pytest.raises(ModelError, match="expand to"):
        check(memoryview(data))


def test_a_file_has_so_many_fields_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    data = with_tensor(lambda tensor: None)
    monkeypatch.setattr(reader, "FIELDS_MAX", 40)
    check(memoryview(data))
    monkeypatch.setattr(reader, "FIELDS_MAX", 20)
    with pytest.raises(ModelError, match="more fields than are allowed"):
        check(memoryview(data))


def test_a_harmless_file_is_taken() -> None:
    check(memoryview(model().SerializeToString()))
    check(memoryview(with_tensor(lambda tensor: None)))
    typed = helper.make_tensor("w", FLOAT, [2, 3], [1.0] * 6)
    check(memoryview(model(node("Add", ("x", "w")), constants=[typed]).SerializeToString()))
    whole = helper.make_tensor("s", INT64, [2], [2, -3])
    check(memoryview(only("Reshape", "s", constants=[whole])))
    check(memoryview(padded(0, 1, 0, 1)))
    check(memoryview(chain("Concat", 16)))
    check(memoryview(chain("Concat", 30, product_at=15)))


def test_a_file_is_named_where_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FORWARD
    with pytest.raises(ModelError, match=r"forward\.onnx cannot be read"):
        check_file(path)
    path.write_bytes(b"")
    with pytest.raises(ModelError, match=r"forward\.onnx cannot be read"):
        check_file(path)
    path.write_bytes(external("weights.bin"))
    with pytest.raises(ModelError, match=r"forward\.onnx is refused: a tensor has data in another"):
        check_file(path)


@pytest.mark.parametrize("file", [FORWARD, TRAIN_STEP])
@pytest.mark.parametrize("folder", sorted(path.parent.name for path in FOLDER.glob("*/model.json")))
def test_every_model_of_the_zoo_is_taken(folder: str, file: str) -> None:
    check_file(FOLDER / folder / file)


def test_every_operator_of_the_list_is_one_of_onnx() -> None:
    known = {schema.name.encode() for schema in onnx.defs.get_all_schemas()}
    assert known >= OPERATORS


def _schemas_of_taken_versions() -> list[Any]:
    """Of the operators of the list, as all operator sets that are taken have them."""
    schemas = [schema for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain]
    oldest: dict[str, int] = {}  # the version of each operator in the oldest of these sets
    for schema in schemas:
        if schema.since_version <= OPSETS.start:
            oldest[schema.name] = max(oldest.get(schema.name, 0), schema.since_version)
    return [
        schema
        for schema in schemas
        if schema.name.encode() in OPERATORS and schema.since_version >= oldest.get(schema.name, 0)
    ]


def test_every_input_that_must_be_whole_is_a_size_or_changes_no_shape() -> None:
    """The list of sizes is complete; only int32 and int64 can say how large something is."""
    harmless = {
        **{name: {1} for name in (b"Gather", b"GatherElements", b"GatherND")},  # its shape counts
        **{name: {1} for name in (b"ScatterElements", b"ScatterND")},  # as large as the data
        **{name: {4} for name in (b"GRU", b"LSTM", b"RNN")},  # lengths within the input's
        **{b"CumSum": {1}, b"QLinearConv": {8}, b"Trilu": {1}},  # a direction, a bias, a diagonal
    }
    seen: dict[bytes, set[int]] = {}
    for schema in _schemas_of_taken_versions():
        whole = {
            index
            for index, taken in enumerate(schema.inputs)
            if taken.types <= {"tensor(int32)", "tensor(int64)"}
        }
        seen[schema.name.encode()] = seen.get(schema.name.encode(), set()) | whole
    assert {name: whole for name, whole in seen.items() if whole} == harmless | {
        name: set(indexes) for name, indexes in SIZES.items()
    }


def test_no_model_is_loaded_unchecked(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr("edge.onnx.session.check_file", lambda path: seen.append(path.name))
    load_model(tiny.folder)
    assert seen == [FORWARD, TRAIN_STEP]


@pytest.mark.parametrize("kind", sorted(OPERATORS))
def test_an_operator_may_have_any_number_of_inputs(kind: bytes) -> None:
    """The check does not crash on too few; onnxruntime refuses those."""
    for count in range(4):
        made = model(node(kind.decode(), "s" * count), constants=[numbers("s", 1)])
        with suppress(ModelError):
            check(memoryview(made.SerializeToString()))
