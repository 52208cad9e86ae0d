"""Passes over exported graphs. A pass never changes the result of a graph.

`make_overridable` is for forward graphs, `name_by_place` for all. `optimise` is for train-step
graphs. They use a frozen weight as W forward and as W^T backward, and a runtime would fold each
Transpose into a second copy of the weight.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common
from numpy.typing import NDArray
from onnx_ir.tape import Tape

SHARED_SIZE_MAX = 1 << 20  # numbers; larger frozen weights are never equal


def make_overridable(model: ir.Model, defaults: Mapping[str, NDArray[np.float32]]) -> None:
    """Give the named inputs default values, so that callers may leave them out."""
    for value in model.graph.inputs:
        if value.name is not None and value.name in defaults:
            value.const_value = ir.tensor(defaults[value.name], name=value.name)
            model.graph.register_initializer(value)


def name_by_place(model: ir.Model) -> None:
    """Name nodes and values by their position; names that begin with `module.` stay.

    Names that an exporter invents differ from run to run, and so would the hash of equal models.
    No input's name has a colon, so new names cannot collide with inputs.
    """
    initializers = model.graph.initializers
    inputs = {value.name for value in model.graph.inputs}
    taken = (value for node in model.graph for value in node.inputs)
    found = dict.fromkeys([*taken, *initializers.values()])
    constants = [value for value in found if value is not None and value.is_initializer()]
    names = [value.name or "" for value in constants]
    for name in names:
        del initializers[name]
    for place, (value, name) in enumerate(zip(constants, names, strict=True)):
        value.name = name if name in inputs or name.startswith("module.") else f":{place}"
        initializers[value.name] = value
    for place, node in enumerate(model.graph):
        node.name = f"{place}"
        for index, output in enumerate(node.outputs):
            if not output.is_graph_output():
                output.name = f"{place}:{index}"


def optimise(model: ir.Model) -> None:
    """Run all passes for a train-step graph, in their order."""
    cancel_transposes(model)
    gemm_with_frozen_transpose(model)
    transpose_in_gemm(model)
    merge_reshapes(model)
    common.RemoveUnusedNodesPass()(model)
    # Each gradient that is a sum beginning at zeros has its own block of zeros.
    common.DeduplicateInitializersPass(size_limit=SHARED_SIZE_MAX)(model)


def simplify(model: ir.Model) -> None:
    """Take out what a gradient made node by node has too much, for graphs with known shapes."""
    common.RemoveUnusedNodesPass()(model)  # the gradients of frozen weights
    drop_expands(model)
    views_to_reshapes(model)
    merge_reshapes(model)


def drop_expands(model: ir.Model) -> None:
    """Expand(x) becomes x where the shape is that of x."""
    for node in list(model.graph):
        if node.op_type == "Expand" and node.outputs[0].shape is not None:
            x, y = _input(node, 0), node.outputs[0]
            if x.shape == y.shape and not y.is_graph_output():
                ir.convenience.replace_all_uses_with(y, x)


def views_to_reshapes(model: ir.Model) -> None:
    """A node that keeps the order of its numbers becomes a Reshape, which copies nothing."""
    for node in list(model.graph):
        x, y = (node.inputs or (None,))[0], node.outputs[0]
        if x is None or x.shape is None or y.shape is None or not y.shape.is_static():
            continue
        is_view = node.op_type in ("Unsqueeze", "Squeeze", "Identity", "Flatten")
        if node.op_type == "Transpose":
            sizes = x.shape.numpy()
            moved = [axis for axis in _permutation(node) if sizes[axis] > 1]
            is_view = moved == sorted(moved)
        if is_view:
            tape = Tape()
            _replace(model, node, tape, _reshape(tape, x, y.shape.numpy()))


def cancel_transposes(model: ir.Model) -> None:
    """Transpose(Transpose(x)) becomes x where the two permutations cancel."""
    for node in list(model.graph):
        inner = _producer(node, "Transpose", 0) if node.op_type == "Transpose" else None
        if inner is None:
            continue
        outer_axes, inner_axes = _permutation(node), _permutation(inner)
        if [inner_axes[axis] for axis in outer_axes] == sorted(outer_axes):
            ir.convenience.replace_all_uses_with(node.outputs[0], _input(inner, 0))


def gemm_with_frozen_transpose(model: ir.Model) -> None:
    """MatMul(x, Transpose(w)) becomes Gemm, with x reshaped to a matrix, for a frozen matrix w."""
    for node in list(model.graph):
        transpose = _producer(node, "Transpose", 1) if node.op_type == "MatMul" else None
        w = None if transpose is None else _input(transpose, 0)
        if w is None or not w.is_initializer() or w.shape is None or len(w.shape) != 2:
            continue
        x, y = _input(node, 0), node.outputs[0]
        if x.shape is None or y.shape is None or not x.shape.is_static():
            continue
        sizes, result_sizes = x.shape.numpy(), y.shape.numpy()
        rows = math.prod(sizes[:-1])
        tape = Tape()
        matrix = _reshape(tape, x, (rows, sizes[-1]))
        product = tape.op("Gemm", [matrix, _input(node, 1)])
        product.shape, product.type = ir.Shape((rows, result_sizes[-1])), y.type
        _replace(model, node, tape, _reshape(tape, product, result_sizes))


def transpose_in_gemm(model: ir.Model) -> None:
    """Gemm(x, Transpose(w)) becomes Gemm(x, w, transB=1), so that w needs no second copy."""
    for node in list(model.graph):
        if node.op_type != "Gemm":
            continue
        for index, flag in ((0, "transA"), (1, "transB")):
            transpose = _producer(node, "Transpose", index)
            if transpose is not None:
                flipped = 1 - node.attributes.get_int(flag, 0)
                node.attributes[flag] = ir.AttrInt64(flag, flipped)
                node.replace_input_with(index, _input(transpose, 0))


def merge_reshapes(model: ir.Model) -> None:
    """Reshape(Reshape(x)) becomes one Reshape, or x where the shape is that of x."""
    for node in list(model.graph):
        if node.op_type != "Reshape":
            continue
        shape = node.outputs[0].shape
        while (inner := _producer(node, "Reshape", 0)) is not None and _names_all_sizes(node):
            node.replace_input_with(0, _input(inner, 0))
        same = shape is not None and shape.is_static() and shape == _input(node, 0).shape
        if same and not node.outputs[0].is_graph_output():
            ir.convenience.replace_all_uses_with(node.outputs[0], _input(node, 0))


def _names_all_sizes(reshape: ir.Node) -> bool:
    """Whether the target shape has no 0 (a 0 copies the size of the input)."""
    target = ir.convenience.get_const_tensor(_input(reshape, 1))
    return target is not None and bool((target.numpy() != 0).all())


def _producer(node: ir.Node, op_type: str, index: int) -> ir.Node | None:
    value = node.inputs[index]
    producer = value.producer() if value is not None else None
    return producer if producer is not None and producer.op_type == op_type else None


def _reshape(tape: Tape, x: ir.Value, shape: Sequence[int]) -> ir.Value:
    sizes = tape.op("Constant", [], {"value": ir.tensor(np.array(shape, np.int64))})
    reshaped = tape.op("Reshape", [x, sizes])
    reshaped.shape, reshaped.type = ir.Shape(shape), x.type
    return reshaped


def _replace(model: ir.Model, node: ir.Node, tape: Tape, result: ir.Value) -> None:
    """Put the nodes of `tape` in the place of `node`; `result` replaces its output."""
    old = node.outputs[0]
    result.shape, result.type = old.shape, old.type
    nodes = list(tape.nodes)
    ir.convenience.replace_nodes_and_values(model.graph, node, [node], nodes, [old], [result])


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _permutation(node: ir.Node) -> list[int]:
    return list(node.attributes.get_ints("perm"))
