import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.adam import AdamSettings, clip, init, update


def test_two_steps_worked_by_hand() -> None:
    settings = AdamSettings(beta1=0.5, beta2=0.75, epsilon=0.0)
    vector = np.zeros(2, np.float32)
    change, state = update(init(2), np.array([2.0, -1.0], np.float32), vector, 0.1, settings)
    # The first step of Adam is the rate times the sign, whatever the gradient's size.
    np.testing.assert_allclose(change, [-0.1, 0.1], rtol=1e-6)
    change, state = update(state, np.array([0.0, -3.0], np.float32), vector, 0.1, settings)
    # mean = (0.5, -1.75) / (1 - 0.25); square = (0.75, 2.4375) / (1 - 0.5625)
    expected = -0.1 * np.array([0.5, -1.75]) / 0.75 / np.sqrt(np.array([0.75, 2.4375]) / 0.4375)
    np.testing.assert_allclose(change, expected, rtol=1e-6)
    assert state.steps == 2


def test_the_state_that_went_in_is_left_alone() -> None:
    state = init(3)
    update(state, np.ones(3, np.float32), np.ones(3, np.float32), 0.1, AdamSettings())
    assert (state.steps, state.mean.any(), state.square.any()) == (0, False, False)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_is_torch_s_adamw(weight_decay: float) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    rng = np.random.default_rng(0)
    vector = rng.standard_normal(50).astype(np.float32)
    parameter = torch.tensor(vector.copy(), requires_grad=True)
    optimiser = torch.optim.AdamW([parameter], lr=0.01, weight_decay=weight_decay)
    state, settings = init(50), AdamSettings(weight_decay=weight_decay)
    for _ in range(20):
        gradient = rng.standard_normal(50).astype(np.float32)
        parameter.grad = torch.from_numpy(gradient)
        optimiser.step()
        change, state = update(state, gradient, vector, 0.01, settings)
        vector = vector + change
    np.testing.assert_allclose(vector, parameter.detach().numpy(), atol=2e-6)
    assert vector.dtype == np.float32


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8), st.floats(0.01, 100))
def test_clipping_keeps_the_direction_and_bounds_the_length(
    values: list[float], norm_max: float
) -> None:
    gradient = np.array(values, np.float32)
    clipped = clip(gradient, norm_max)
    length = np.linalg.norm(gradient)
    assert np.linalg.norm(clipped) <= min(norm_max, length) * (1 + 1e-5)
    np.testing.assert_allclose(
        clipped * max(1.0, length / norm_max), gradient, rtol=1e-4, atol=1e-6
    )


def test_no_limit_leaves_the_gradient_as_it_is() -> None:
    gradient = np.full(4, 1e6, np.float32)
    assert clip(gradient, 0.0) is gradient
