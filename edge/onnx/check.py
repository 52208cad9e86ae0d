"""Checks an ONNX file before onnxruntime loads it.

A model is code: it decides what is computed and how much memory is needed. A board accepts only the
operators of a list, in ONNX's own domain; no data outside the file, no functions and no
graph inside a graph; weights that have the size of their shapes; and no size that depends on data.
So a model needs the same memory for each batch, and one trial shows it (`edge.releases.trial`).
"""

import math
import mmap
from pathlib import Path
from typing import Final

from edge.errors import ModelError
from edge.files import unreadable
from edge.onnx.format import ELEMENT_SIZES
from edge.onnx.reader import Graph, GraphNode, Integers, Model, read_model, shown
from ternmesh.model_package import DOMAINS, OPERATORS
from ternmesh_store.files import open_regular

IR_VERSIONS = range(4, 15)
OPSETS = range(13, 29)
EXPANDED_BYTES_MAX = 1 << 28  # of expanded constants, at 8 bytes a number
GROWTH_MAX = 1 << 16  # the factor by which Pad and Concat may enlarge a tensor, in a chain too

# The inputs that determine the size of a result: they must not depend on data. Then all shapes
# depend only on the inputs' shapes, and the results of Shape and Size do not count as data.
SIZES: Final[dict[bytes, tuple[int, ...]]] = {
    **dict.fromkeys((name for name in OPERATORS if name.startswith(b"Reduce")), (1,)),
    **dict.fromkeys((b"Expand", b"Reshape", b"Split", b"Squeeze", b"Unsqueeze"), (1,)),
    b"ConstantOfShape": (0,),
    b"Pad": (1, 3),
    b"Slice": (1, 2, 3, 4),
}
# The operators whose results have sizes of their own: there, a chain that enlarges a tensor ends.
PRODUCTS: Final = frozenset(
    b"""
    Conv ConvInteger GRU Gemm LSTM MatMul MatMulInteger QLinearConv QLinearMatMul RNN
    """.split()
)
# The types that a Cast may have as its aim: numbers, as the size of text has no bound.
CAST_TO: Final = {(kind,) for kind in ELEMENT_SIZES}
# The operators whose result has the numbers of their first input.
SAME_NUMBERS: Final = frozenset(
    b"Cast Expand Flatten Identity Reshape Slice Squeeze Transpose Unsqueeze".split()
)


def check_file(path: Path) -> dict[str, int]:
    """ModelError, which names the file and the reason, unless a board may load the file.

    The file is mapped into memory; weights are counted, not read. Returns `table_sizes`.
    """
    try:
        with open_regular(path) as file:
            # Not closed here: views of it may live on in an error. It closes with the last view.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return check(memoryview(mapped))
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:  # an empty file cannot be mapped
        raise ModelError(f"{path} cannot be read: {error}") from error
    except ModelError as error:
        raise ModelError(f"{path} is refused: {error}") from error


def check(data: memoryview) -> dict[str, int]:
    """ModelError unless `data` is an ONNX file that a board may load. Returns `table_sizes`."""
    model = read_model(data)
    _check_versions(model)
    _check_flow(model.graph)
    return table_sizes(model.graph)


def table_sizes(graph: Graph) -> dict[str, int]:
    """The rows of the smallest table that a Gather looks up by an input, by the input's name.

    Such an input must hold whole numbers from 0 to one less: onnxruntime stops at others, and
    reads a negative one from the table's end.
    """
    tables = {tensor.name: tensor.shape for tensor in graph.initializers}
    origins = {name: name for name in graph.inputs if name not in tables}
    sizes: dict[str, int] = {}
    for node in graph.nodes:
        first, second = (*node.inputs, b"", b"")[:2]
        if node.operator in SAME_NUMBERS and first in origins:
            origins[node.outputs[0]] = origins[first]
        if node.operator == b"Gather" and second in origins and tables.get(first):
            axis = (node.attributes.get(b"axis") or (0,))[0]
            name, rows = origins[second].decode(), tables[first][axis]
            sizes[name] = min(rows, sizes.get(name, rows))
    return sizes


