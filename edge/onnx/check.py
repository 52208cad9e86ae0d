"""Checks an ONNX file before onnxruntime loads it.

A model is code: it decides what is computed and how much memory is needed. A board accepts only the
operators of a list, in ONNX's own domain; no data outside the file, no functions and no
graph inside a graph; and weights that have the size of their shapes. What it takes of memory and
time no look at a file can tell: a release has a trial for that (`edge.releases.trial`).
"""

import mmap
from pathlib import Path
from typing import Final

from edge.errors import ModelError
from edge.files import unreadable
from edge.onnx.reader import Graph, Model, read_model, shown
from ternmesh.model_package import DOMAINS, OPERATORS
from ternmesh_store.files import open_regular

IR_VERSIONS = range(4, 15)
OPSETS = range(13, 29)
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
    _check_operators(model.graph)
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
        if node.operator in SAME_NUMBERS and first in origins and node.outputs:
            origins[node.outputs[0]] = origins[first]
        shape = tables.get(first, ())
        is_axis = -len(shape) <= node.axis < len(shape)
        if node.operator == b"Gather" and second in origins and is_axis:
            name, rows = origins[second].decode(), shape[node.axis]
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


def _check_operators(graph: Graph) -> None:
    for node in graph.nodes:
        if node.domain not in DOMAINS:
            raise ModelError(f"it has an operator of the domain {shown(node.domain)}")
        if node.operator not in OPERATORS:
            raise ModelError(
                f"the operator {shown(node.operator)} is not on the list of those that a board runs"
            )
