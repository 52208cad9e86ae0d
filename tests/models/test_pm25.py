"""The preprocessing of the bring-your-own example."""

import csv
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "pm25"
CSV = """\
No,year,month,day,hour,pm2.5,DEWP,TEMP,PRES,cbwd,Iws,Is,Ir
1,2010,12,31,23,NA,-21,-11,1021,NW,1.79,0,0
2,2011,1,1,0,129,-16,-4,1020,SE,2.68,0,1
3,2012,1,1,0,10,1,2,1000,cv,0.5,3,0
"""


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"pm25_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def features() -> ModuleType:
    return script("features")


@pytest.fixture
def prepare() -> ModuleType:
    return script("prepare_data")


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


def test_rows_become_records_in_the_order_of_the_features(prepare):
    x, year = prepare.records(csv.DictReader(CSV.splitlines()), 2010, 2011)
    assert (x.dtype, year.tolist()) == (np.float32, [2010, 2011])
    assert np.isnan(x[0, 0])
    np.testing.assert_array_equal(
        x[0, 1:], np.array([-21, -11, 1021, 1.79, 0, 0, 1, 12, 31, 23], np.float32)
    )
    np.testing.assert_array_equal(
        x[1], np.array([129, -16, -4, 1020, 2.68, 0, 1, 2, 1, 1, 0], np.float32)
    )


def test_another_file_is_one_sentence(prepare, tmp_path, monkeypatch, capsys):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    options = ["--csv", "x.csv", "--first", "2010", "--last", "2012", "--out", "x.npz"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["prepare_data.py", *options])
    with pytest.raises(SystemExit) as caught:
        prepare.main()
    assert caught.value.code == 2
    assert "x.csv is not UCI's Beijing PM2.5: 'year' is missing or wrong" in capsys.readouterr().err
    assert not (tmp_path / "x.npz").exists()