def _check_versions(model: Model) -> None:
    if model.ir_version not in IR_VERSIONS:
        raise ModelError(f"its format is version {model.ir_version}, not one of 4 to 14")
    # Exporters also name domains that no node uses; the nodes are checked one by one.
    versions = [version for domain, version in model.opsets if domain in DOMAINS]
    if len(versions) != 1:
        domains = ", ".join(shown(domain) for domain, _ in model.opsets) or "none"
        raise ModelError(f"it needs the operator sets {domains}, and a board has ONNX's own")
    if (version := versions[0]) not in OPSETS:
        raise ModelError(f"its operator set is version {version}, not one of 13 to 28")


class _Flow:
    """The values of the graph, as the nodes are visited in their order."""

    def __init__(self) -> None:
        self.of_data: set[bytes] = set()  # values that depend on data
        self.fixed: dict[bytes, Integers | None] = {}  # the others, with their numbers if known
        self.growth: dict[bytes, int] = {}  # how many times Pad and Concat have enlarged a value
        self.expanded_bytes = 0

    def define(self, name: bytes, integers: Integers | None, *, of_data: bool) -> None:
        if name in self.of_data or name in self.fixed:
            raise ModelError(f"the value {shown(name)} is defined twice")
        if of_data:
            self.of_data.add(name)
        else:
            self.fixed[name] = integers


def _check_flow(graph: Graph) -> None:
    flow = _Flow()
    for name in graph.inputs:
        flow.define(name, None, of_data=True)
    for tensor in graph.initializers:
        if tensor.name not in flow.of_data:  # else the default value of an input
            flow.define(tensor.name, tensor.integers, of_data=False)
    for node in graph.nodes:
        _check_node(node, flow)
    for name in graph.outputs:
        if name not in flow.of_data and name not in flow.fixed:
            raise ModelError(f"no node computes its output {shown(name)}")


def _check_node(node: GraphNode, flow: _Flow) -> None:
    if node.domain not in DOMAINS:
        raise ModelError(f"it has an operator of the domain {shown(node.domain)}")
    if node.operator not in OPERATORS:
        raise ModelError(
            f"the operator {shown(node.operator)} is not on the list of those that a board runs"
        )
    for name in filter(None, node.inputs):
        if name not in flow.of_data and name not in flow.fixed:
            raise ModelError(f"{shown(name)} is used before a node computes it")
    if not flow.of_data.isdisjoint(_sizes(node)):
        raise ModelError(f"the size of the result of {shown(node.operator)} depends on data")
    growth = _check_growth(node, flow)
    is_size = node.operator in (b"Shape", b"Size")
    of_data = not is_size and any(name in flow.of_data for name in node.inputs)
    integers = _constant(node)
    for name in filter(None, node.outputs):
        flow.define(name, integers, of_data=of_data)
        flow.growth[name] = growth


def _sizes(node: GraphNode) -> list[bytes]:
    """The inputs that determine the size of the results; the size itself comes first."""
    return [node.inputs[at] for at in SIZES.get(node.operator, ()) if at < len(node.inputs)]


def _check_growth(node: GraphNode, flow: _Flow) -> int:
    """The growth of the results: a file of a few hundred bytes can ask for gigabytes."""
    size = next(map(flow.fixed.get, _sizes(node)), None)
    grown = [flow.growth.get(name, 1) for name in node.inputs] or [1]
    growth = 1 if node.operator in PRODUCTS else max(grown)
    match node.operator:
        case b"ConstantOfShape" if size is None:
            raise ModelError("the size of the result of 'ConstantOfShape' is not a constant")
        case b"ConstantOfShape" | b"Expand":
            flow.expanded_bytes += 8 * math.prod(map(abs, size or ()))
            if flow.expanded_bytes > EXPANDED_BYTES_MAX:
                raise ModelError(f"its constants expand to more than {EXPANDED_BYTES_MAX} bytes")
        case b"Concat":
            growth = sum(grown)
        case b"Pad":
            growth *= _padding(size)
        case b"Cast" if node.attributes.get(b"to") not in CAST_TO:
            raise ModelError("'Cast' has a data type that a board does not take")
    if max(growth, _padding(node.attributes.get(b"pads"))) > GROWTH_MAX:
        raise ModelError(f"padding or joining enlarges a tensor more than {GROWTH_MAX} times")
    return growth


def _padding(pads: Integers | None) -> int:
    return math.prod(1 + abs(pad) for pad in pads or ())


def _constant(node: GraphNode) -> Integers | None:
    """The numbers of a Constant, if they are few integers."""
    if node.operator != b"Constant":
        return None
    return next((v for v in node.attributes.values() if v is not None), None)
