import importlib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from edge.config import read_node_config
from edge.data.sources import Label, Sample, make_source

FOLDER = Path(__file__).parents[3] / "examples" / "pm25"
HOURS = 24


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Sixty hours; PM2.5 counts up from 10, and hour 40 was not measured."""
    records = np.zeros((60, 11), np.float32)
    records[:, 0] = 10 + np.arange(60)
    records[40, 0] = np.nan
    records[:, 8], records[:, 10] = 1, np.arange(60) % 24
    path = tmp_path / "pm25.npz"
    np.savez(path, x=records, year=np.repeat([2010, 2011], 30))
    return path


def replay(data: Path, **options):
    name = "source:HourlyReplay"
    return make_source(name, {"data": str(data), **options}, FOLDER)


def test_each_label_comes_an_hour_after_its_sample(data: Path) -> None:
    source = replay(data, hours_per_s=0.5)
    unscale = importlib.import_module("features").unscale_pm25
    first = source.poll(1000.0)
    assert [(type(item), item.key) for item in first] == [(Sample, "23")]
    assert first[0].inputs["hours"].shape == (HOURS, 16)
    assert source.poll(1001.0) == []
    later = source.poll(1002.0)
    assert [(type(item), item.key) for item in later] == [(Label, "23"), (Sample, "24")]
    assert unscale(later[0].targets["target"]) == pytest.approx(34.0, rel=1e-4)
    assert unscale(later[1].inputs["hours"][-1, :1]) == pytest.approx(34.0, rel=1e-4)


def test_missing_values_give_no_label_and_the_end_is_quiet(data: Path) -> None:
    source = replay(data)
    items = list(source.poll(0.0)) + list(source.poll(1e6))
    labels = {item.key for item in items if isinstance(item, Label)}
    samples = {item.key for item in items if isinstance(item, Sample)}
    assert samples == {str(hour) for hour in range(23, 60)}
    assert labels == samples - {"39", "59"}
    assert all(np.isfinite(i.inputs["hours"]).all() for i in items if isinstance(i, Sample))
    assert source.poll(2e6) == []


def test_a_year_may_be_chosen(data: Path) -> None:
    assert len(replay(data, year=2011).poll(0.0)) == 1
    with pytest.raises(Exception, match="must hold at least 24 hours"):
        replay(data, year=2012)


def test_the_config_of_the_example_is_right() -> None:
    with TemporaryDirectory() as short:  # the path of a control socket has a limit
        folder = Path(short) / "examples" / "pm25"
        folder.mkdir(parents=True)
        (Path(short) / "pm25_bundle").mkdir()
        (folder / "node.toml").write_text((FOLDER / "node.toml").read_text())
        config = read_node_config(folder / "node.toml")
    assert config.data.source_path == str(folder)
    assert config.data.source == "source:HourlyReplay"
