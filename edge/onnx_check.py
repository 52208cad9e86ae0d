"""Whether an ONNX file is one that a board takes, before onnxruntime sees it.

A model is code: it decides what is computed, and how much memory that takes. So only operators on
the list below, in ONNX's own domain; no data outside the file, no functions, no graph in a graph;
weights as large as their shapes say; and no size that depends on data: what a model needs on one
batch it needs on all, so that one step in a child process tells (`edge.model_trial`).
"""

import math
import mmap
from pathlib import Path
from typing import Final

from edge.errors import ModelError, unreadable
from edge.onnx_reader import Graph, Integers, Model, Node, read_model, shown

DOMAINS: Final = (b"", b"ai.onnx")  # two names of one
IR_VERSIONS, OPSETS = range(4, 15), range(13, 29)
MADE_BYTES_MAX = 1 << 28  # what constants may be blown up to, at 8 bytes a number
PADDED_MAX = 1 << 16  # how many times larger padding may make a tensor

# The first four lines are what models.export has written so far; the others do no more than they
# do: elementwise, reductions, the usual layers. Left out on purpose: control flow (Loop, If, Scan),
# random numbers, text, sequences, sizes out of values (NonZero, Unique, Compress, OneHot, Range,
# Tile, Resize), and the newest kernels.
OPERATORS: Final = frozenset(
    b"""
    Abs Add Cast Concat Constant ConstantOfShape Conv Div Equal Erf Exp Expand GRU Gather
    GatherElements Gelu Gemm Greater LayerNormalization Less LogSoftmax MatMul MaxPool Mul Neg Not
    Pad ReduceMax ReduceMean ReduceSum Relu Reshape ScatterElements ScatterND Shape Sigmoid Slice
    Softmax Split Squeeze Sub Tanh Transpose Unsqueeze Where

    And Ceil Clip Cos Elu Floor GreaterOrEqual HardSigmoid HardSwish Identity IsNaN LeakyRelu
    LessOrEqual Log Max Mean Min Mish Mod Or PRelu Pow Reciprocal Round Selu Sign Sin Softplus
    Softsign Sqrt Sum Xor
    ArgMax ArgMin CumSum ReduceL1 ReduceL2 ReduceLogSumExp ReduceMin ReduceProd ReduceSumSquare
    AveragePool GlobalAveragePool GlobalMaxPool LSTM RNN
    BatchNormalization GroupNormalization InstanceNormalization
    Flatten GatherND Size Trilu
    ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul
    QuantizeLinear
    """.split()
)
# Which inputs say how large a result is: they must not be computed from data. So all shapes follow
# from the inputs' shapes alone, and what Shape and Size give counts as no data.
SIZES: Final[dict[bytes, tuple[int, ...]]] = {
    **dict.fromkeys((name for name in OPERATORS if name.startswith(b"Reduce")), (1,)),
    **dict.fromkeys((b"Expand", b"Reshape", b"Split", b"Squeeze", b"Unsqueeze"), (1,)),
    b"ConstantOfShape": (0,),
    b"Pad": (1, 3),
    b"Slice": (1, 2, 3, 4),
}
CAST_TO: Final = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16}  # numbers: text has no bound


def check_file(path: Path) -> None:
    """ModelError, one sentence that names the file and the reason, unless a board may load it.

    The file is mapped: weights are counted and never read.
    """
    try:
        with path.open("rb") as file:
            # It closes itself with its last view: an error on its way up still holds some.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        check(memoryview(mapped))
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:  # an empty file cannot be mapped
        raise ModelError(f"{path} cannot be read: {error}") from error
    except ModelError as error:
        raise ModelError(f"{path} is refused: {error}") from error


def check(data: memoryview) -> None:
    """ModelError unless `data` is an ONNX file that a board may load."""
    model = read_model(data)
    _check_versions(model)
    _check_flow(model.graph)


