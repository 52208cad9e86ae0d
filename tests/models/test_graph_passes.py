from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models import graph_passes

W = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
BIAS = np.random.default_rng(1).standard_normal(48).astype(np.float32)
X = np.random.default_rng(2).standard_normal((2, 3, 64)).astype(np.float32)


def node(op: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def graph(*nodes: onnx.NodeProto, output: str = "y", **more: NDArray[np.int64]) -> ir.Model:
    """A model from x [2, 3, 64], the frozen w [64, 48] and bias [48] to `output`."""
    constants = {
        "w": W,
        "copy": W,
        "bias": BIAS,
        "matrix": np.array([6, 64]),
        "again": np.array([2, 3, 64]),
        "narrow": np.array([2, 3, 48]),
        "copied": np.array([0, 4, 16]),
        **more,
    }
    content = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(content, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def operators(model: ir.Model) -> Counter[str]:
    return Counter(step.op_type for step in model.graph)


def session(model: ir.Model, saved: Path | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if saved is not None:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(saved)
    data = ir.to_proto(model).SerializeToString()
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def run(model: ir.Model) -> NDArray[np.float32]:
    return session(model).run(None, {"x": X})[0]


def there_and_back() -> ir.Model:
    """A frozen weight as a train step uses it: w going forward, its transpose going back."""
    return graph(
        node("Reshape", "x matrix", "x2"),
        node("Gemm", "x2 w bias", "h"),
        node("Reshape", "h narrow", "h3"),
        node("Transpose", "w", "wt", perm=[1, 0]),
        node("MatMul", "h3 wt", "y"),
    )


CASES: list[tuple[Callable[[ir.Model], None], ir.Model, dict[str, int]]] = [
    (
        graph_passes.cancel_transposes,
        graph(
            node("Transpose", "w", "wt", perm=[1, 0]),
            node("Transpose", "wt", "w2", perm=[1, 0]),
            node("MatMul", "x w2", "y"),
        ),
        {"MatMul": 1},
    ),
    (
        graph_passes.cancel_transposes,
        graph(
            node("Transpose", "x", "a", perm=[1, 2, 0]), node("Transpose", "a", "y", perm=[1, 2, 0])
        ),
        {"Transpose": 2},  # a third of a turn twice is not a full one
    ),
    (graph_passes.gemm_with_frozen_transpose, there_and_back(), {"Gemm": 2, "MatMul": 0}),
    (
        graph_passes.transpose_in_gemm,
        graph(
            node("Reshape", "x matrix", "x2"),
            node("Transpose", "w", "wt", perm=[1, 0]),
            node("Gemm", "x2 wt bias", "y", transB=1),
        ),
        {"Gemm": 1, "Transpose": 0},
    ),
    (
        graph_passes.merge_reshapes,
        graph(
            node("Reshape", "x matrix", "a"),
            node("Reshape", "a again", "b"),
            node("Relu", "b", "y"),
        ),
        {"Reshape": 0},
    ),
    (
        graph_passes.merge_reshapes,
        graph(node("Reshape", "x matrix", "a"), node("Reshape", "a copied", "y")),
        {"Reshape": 2},  # the 0 copies the 6 of `a`, and x has none
    ),
    (graph_passes.optimise, there_and_back(), {"Transpose": 0, "Reshape": 2}),
]


@pytest.mark.parametrize(("change", "model", "expected"), CASES)
def test_a_pass_changes_the_nodes_and_not_the_result(
    change: Callable[[ir.Model], None], model: ir.Model, expected: dict[str, int]
) -> None:
    before = run(model)
    change(model)
    ir.passes.common.RemoveUnusedNodesPass()(model)
    found = operators(model)
    assert {op: found[op] for op in expected} == expected
    np.testing.assert_allclose(run(model), before, rtol=1e-4, atol=1e-4)


def test_a_runtime_keeps_one_copy_of_a_frozen_weight(tmp_path: Path) -> None:
    """Without the passes onnxruntime folds the Transpose into a second copy."""
    sizes = []
    for change in (lambda model: None, graph_passes.optimise):
        model = there_and_back()
        change(model)
        session(model, tmp_path / "saved.onnx")
        saved = onnx.load(tmp_path / "saved.onnx")
        weights = [tensor for tensor in saved.graph.initializer if len(tensor.dims) == 2]
        sizes.append(sum(int(np.prod(tensor.dims)) for tensor in weights))
    assert sizes == [2 * W.size, W.size]


def test_names_follow_from_the_graph_alone() -> None:
    """Whatever an exporter has called what it made up, the bytes are the same."""
    contents, computed = set(), []
    for made_up in ("val_2604", "val_2605"):
        model = graph(
            node("MatMul", "x w", made_up),
            node("Add", f"{made_up} bias", f"{made_up}_more"),
            node("Relu", f"{made_up}_more", "y"),
        )
        model.graph.initializers["bias"].name = f"{made_up}/bias"
        model.graph.initializers["w"].name = "module.w"
        graph_passes.name_by_place(model)
        assert "module.w" in model.graph.initializers
        assert made_up not in str(ir.to_proto(model))
        contents.add(ir.to_proto(model).SerializeToString(deterministic=True))
        computed.append(run(model))
    assert len(contents) == 1
    np.testing.assert_allclose(computed[0], np.maximum(X @ W + BIAS, 0), rtol=1e-4, atol=1e-4)


def test_simplify_drops_what_is_unused_or_changes_nothing() -> None:
    model = graph(
        node("Transpose", "x", "unused"),
        node("Expand", "x again", "same"),
        node("Unsqueeze", "same axis", "behind"),
        node("Transpose", "behind", "front", perm=[3, 0, 1, 2]),
        node("Squeeze", "front first", "back"),
        node("Tanh", "back", "y"),
        axis=np.array([3]),
        first=np.array([0]),
    )
    expected = session(model).run(None, {"x": X})[0]
    graph_passes.simplify(model)
    graph_passes.optimise(model)
    assert set(operators(model)) <= {"Tanh", "Constant", "Reshape"}
    np.testing.assert_array_equal(session(model).run(None, {"x": X})[0], expected)


def test_simplify_keeps_what_moves_or_widens() -> None:
    model = graph(
        node("Transpose", "x", "turned", perm=[1, 0, 2]),
        node("Expand", "turned wide", "y"),
        wide=np.array([5, 3, 2, 64]),
    )
    graph_passes.simplify(model)
    assert operators(model) == {"Transpose": 1, "Expand": 1}
