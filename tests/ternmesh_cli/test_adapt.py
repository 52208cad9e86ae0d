"""`ternmesh adapt`: plain classifiers become packages that begin as good, learn, or are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from edge.onnx.check import check_file
from edge.onnx.session import Inference, TrainStep, load_model
from ternmesh_cli.main import main

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'ternmesh[dev]'")
pytest.importorskip("onnx_ad", reason="onnx-ad is not installed: pip install 'ternmesh[adapt]'")

RNG = np.random.default_rng(0)
MLP = """(float[n, 6] x) => (float[n, 3] p) {
    h = Gemm <transB = 1> (x, W, b)
    t = Tanh (h)
    m = MatMul (t, V)
    l = Add (m, c)
    p = Softmax <axis = 1> (l)
}"""
MLP_WEIGHTS = {"W": (5, 6), "b": (5,), "V": (5, 3), "c": (3,)}
CNN = """(float[n, 2, 8, 8] image) => (float[n, 3] y) {
    f = Conv <pads = [1, 1, 1, 1]> (image, K)
    r = Relu (f)
    g = Conv (r, W, b)
    pooled = GlobalAveragePool (g)
    y = Flatten (pooled)
}"""
CNN_WEIGHTS = {"K": (4, 2, 3, 3), "W": (3, 4, 1, 1), "b": (3,)}


def save(path: Path, text: str, shapes: dict[str, tuple[int, ...]], opset: int = 18) -> Path:
    head = f'<ir_version: 9, opset_import: ["": {opset}, "ai.onnx.ml": 3]> plain '
    model = onnx.parser.parse_model(head + text)
    for name, shape in shapes.items():
        array = RNG.standard_normal(shape).astype(np.float32) / 2
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model.graph.node[0].metadata_props.add(key="pkg", value="what exporters leave")
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    return save(tmp_path / "mlp.onnx", MLP, MLP_WEIGHTS)


def run_of(path: Path, **inputs: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def probabilities(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits)
    return powers / powers.sum(1, keepdims=True)


def gradient_error(folder: Path) -> float:
    """How far the gradient is from differences of the loss."""
    loaded = load_model(folder)
    rng, step = np.random.default_rng(1), TrainStep(folder, loaded.package)
    features, target = loaded.package.batch_inputs
    batch: dict[str, Any] = {features.name: rng.standard_normal(features.shape, np.float32)}
    batch[target.name] = rng.integers(0, 3, target.shape)
    vector = loaded.initial + rng.standard_normal(loaded.initial.size, np.float32) * np.float32(0.2)
    _, gradient = step.run(vector, batch)
    slopes = []
    for change in np.eye(vector.size, dtype=np.float32) * np.float32(1e-2):
        up, down = (step.run(moved, batch)[0] for moved in (vector + change, vector - change))
        slopes.append((up - down) / 2e-2)
    return float(np.abs(gradient - slopes).max())


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_a_head_begins_as_good_as_the_model(kind, mlp, tmp_path, capsys) -> None:
    name, shape = ("x", (6,)) if kind == "mlp" else ("image", (2, 8, 8))
    path = mlp if kind == "mlp" else save(tmp_path / "cnn.onnx", CNN, CNN_WEIGHTS)
    out = tmp_path / "out"
    assert main(["adapt", str(path), "--out", str(out), "--head", "last"]) == 0
    assert "numbers" in capsys.readouterr().out
    check_file(out / "front.onnx")
    described = json.loads((out / "model.json").read_bytes())
    assert described["inputs"] == [{"name": name, "dtype": "float32", "shape": [-1, *shape]}]
    assert described["front"] == {"window": 0, "hop": 0, "rows": 1, "scale": 1.0, "rate": 0}
    samples = RNG.standard_normal((5, *shape)).astype(np.float32)
    rows = [run_of(out / "front.onnx", **{name: sample[None]}) for sample in samples]
    got = run_of(out / "forward.onnx", features=np.concatenate(rows))
    got = probabilities(got) if kind == "mlp" else got
    np.testing.assert_allclose(got, run_of(path, **{name: samples}), atol=1e-5)


def test_other_classes_get_a_new_head_with_their_names(tmp_path: Path) -> None:
    text = MLP.replace("n, 6", "n, width")
    path, out = save(tmp_path / "open.onnx", text, MLP_WEIGHTS), tmp_path / "out"
    options = ["--head", "t", "--labels", "ant,bee", "--hidden", "4", "--shape", "x=1,6"]
    assert main(["adapt", str(path), "--out", str(out), *options]) == 0
    package = load_model(out).package
    assert (package.labels, package.inputs[0].shape) == (("ant", "bee"), (-1, 6))
    shapes = {tensor.name: tensor.shape for tensor in package.adapter}
    assert (shapes["hidden_weight"], shapes["head_weight"]) == ((5, 4), (4, 2))


def test_a_package_that_computes_else_is_not_written(mlp, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("models.adapt.logits_of", lambda *_: np.ones((1, 3), np.float32))
    assert main(["adapt", str(mlp), "--out", str(tmp_path / "out"), "--head", "last"]) == 1
    assert "its logits differ from the model's" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("pattern", "names"), [("*", {"W", "V"}), ("V", {"V"})])
def test_lora_begins_as_the_model_and_has_its_gradient(pattern, names, mlp, tmp_path) -> None:
    out, options = tmp_path / "out", ["--lora", pattern, "--rank", "2", "--batch", "4"]
    assert main(["adapt", str(mlp), "--out", str(out), *options]) == 0
    assert gradient_error(out) < 1e-3
    package = load_model(out).package
    assert len(package.adapter) == 2 * len(names)
    x = RNG.standard_normal((7, 6)).astype(np.float32)
    [logits] = Inference(out, package).predict({"x": x}).values()
    np.testing.assert_allclose(probabilities(logits), run_of(mlp, x=x), atol=1e-6)


def test_lora_behind_a_front_trains_the_tail_alone(mlp: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--head", "t", "--lora", "*", "--rank", "2"]
    assert main(["adapt", str(mlp), "--out", str(out), *options]) == 0
    described = json.loads((out / "model.json").read_bytes())
    assert [spec["shape"] for spec in described["adapter"]] == [[5, 2], [2, 3]]
    assert described["inputs"][0]["shape"] == [-1, 6]
    x = RNG.standard_normal((1, 6)).astype(np.float32)
    logits = run_of(out / "forward.onnx", row=run_of(out / "front.onnx", x=x))
    np.testing.assert_allclose(probabilities(logits), run_of(mlp, x=x), atol=1e-6)


def test_lora_on_a_model_that_has_lora_in_it(mlp: Path, tmp_path: Path) -> None:
    model = onnx.load(mlp)
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "d.lora_A"
    onnx.save(model, mlp)
    assert main(["adapt", str(mlp), "--out", str(tmp_path / "out"), "--lora", "d*"]) == 0
    assert gradient_error(tmp_path / "out") < 1e-3


def test_a_tail_that_needs_more_than_its_rows_is_refused(tmp_path: Path, capsys) -> None:
    text = """(float[n, 6] x) => (float[n, 3] y) {
        h = Tanh (x)
        s = Add (h, x)
        y = MatMul (s, W)
    }"""
    path = save(tmp_path / "skip.onnx", text, {"W": (6, 3)})
    common = ["adapt", str(path), "--lora", "*", "--out"]
    assert main([*common, str(tmp_path / "a"), "--head", "h"]) == 1
    assert "what follows h needs other tensors, too" in capsys.readouterr().err
    assert main([*common, str(tmp_path / "b"), "--head", "s"]) == 0


def test_without_a_choice_it_proposes_and_writes_nothing(mlp, tmp_path, capsys) -> None:
    before = set(tmp_path.rglob("*"))
    assert main(["adapt", str(mlp), "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    numbers = {line[:24].strip(): line.split()[-4] for line in lines[1:4]}
    assert numbers == {
        "--head last": "18",
        "--head last --hidden 32": "291",
        "--lora '*' --rank 8": "152",
    }
    assert set(tmp_path.rglob("*")) == before


SHAPES = "(float[n, 6] x) => (float[n, 3] y)"
LOOP = """more = Constant <value: tensor = bool {1}> ()
    trips = Constant <value: tensor = int64 {2}> ()
    z = Loop (trips, more, x) <body = once (int64 i, bool go, float[a, 6] s)
        => (bool on, float[a, 6] r) { on = Identity (go) r = Tanh (s) }>
    y = MatMul (z, W)"""
REFUSALS = {  # by what the sentence says
    "leaves sizes open: fix them with --shape x=n,width": "(float[n, width] x) => (float y) {"
    " y = MatMul (x, W) }",
    "has the inputs x, z: export it with one": "(float[n, 6] x, float[n, 6] z) => (float y) {"
    " y = Add (x, z) }",
    "has Loop: export it without control flow": f"{SHAPES} {{ {LOOP} }}",
    "is no classifier: its output is [1, 4, 3]": "(float[n, 4, 6] x) => (float y) {"
    " y = MatMul (x, W) }",
    "has operators of com.microsoft": f"{SHAPES} {{ y = com.microsoft.Gelu (x) }}",
    "has operator set 29: export it": f"{SHAPES} {{ y = MatMul (x, W) }}",
    "with its operator set 18: export": f"{SHAPES} {{ y = MatMul <unknown = 1> (x, W) }}",
    "has operator set 11: export it": f"{SHAPES} {{ y = MatMul (x, W) }}",
}


@pytest.mark.parametrize("sentence", REFUSALS)
def test_what_cannot_learn_is_refused_in_one_sentence(sentence, tmp_path, capsys) -> None:
    opset = next((opset for opset in (11, 29) if str(opset) in sentence), 18)
    path = save(tmp_path / "bad.onnx", REFUSALS[sentence], {"W": (6, 3)}, opset)
    assert main(["adapt", str(path), "--out", str(tmp_path / "out"), "--head", "last"]) == 1
    complaint = capsys.readouterr().err
    assert sentence in complaint
    assert complaint.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_files_that_are_no_whole_model_are_refused(mlp, tmp_path, capsys) -> None:
    other, large = tmp_path / "other.onnx", tmp_path / "large.onnx"
    other.write_bytes(b"\x89PNG no model")
    with large.open("wb") as file:
        file.truncate(200_000_000)
    outside = onnx.load(mlp)
    onnx.save(outside, tmp_path / "outside.onnx", save_as_external_data=True, size_threshold=0)
    for path, sentence in (
        (other, "is no ONNX file"),
        (large, "200 MB or more"),
        (tmp_path / "outside.onnx", "export it as a single file"),
        (tmp_path / "absent.onnx", "No such file"),
    ):
        assert main(["adapt", str(path), "--head", "last", "--out", str(tmp_path / "out")]) == 1
        assert sentence in capsys.readouterr().err


def test_int8_weights_are_a_front_but_take_no_lora(tmp_path: Path, capsys) -> None:
    text = """(float[n, 6] x) => (float[n, 3] y) {
        q = QuantizeLinear (x, s, z)
        h = QLinearMatMul (q, s, z, Q, s, z, s, z)
        d = DequantizeLinear (h, s, z)
        y = MatMul (d, W)
    }"""
    model = onnx.load(save(tmp_path / "q.onnx", text, {"W": (5, 3)}))
    integers = {"s": np.float32(0.1), "z": np.int8(0), "Q": RNG.integers(-99, 99, (6, 5), np.int8)}
    for name, array in integers.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    onnx.save(model, tmp_path / "q.onnx")
    common = ["adapt", str(tmp_path / "q.onnx"), "--out"]
    assert main([*common, str(tmp_path / "a"), "--head", "last"]) == 0
    assert main([*common, str(tmp_path / "b"), "--lora", "Q"]) == 1
    assert "int8 weights stay frozen" in capsys.readouterr().err