def _check_versions(model: Model) -> None:
    if model.ir_version not in IR_VERSIONS:
        raise ModelError(f"its format is version {model.ir_version}, not one of 4 to 14")
    if len(model.opsets) != 1 or model.opsets[0][0] not in DOMAINS:
        domains = ", ".join(shown(domain) for domain, _ in model.opsets) or "none"
        raise ModelError(f"it needs the operator sets {domains}, and a board has ONNX's own")
    version = model.opsets[0][1]
    if version not in OPSETS:
        raise ModelError(f"its operator set is version {version}, not one of 13 to 28")


class _Flow:
    """What is known of each value as the nodes are followed in their order."""

    def __init__(self) -> None:
        self.of_data: set[bytes] = set()  # depends on data
        self.fixed: dict[bytes, Integers | None] = {}  # does not; its numbers, where known
        self.made_bytes = 0

    def define(self, name: bytes, integers: Integers | None, *, of_data: bool) -> None:
        if name in self.of_data or name in self.fixed:
            raise ModelError(f"the value {shown(name)} is made twice")
        if of_data:
            self.of_data.add(name)
        else:
            self.fixed[name] = integers


def _check_flow(graph: Graph) -> None:
    flow = _Flow()
    for name in graph.inputs:
        flow.define(name, None, of_data=True)
    for tensor in graph.initializers:
        if tensor.name not in flow.of_data:  # an input with a default, which callers may replace
            flow.define(tensor.name, tensor.integers, of_data=False)
    for node in graph.nodes:
        _check_node(node, flow)
    for name in graph.outputs:
        if name not in flow.of_data and name not in flow.fixed:
            raise ModelError(f"nothing makes its output {shown(name)}")


def _check_node(node: Node, flow: _Flow) -> None:
    if node.domain not in DOMAINS:
        raise ModelError(f"it has an operator of the domain {shown(node.domain)}")
    if node.operator not in OPERATORS:
        raise ModelError(
            f"the operator {shown(node.operator)} is not on the list of those that a board runs"
        )
    for name in filter(None, node.inputs):
        if name not in flow.of_data and name not in flow.fixed:
            raise ModelError(f"{shown(name)} is used before a node makes it")
    if not flow.of_data.isdisjoint(_sizes(node)):
        raise ModelError(f"the size of what {shown(node.operator)} makes depends on data")
    _check_growth(node, flow)
    is_size = node.operator in (b"Shape", b"Size")
    of_data = not is_size and any(name in flow.of_data for name in node.inputs)
    integers = _constant(node)
    for name in filter(None, node.outputs):
        flow.define(name, integers, of_data=of_data)


def _sizes(node: Node) -> list[bytes]:
    """The inputs that say how large its results are, the one that counts first."""
    return [node.inputs[at] for at in SIZES.get(node.operator, ()) if at < len(node.inputs)]


def _check_growth(node: Node, flow: _Flow) -> None:
    """Constants must not blow up: a hundred bytes can ask for gigabytes."""
    size = next(map(flow.fixed.get, _sizes(node)), None)
    match node.operator:
        case b"ConstantOfShape" if size is None:
            raise ModelError("the size of what 'ConstantOfShape' makes is no constant")
        case b"ConstantOfShape" | b"Expand":
            flow.made_bytes += 8 * math.prod(map(abs, size or ()))
            if flow.made_bytes > MADE_BYTES_MAX:
                raise ModelError(f"its constants blow up to more than {MADE_BYTES_MAX} bytes")
        case b"Pad":
            _check_padding(size)
        case b"Cast" if node.attributes.get(b"to") not in {(kind,) for kind in CAST_TO}:
            raise ModelError("'Cast' makes a data type that a board does not take")
    _check_padding(node.attributes.get(b"pads"))


def _check_padding(pads: Integers | None) -> None:
    if math.prod(1 + abs(pad) for pad in pads or ()) > PADDED_MAX:
        raise ModelError(f"padding makes a tensor more than {PADDED_MAX} times larger")


def _constant(node: Node) -> Integers | None:
    """The numbers of a Constant where they are whole and few."""
    if node.operator != b"Constant":
        return None
    return next((v for v in node.attributes.values() if v is not None), None)
