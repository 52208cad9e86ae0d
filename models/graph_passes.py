"""Passes over exported graphs; each keeps what the graph computes.

`make_overridable` is for forward graphs. `optimise` is for train-step graphs, where a frozen weight W is
used as W^T going forward and as W going back: runtimes fold each Transpose into a copy of the weights.
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common
from numpy.typing import NDArray


def make_overridable(model: ir.Model, defaults: Mapping[str, NDArray[np.float32]]) -> None:
    """Give the named inputs default values, so that callers may leave them out."""
    for value in model.graph.inputs:
        if value.name in defaults:
            value.const_value = ir.tensor(defaults[value.name], name=value.name)
            model.graph.register_initializer(value)


def optimise(model: ir.Model) -> None:
    """All passes for a train-step graph, in their order."""
    cancel_transposes(model)
    transpose_in_gemm(model)
    common.RemoveUnusedNodesPass()(model)


def cancel_transposes(model: ir.Model) -> None:
    """Transpose(Transpose(x)) becomes x where the two permutations undo each other."""
    for node in list(model.graph):
        inner = _producer(node, "Transpose", 0) if node.op_type == "Transpose" else None
        if inner is None:
            continue
        outer_axes, inner_axes = _permutation(node), _permutation(inner)
        if [inner_axes[axis] for axis in outer_axes] == sorted(outer_axes):
            ir.convenience.replace_all_uses_with(node.outputs[0], _input(inner, 0))


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


def _producer(node: ir.Node, op_type: str, index: int) -> ir.Node | None:
    value = node.inputs[index]
    producer = value.producer() if value is not None else None
    return producer if producer is not None and producer.op_type == op_type else None


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _permutation(node: ir.Node) -> list[int]:
    return list(node.attributes.get_ints("perm"))
