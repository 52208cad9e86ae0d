import numpy as np
import pytest

from edge.adam import AdamSettings
from edge.session import LoadedBundle, TrainStep
from edge.trainer import Trainer, round_rng
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


class Bowl:
    """loss = |vector|^2 / 2, whatever the batch."""

    def run(self, adapter, batch):
        return float(adapter @ adapter) / 2, adapter


class Tiny:
    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays["x"])

    def batch(self, indexes: np.ndarray) -> dict[str, np.ndarray]:
        return {name: array[indexes] for name, array in self.arrays.items()}


def trained(tiny: LoadedBundle, arrays, name: str = "ada", number: int = 0) -> np.ndarray:
    step = TrainStep(tiny.folder, tiny.bundle)
    trainer = Trainer(step, Tiny(arrays), 8, AdamSettings())
    trainer.begin(number, tiny.initial, plan(), round_rng(7, name, number))
    while trainer.step():
        pass
    return trainer.delta()


def test_a_round_that_is_begun_again_gives_the_same_delta(tiny, tiny_data) -> None:
    first = trained(tiny, tiny_data)
    np.testing.assert_array_equal(trained(tiny, tiny_data), first)
    assert not np.array_equal(trained(tiny, tiny_data, name="bob"), first)
    assert not np.array_equal(trained(tiny, tiny_data, number=1), first)


def test_training_lowers_the_loss(tiny, tiny_data) -> None:
    trainer = Trainer(TrainStep(tiny.folder, tiny.bundle), Tiny(tiny_data), 8, AdamSettings())
    reference, losses = tiny.initial, []
    for number in range(4):
        trainer.begin(number, reference, plan(20), round_rng(0, "ada", number))
        while trainer.step():
            pass
        losses.append(trainer.loss)
        reference = reference + trainer.delta()
    assert losses[-1] < losses[0] / 3


def test_steps_and_rate_are_those_of_the_plan() -> None:
    trainer = Trainer(Bowl(), Numbers(10), 4, AdamSettings())
    reference = np.full(D, 2.0, np.float32)
    trainer.begin(3, reference, plan(steps=2, learning_rate=0.25), round_rng(0, "ada", 3))
    assert (trainer.round, trainer.progress, trainer.loss) == (3, (0, 2), None)
    assert trainer.step()
    np.testing.assert_allclose(trainer.delta(), np.full(D, -0.25), rtol=1e-5)
    assert not trainer.step()
    assert trainer.progress == (2, 2)
    assert trainer.loss == pytest.approx((2.0**2 * D / 2 + 1.75**2 * D / 2) / 2)
    np.testing.assert_array_equal(reference, np.full(D, 2.0, np.float32))
    trainer.stop()
    assert trainer.round is None


def test_every_sample_is_dealt_before_any_is_dealt_again() -> None:
    data = Numbers(10)
    trainer = Trainer(Bowl(), data, 4, AdamSettings())
    trainer.begin(0, np.ones(D, np.float32), plan(steps=5), round_rng(0, "ada", 0))
    while trainer.step():
        pass
    dealt = [index for batch in data.asked for index in batch]
    assert sorted(dealt[:10]) == sorted(dealt[10:]) == list(range(10))
    assert dealt[:10] != dealt[10:]


def test_a_batch_may_be_larger_than_the_data_and_the_data_may_grow() -> None:
    data = Numbers(3)
    trainer = Trainer(Bowl(), data, 8, AdamSettings())
    trainer.begin(0, np.ones(D, np.float32), plan(steps=3), round_rng(0, "ada", 0))
    trainer.step()
    assert set(data.asked[0]) == {0, 1, 2}
    data.count = 100
    trainer.step()
    assert len(set(data.asked[1])) == 8
    data.count = 2
    trainer.step()
    assert set(data.asked[2]) == {0, 1}


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
