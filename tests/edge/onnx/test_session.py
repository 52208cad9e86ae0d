import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from edge.errors import BoardFault, ModelError
from edge.onnx.session import (
    Inference,
    LoadedModel,
    TrainStep,
    adapter_version,
    choose_providers,
    load_model,
    write_adapter,
)
from models.zoo import package_path
from ternmesh.extras import how_to_install
from ternmesh.model_package import ADAPTER, FORWARD

CACHE = "XDG_CACHE_HOME"  # where it is set, the device id would be there


def by_hand(tiny: LoadedModel, x: np.ndarray, vector: np.ndarray) -> np.ndarray:
    tensors = tiny.package.split(vector)
    slope = np.linspace(-0.5, 0.5, 18, dtype=np.float32).reshape(6, 3)
    return x @ slope + x @ tensors["A"] @ tensors["B"]


def random_vector(tiny: LoadedModel, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(tiny.initial.size).astype(np.float32)


@pytest.mark.parametrize(
    "module", ["edge.onnx.session", pytest.param("models.export", marks=pytest.mark.nightly)]
)
def test_onnxruntime_neither_keeps_a_device_id_nor_reports(module: str, tmp_path: Path) -> None:
    if module == "models.export":
        pytest.importorskip("onnx_ir", reason="onnx_ir is not installed: nothing to export with")
    home = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}
    home = {name: v for name, v in home.items() if name not in ("ORT_DISABLE_TELEMETRY", CACHE)}
    subprocess.run([sys.executable, "-c", f"import {module}"], env=home, check=True)
    assert not list(tmp_path.rglob("*onnxruntime*"))


def test_adapters_are_swapped_without_a_new_session(tiny: LoadedModel, tmp_path: Path) -> None:
    inference = Inference(tiny.folder, tiny.package)
    x = np.random.default_rng(3).standard_normal((4, 6)).astype(np.float32)

    def predicts(vector: np.ndarray) -> None:
        expected = by_hand(tiny, x, vector)
        np.testing.assert_allclose(inference.predict({"x": x})["y"], expected, atol=1e-5)

    predicts(np.zeros_like(tiny.initial))
    path = tmp_path / "current.onnx_adapter"
    for version in (1, 2, 3):
        vector = random_vector(tiny, version)
        write_adapter(path, tiny.package, vector, version)
        inference.use_adapter(path)
        predicts(vector)
        assert adapter_version(path) == version
    assert path.stat().st_mode & 0o777 == 0o600, "whatever the umask is"
    assert list(tmp_path.iterdir()) == [path]
    write_adapter(path, tiny.package, random_vector(tiny, 9), 9)
    predicts(vector)
    path.write_bytes(path.read_bytes()[:-40])
    for bad in (path, tmp_path / "missing"):
        with pytest.raises(ModelError, match=bad.name):
            inference.use_adapter(bad)
    inference.release()
    predicts(vector)


def test_an_adapter_that_cannot_be_written_is_one_sentence(tiny, tmp_path) -> None:
    with pytest.raises(Exception, match="18 numbers"):
        write_adapter(tmp_path / "a", tiny.package, np.zeros(17, np.float32), 1)
    for name, reason in (("current.new", ""), ("current", ": Is a directory$")):
        (tmp_path / name).mkdir()
        with pytest.raises(ModelError, match=f"cannot write .*current{reason}"):
            write_adapter(tmp_path / "current", tiny.package, tiny.initial, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))  # as a full disk
    try:
        with pytest.raises(ModelError, match=r"a: is the disk full\? Make room and restart$"):
            write_adapter(tmp_path / "a", tiny.package, tiny.initial, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_the_train_step_gives_loss_and_gradient(tiny: LoadedModel, tiny_data) -> None:
    step = TrainStep(tiny.folder, tiny.package)
    batch = {name: array[:8] for name, array in tiny_data.items()}
    vector = random_vector(tiny, 5)

    def loss_at(at: np.ndarray) -> float:
        return float(np.mean((by_hand(tiny, batch["x"], at) - batch["t"]) ** 2))

    loss, gradient = step.run(vector, batch)
    assert loss == pytest.approx(loss_at(vector), rel=1e-5)
    direction = random_vector(tiny, 6).astype(np.float64)
    h = 1e-3
    slope = (loss_at(vector + h * direction) - loss_at(vector - h * direction)) / (2 * h)
    assert gradient @ direction == pytest.approx(slope, rel=1e-3)
    step.release()
    again, _ = step.run(vector, batch)
    assert again == loss


def test_inputs_that_do_not_fit_are_one_sentence(tiny: LoadedModel) -> None:
    step = TrainStep(tiny.folder, tiny.package)
    with pytest.raises(ModelError, match=r"train_step\.onnx"):
        step.run(tiny.initial, {"x": np.zeros((8, 6), np.float32)})
    with pytest.raises(ModelError, match=r"forward\.onnx"):
        Inference(tiny.folder, tiny.package).predict({"x": np.zeros((1, 5), np.float32)})


def test_an_error_of_onnxruntime_is_raised_and_not_printed(capfd) -> None:
    loaded = load_model(package_path("keyword"))
    batch = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in loaded.package.batch_inputs}
    batch["target"][:] = 99
    with pytest.raises(ModelError, match="idx=99"):
        TrainStep(loaded.folder, loaded.package).run(loaded.initial, batch)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("Status Message: std::bad_alloc")])
