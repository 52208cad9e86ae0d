import csv
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "pm25" / "prepare_data.py"
CSV = """\
No,year,month,day,hour,pm2.5,DEWP,TEMP,PRES,cbwd,Iws,Is,Ir
1,2010,12,31,23,NA,-21,-11,1021,NW,1.79,0,0
2,2011,1,1,0,129,-16,-4,1020,SE,2.68,0,1
3,2012,1,1,0,10,1,2,1000,cv,0.5,3,0
"""


@pytest.fixture
def prepare():
    spec = importlib.util.spec_from_file_location("pm25_prepare", SCRIPT)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
