"""The messages of an ONNX file that our exports use, with the field numbers of onnx.proto.

A field that is not in these tables is refused, by its number, or by a name where exporters do write
it. No message contains itself, so the nesting is at most eight levels deep.
"""

from typing import Final

from ternmesh.protobuf import FIXED32, FIXED64, VARINT, MessageSchema, many, one

METADATA: Final = "metadata"
MODEL: Final = MessageSchema(
    "the model",
    {
        1: one("ir_version", VARINT),
        2: one("producer_name"),
        3: one("producer_version"),
        4: one("domain"),
        5: one("model_version", VARINT),
        6: one("doc_string"),
        7: one("graph"),
        8: many("opset_import"),
    },
    {14: METADATA, 25: "functions of its own"},
)
OPSET: Final = MessageSchema("an operator set", {1: one("domain"), 2: one("version", VARINT)})
GRAPH: Final = MessageSchema(
    "the graph",
    {
        1: many("node"),
        2: one("name"),
        5: many("initializer"),
        10: one("doc_string"),
        11: many("input"),
        12: many("output"),
        13: many("value_info"),
    },
    {14: "quantization annotations", 15: "sparse initializers", 16: METADATA},
)
NODE: Final = MessageSchema(
    "a node",
    {
        1: many("input"),
        2: many("output"),
        3: one("name"),
        4: one("op_type"),
        5: many("attribute"),
        6: one("doc_string"),
        7: one("domain"),
        9: many("metadata_props"),  # of the exporter: not read
    },
    {8: "an overload of a function", 10: "a configuration for several devices"},
)
ATTRIBUTE: Final = MessageSchema(
    "an attribute",
    {
        1: one("name"),
        2: one("f", FIXED32),
        3: one("i", VARINT),
        4: one("s"),
        5: one("t"),
        7: many("floats", FIXED32),
        8: many("ints", VARINT),
        13: one("doc_string"),
        20: one("type", VARINT),
    },
    {6: "a graph inside the graph", 9: "a list of texts", 11: "graphs inside the graph"},
)
TENSOR: Final = MessageSchema(
    "a tensor",
    {
        1: many("dims", VARINT),
        2: one("data_type", VARINT),
        4: many("float_data", FIXED32),
        5: many("int32_data", VARINT),
        7: many("int64_data", VARINT),
        8: one("name"),
        9: one("raw_data"),
        10: many("double_data", FIXED64),
        11: many("uint64_data", VARINT),
        12: one("doc_string"),
        14: one("data_location", VARINT),
    },
    {3: "segments", 6: "text", 13: "data in another file", 16: METADATA},
)
VALUE: Final = MessageSchema(
    "a value", {1: one("name"), 2: one("type"), 3: one("doc_string"), 4: many("metadata_props")}
)
TYPE: Final = MessageSchema(
    "a type",
    {1: one("tensor_type"), 6: one("denotation")},
    {4: "a sequence", 5: "a map", 9: "an optional value"},
)
ATTRIBUTE_TYPES: Final = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints"}
ELEMENT_SIZES: Final = {  # bytes by TensorProto.DataType; no text, no complex numbers
    1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2,
}  # fmt: skip
TYPED_DATA: Final = {  # the data types of each field for numbers that are not raw
    "float_data": {1},
    "int32_data": {2, 3, 4, 5, 6, 9, 10, 16},
    "int64_data": {7},
    "double_data": {11},
    "uint64_data": {12, 13},
}
TYPED_SIZES: Final = {"float_data": 4, "double_data": 8}  # bytes; the others are varints
