from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from edge.errors import ModelError
from edge.trainer import (
    AdamSettings,
    Arrays,
    Trainer,
    adam_update,
    clip_gradient,
    init_adam,
    round_rng,
)
from ternmesh.plan import Plan, make_plan

D = 18


def plan(steps: int = 5, learning_rate: float = 0.05) -> Plan:
    return make_plan(D, rounds=3, local_steps=steps, learning_rate=learning_rate)


class Numbers:
    """A data set whose samples are their own index, that notes what was asked for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return self.count

    def batch(self, indexes: np.ndarray) -> dict[str, np.ndarray]:
        self.asked.append(indexes.tolist())
        return {"x": indexes}

    def set_aside(self, reasons: Mapping[int, str]) -> None:
        raise AssertionError(reasons)


class Bowl:
    """loss = |vector|^2 / 2, whatever the batch."""

    def run(self, adapter, batch):
        return float(adapter @ adapter) / 2, adapter


def test_steps_and_rate_are_those_of_the_plan() -> None:
    trainer = Trainer(Bowl(), Numbers(10), 4, AdamSettings())
    global_adapter = np.full(D, 2.0, np.float32)
    trainer.begin(3, global_adapter, plan(steps=2, learning_rate=0.25), round_rng(0, "ada", 3))
    assert (trainer.round, trainer.progress, trainer.loss) == (3, (0, 2), None)
    assert trainer.step()
    np.testing.assert_allclose(trainer.delta(), np.full(D, -0.25), rtol=1e-5)
    assert not trainer.step()
    assert trainer.progress == (2, 2)
    assert trainer.loss == pytest.approx((2.0**2 * D / 2 + 1.75**2 * D / 2) / 2)
    np.testing.assert_array_equal(global_adapter, np.full(D, 2.0, np.float32))
    trainer.stop()
    assert trainer.round is None


def test_every_sample_is_drawn_before_any_is_drawn_again_and_the_data_may_change() -> None:
    data = Numbers(10)
    trainer = Trainer(Bowl(), data, 4, AdamSettings())
    trainer.begin(0, np.ones(D, np.float32), plan(steps=8), round_rng(0, "ada", 0))
    for _ in range(5):
        trainer.step()
    drawn = [index for batch in data.asked for index in batch]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]
    for data.count in (3, 100, 2):  # a batch may be larger than the data
        trainer.step()
    assert [set(batch) for batch in data.asked[5::2]] == [{0, 1, 2}, {0, 1}]
    assert len(set(data.asked[6])) == 4


@pytest.mark.parametrize("keep_moments", [False, True])
def test_moments_are_kept_only_where_asked(keep_moments: bool) -> None:
    trainer = Trainer(Bowl(), Numbers(4), 2, AdamSettings(), keep_moments=keep_moments)

    def one_round(sign: float) -> np.ndarray:
        trainer.begin(0, np.full(D, sign, np.float32), plan(steps=1), round_rng(0, "ada", 0))
        trainer.step()
        return trainer.delta()

    first = one_round(1.0)
    opposite = one_round(-1.0)
    assert np.allclose(opposite, -first) is not keep_moments
    trainer.stop(forget=True)
    np.testing.assert_allclose(one_round(1.0), first)


def test_it_is_torch_s_adam() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    rng = np.random.default_rng(0)
    vector = rng.standard_normal(50).astype(np.float32)
    parameter = torch.tensor(vector.copy(), requires_grad=True)
    optimiser = torch.optim.Adam([parameter], lr=0.01)
    state, settings = init_adam(50), AdamSettings()
    for _ in range(20):
        gradient = rng.standard_normal(50).astype(np.float32)
        parameter.grad = torch.from_numpy(gradient)
        optimiser.step()
        change, state = adam_update(state, gradient, 0.01, settings)
        vector = vector + change
    np.testing.assert_allclose(vector, parameter.detach().numpy(), atol=2e-6)
    assert vector.dtype == np.float32


def test_clipping_keeps_the_direction_and_bounds_the_length() -> None:
    gradient = np.array([3.0, -4.0], np.float32)
    np.testing.assert_allclose(clip_gradient(gradient, 1.0), [0.6, -0.8], rtol=1e-6)
    for norm_max in (0.0, 5.0, 9.0):  # 0: no limit
        assert clip_gradient(gradient, norm_max) is gradient


class Picky:
    """A step that cannot compute the sample 7, and finds no loss for the sample 9."""

    def run(self, adapter: np.ndarray, batch: Arrays) -> tuple[float, np.ndarray]:
        if 7 in batch["x"]:
            raise ModelError("index out of range")
        return (np.inf if 9 in batch["x"] else 1.0), np.ones_like(adapter)


class Shrinking(Numbers):
    """Its samples that are set aside stand for another one."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.aside: dict[int, str] = {}

    def batch(self, indexes: np.ndarray) -> dict[str, np.ndarray]:
        return {"x": np.where(np.isin(indexes, list(self.aside)), 0, indexes)}

    def set_aside(self, reasons: Mapping[int, str]) -> None:
        self.aside |= reasons


def test_samples_that_the_model_cannot_compute_are_found_and_the_round_goes_on() -> None:
    data = Shrinking(12)
    trainer = Trainer(Picky(), data, 4, AdamSettings())
    trainer.begin(0, np.zeros(D, np.float32), plan(steps=12), round_rng(0, "ada", 0))
    while trainer.step():
        pass
    assert data.aside == {7: "index out of range", 9: "its loss or gradient is not finite"}
    assert trainer.progress == (12, 12)
    assert np.isfinite(trainer.delta()).all()


def test_a_step_that_fails_for_no_sample_alone_is_the_models_fault() -> None:
    class Broken(Picky):
        def run(self, adapter: np.ndarray, batch: Any) -> Any:
            if len(set(batch["x"].tolist())) > 1:
                raise ModelError("broken")
            return 1.0, np.ones_like(adapter)

    trainer = Trainer(Broken(), Shrinking(12), 4, AdamSettings())
    trainer.begin(0, np.zeros(D, np.float32), plan(steps=12), round_rng(0, "ada", 0))
    with pytest.raises(ModelError, match="broken"):
        trainer.step()
