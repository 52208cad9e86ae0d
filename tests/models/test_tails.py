"""Tails that are written without torch: their gradient and their files."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edge.onnx.session import Inference, TrainStep, load_model
from models.errors import ExportError

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'ternmesh[dev]'")

from models.tails import write_tail  # noqa: E402


@pytest.mark.parametrize(("rows", "hidden"), [(1, None), (3, None), (3, 5)])
def test_loss_and_gradient_are_right_and_boards_load_the_files(rows, hidden, tmp_path) -> None:
    package = write_tail(
        tmp_path / "tail", rows=rows, width=8, classes=4, hidden=hidden, batch=6, name="tail"
    )
    loaded = load_model(tmp_path / "tail")
    rng = np.random.default_rng(0)
    vector = loaded.initial + rng.standard_normal(package.dimension, np.float32) / np.float32(3)
    x = rng.standard_normal(package.batch_inputs[0].shape).astype(np.float32)
    assert x.shape == ((6, 8) if rows == 1 else (6, rows, 8))
    target = rng.integers(0, 4, 6)

    def loss_of(numbers: np.ndarray) -> float:
        parts = {key: part.astype(float) for key, part in package.split(numbers).items()}
        layer = x.reshape(6, -1).astype(float)
        if hidden:
            layer = np.maximum(layer @ parts["hidden_weight"] + parts["hidden_bias"], 0)
        logits = layer @ parts["head_weight"] + parts["head_bias"]
        shifted = np.log(np.exp(logits).sum(1)) - logits[np.arange(6), target]
        return float(shifted.mean())

    step = TrainStep(loaded.folder, package)
    loss, gradient = step.run(vector, {"features": x, "target": target})
    assert loss == pytest.approx(loss_of(vector), rel=1e-5)
    for at in range(0, vector.size, 7):
        change = np.zeros_like(vector)
        change[at] = 1e-3
        slope = (loss_of(vector + change) - loss_of(vector - change)) / 2e-3
        assert gradient[at] == pytest.approx(slope, abs=2e-4)
    [logits] = Inference(loaded.folder, package).predict({"features": x}).values()
    assert logits.shape == (6, 4)
    with pytest.raises(Exception, match="index"):
        step.run(vector, {"features": x, "target": np.full(6, 4)})


def test_the_same_seed_gives_the_same_files_and_nothing_is_overwritten(tmp_path: Path) -> None:
    hashes = [
        write_tail(
            tmp_path / str(at), rows=1, width=4, classes=2, hidden=3, seed=seed, name="tail"
        ).model_hash()
        for at, seed in enumerate((0, 0, 1))
    ]
    assert [a == b for a, b in pairwise(hashes)] == [True, False]
    with pytest.raises(ExportError, match="another folder"):
        write_tail(tmp_path / "0", rows=1, width=4, classes=2, name="tail")