def test_too_little_memory_is_the_boards_fault(tiny: LoadedModel, monkeypatch, error) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("onnxruntime.InferenceSession", fail)
    with pytest.raises(BoardFault, match=r"train_step\.onnx needs more memory than is free"):
        TrainStep(tiny.folder, tiny.package).run(tiny.initial, {})


def describe(folder: Path, **changes: object) -> None:
    content = json.loads((folder / "model.json").read_bytes())
    (folder / "model.json").write_text(json.dumps(content | changes))


def change_forward(folder: Path) -> None:
    content = bytearray((folder / FORWARD).read_bytes())
    content[40] ^= 1
    (folder / FORWARD).write_bytes(content)


def with_adapter(content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / ADAPTER).write_bytes(content)
        files = json.loads((folder / "model.json").read_bytes())["files"]
        describe(folder, files=files | {ADAPTER: hashlib.sha256(content).hexdigest()})

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (change_forward, r"forward\.onnx is not what model\.json describes"),
        (lambda folder: (folder / FORWARD).unlink(), f"{FORWARD} cannot be read"),
        (lambda folder: (folder / "model.json").unlink(), "model.json cannot be read"),
        (with_adapter(b"\xff\xff\xff\xff" * 18), "18 finite numbers"),
        (with_adapter(bytes(4 * 17)), "18 finite numbers"),
        (with_adapter(bytes(4 * 18 - 1)), "18 finite numbers"),
        (
            lambda folder: describe(
                folder, inputs=[{"name": "x", "dtype": "string", "shape": [-1, 6]}]
            ),
            "tiny takes string",
        ),
    ],
)
def test_a_model_that_is_not_whole_is_refused(tiny_copy, change, reason) -> None:
    change(tiny_copy)
    with pytest.raises(ModelError, match=reason):
        load_model(tiny_copy)


def test_without_onnxruntime_one_sentence_names_the_extra() -> None:
    code = "import sys; sys.modules['onnxruntime'] = None; import edge.onnx.session"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"MissingEdgeExtra: a node needs onnxruntime: {how_to_install('node')}" in done.stderr


def test_a_node_never_imports_torch_nor_live_data_that_it_does_not_use() -> None:
    heavy = ("torch", "edge.data.live.base", "edge.data.logmel")
    code = f"print([name for name in {heavy} if name in sys.modules])"
    code = f"import sys, edge.service, transports.mqtt.transport; {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


CPU, GPU, RT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
CLOUD = "AzureExecutionProvider"


@pytest.mark.parametrize(
    ("wanted", "available", "chosen"),
    [
        ("auto", [CLOUD, CPU], [CPU]),
        ("auto", [RT, GPU, CPU], [GPU, CPU]),
        ("cpu", [RT, GPU, CPU], [CPU]),
        ("tensorrt", [RT, GPU, CPU], [RT, GPU, CPU]),
        ("tensorrt", [GPU, CPU], [GPU, CPU]),
        ("cuda", [CLOUD, CPU], [CPU]),
    ],
)
def test_providers_are_chosen_in_one_place(wanted, available, chosen) -> None:
    assert choose_providers(wanted, available) == chosen


class Board:
    """An onnxruntime with a GPU, of which one part does not work."""

    def __init__(self, broken: str = "") -> None:
        self.broken, self.real = broken, onnxruntime.InferenceSession
        self.asked: list[list[str]] = []

    def make(self, path: str, options: object, providers: list[str]) -> "Board.Session":
        self.asked.append(providers)
        if self.broken == "create" and providers != [CPU]:
            raise ort_errors.Fail("no engine\nand more")
        made = self.real(path, options, providers=[CPU])
        return Board.Session(self, made, [CPU] if self.broken == "libraries" else providers)

    class Session:
        def __init__(self, board: "Board", made: Any, providers: list[str]) -> None:
            self.board, self.made, self.providers = board, made, providers

        def get_providers(self) -> list[str]:
            return self.providers

        def run(self, *values: Any) -> Any:
            if self.board.broken == "run" and self.providers != [CPU]:
                raise ort_errors.RuntimeException("CUDA failure 2: out of memory")
            return self.made.run(*values)


@pytest.mark.parametrize(
    ("wanted", "broken", "said"),
    [
        ("auto", "", GPU),
        ("cpu", "", CPU),
        ("auto", "create", f"{CPU}, as {GPU} failed: no engine"),
        ("cuda", "run", f"{CPU}, as {GPU} failed: CUDA failure 2: out of memory"),
        ("auto", "libraries", f"{CPU}, as onnxruntime cannot use {GPU} here"),
        ("tensorrt", "", f"{GPU}, as onnxruntime cannot use {RT} here"),
    ],
)
def test_a_gpu_that_does_not_work_is_replaced_by_the_processor(
    tiny: LoadedModel, monkeypatch, caplog, wanted: str, broken: str, said: str
) -> None:
    board = Board(broken)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [GPU, CPU])
    monkeypatch.setattr(onnxruntime, "InferenceSession", board.make)
    inference = Inference(tiny.folder, tiny.package, provider=wanted)
    assert inference.provider == ""
    x = np.ones((2, 6), np.float32)
    for _ in range(3):
        found = inference.predict({"x": x})["y"]
        np.testing.assert_allclose(found, by_hand(tiny, x, np.zeros_like(tiny.initial)), atol=1e-6)
        assert inference.provider == said
        inference.release()
    assert caplog.messages == ([f"forward.onnx runs on {said}"] if said not in (GPU, CPU) else [])
    if broken in ("create", "run"):
        assert board.asked[1:] == [[CPU]] * 3
