"""The host's stage and a board's part: steps, clipping and checkpoints."""

import numpy as np
import pytest
import torch
from torch import nn

from host.split.stage import TorchStage
from ternmesh.errors import CodecError, TernmeshError
from tests.ternmesh_cli.split.split_training import CLASSES, make_cut


def tiny_stage(clip_norm: float = 1.0) -> tuple[TorchStage, np.ndarray, bytes]:
    """A stage with activations and labels that it learns from."""
    torch.manual_seed(0)
    stage = TorchStage(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, CLASSES)), clip_norm)
    values = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    return stage, values, bytes([0, 1, 2, 0])


def steps_of(stage: TorchStage, values: np.ndarray, labels: bytes, steps: int) -> float:
    loss = 0.0
    for _ in range(steps):
        _, loss, _ = stage.learn(values, labels)
        stage.step(0.01)
    return loss


@pytest.mark.parametrize("magnitude", [1e15, 1e25, 1e30])
def test_no_micro_batch_spoils_the_hosts_adam(magnitude: float) -> None:
    stage, values, labels = tiny_stage()
    steps_of(stage, values, labels, 3)
    steps_of(stage, values * np.float32(magnitude), labels, 1)
    for parameter in stage._parameters:
        moments = stage._optimizer.state[parameter]
        assert float(moments["exp_avg_sq"].sum()) <= 0.001 * 4  # of four steps, none above 1
    assert steps_of(stage, values, labels, 200) < 0.2
    stage.restore(stage.state())


def test_only_what_is_too_long_is_clipped() -> None:  # R10.2-3
    grown = {}
    for clip_norm in (1000.0, 0.001):
        stage, values, labels = tiny_stage(clip_norm)
        stage.learn(values, labels)
        stage.learn(values, labels)
        gradients = [p.grad for p in stage._parameters if p.grad is not None]
        grown[clip_norm] = torch.cat([gradient.reshape(-1) for gradient in gradients])
    assert float(grown[0.001].norm()) == pytest.approx(0.002)
    whole = grown[1000.0]
    np.testing.assert_allclose(grown[0.001], 0.002 * whole / whole.norm(), rtol=1e-4, atol=1e-9)


def test_a_host_that_diverges_gathers_nothing() -> None:
    middle = nn.Linear(6, CLASSES)
    nn.init.constant_(middle.weight, torch.nan)
    stage = TorchStage(middle, 1.0)
    with pytest.raises(CodecError, match="not finite"):
        stage.learn(np.ones((4, 6), np.float32), bytes([0, 1, 2, 0]))
    assert stage.gathered == 0


def test_a_checkpoint_of_another_model_is_refused() -> None:
    stage = TorchStage(make_cut().rest, 1.0)
    other = TorchStage(nn.Linear(2, 2), 1.0)
    for state in (other.state(), b"", b"something else"):
        with pytest.raises(TernmeshError, match="begins another run"):
            stage.restore(state)
