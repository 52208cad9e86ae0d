"""The preprocessing of the bring-your-own example."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FEATURES = Path(__file__).parents[2] / "examples" / "pm25" / "features.py"


@pytest.fixture(scope="module")
def features() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pm25_features", FEATURES)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def records(hours: int) -> np.ndarray:
    """Plausible hours; PM2.5 counts up from 10."""
    rows = np.tile(np.array([0, -2, 5, 1020, 3, 0, 1, 2, 7, 15, 0], np.float32), (hours, 1))
    rows[:, 0] = 10 + np.arange(hours)
    rows[:, 10] = np.arange(hours) % 24
    return rows


def test_a_window_is_the_24_hours_before_its_target(features: ModuleType) -> None:
    given, targets = features.windows(records(30))
    assert given.shape == (6, 24, 16)
    assert targets.shape == (6, 1)
    assert given.dtype == targets.dtype == np.float32
    np.testing.assert_allclose(features.unscale_pm25(given[0, :, 0]), 10 + np.arange(24), rtol=1e-4)
    np.testing.assert_allclose(features.unscale_pm25(targets[:, 0]), 34 + np.arange(6), rtol=1e-4)


def test_a_missing_hour_is_filled_and_marked_and_never_a_target(features: ModuleType) -> None:
    rows = records(30)
    rows[[0, 5, 6, 26], 0] = np.nan
    given, targets = features.windows(rows)
    assert len(targets) == 5
    assert np.isfinite(given).all()
    np.testing.assert_allclose(features.unscale_pm25(given[0, [4, 5, 6], 0]), 14, rtol=1e-4)
    assert given[0, :, 1].tolist() == [0, 1, 1, 1, 1, 0, 0] + [1] * 17


def test_wind_and_clock_are_encoded(features: ModuleType) -> None:
    encoded = features.encode(records(24))
    assert encoded[:, 8:12].tolist() == [[0, 0, 1, 0]] * 24
    np.testing.assert_allclose(encoded[6, 14:], [1, 0], atol=1e-6)  # six in the morning
    np.testing.assert_allclose(encoded[0, 12:14], [0, -1], atol=1e-6)  # July
