"""What was recorded before: read whole, split, and found by the board."""

import numpy as np
import pytest

from edge.data import history
from edge.data.history import read_history, write_history
from edge.data.sources import HELD_OUT, HISTORY, TRAIN, NpzSettings, open_folder
from edge.errors import DataError, NoData
from ternmesh.config import ConfigError

ROWS = {"columns": ("a", "b"), "target": "kind"}


def test_the_rows_of_a_file_are_split_by_time(package, tmp_path) -> None:
    path, model = tmp_path / "log.csv", package(2)
    path.write_text(
        "a;b;kind\n" + "".join(f"{n},5;{n};{n % 3}\n" for n in range(20)) + "x;1;1\n9;9;2"
    )
    found = read_history(path, model, ROWS)
    assert len(found.samples) == 21
    assert found.left_out == {"no number in column a": 1}
    assert found.first == {"no number in column a": "'x;1;1'"}
    assert write_history(tmp_path, found, 0.2, by_order=True) == (17, 4)
    train, held_out = (
        open_folder(tmp_path / HISTORY / name, model, NpzSettings()) for name in (TRAIN, HELD_OUT)
    )
    assert train.batch(np.arange(17))["x"][:, 0].tolist() == [n + 0.5 for n in range(17)]
    assert held_out.batch(np.arange(4))["x"][:, 1].tolist() == [17, 18, 19, 9]


def test_the_files_of_a_folder_are_split_by_their_content(package, tmp_path) -> None:
    model = package(2)
    for number in range(40):
        folder = tmp_path / "files" / str(number % 3)
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{number}.npy", np.array([number, 1], np.float32))
    np.save(tmp_path / "files" / "loose.npy", np.zeros(2))
    found = read_history(tmp_path / "files", model, {})
    assert len(found.samples) == 40
    assert found.left_out == {"without a label": 1}
    assert write_history(tmp_path, found, 0.25, by_order=False) == (30, 10)
    first = (tmp_path / HISTORY / HELD_OUT).read_bytes()
    write_history(tmp_path, found, 0.25, by_order=False)
    assert (tmp_path / HISTORY / HELD_OUT).read_bytes() == first


@pytest.mark.parametrize(
    ("text", "options", "kind", "sentence"),
    [
        ("a,b\n1,2\n", {}, DataError, "log.csv is no folder: of a CSV file say --columns"),
        ("a,b\n1,2\n", ROWS | {"horizon": 10**20}, ConfigError, "horizon .* must be 0 to 10000"),
        ("a,b,state\n1,2,1\n", ROWS, DataError, "no column kind: its first line is 'a,b,state'"),
        ("a,c,kind\n1,2,1\n", ROWS, DataError, "no column b: its first line is 'a,c,kind'"),
        ("a,b,kind\n1,2,1\n", ROWS, NoData, "1 samples have a label"),
        ("a,b,kind\n", ROWS, NoData, "0 .*: 1 file without the 1 good rows that one sample"),
        (
            "a,b,kind\nx,2,1\n1,2,maybe\n",
            ROWS,
            NoData,
            r"0 samples .*; left out: 1 no label in column kind \(first: 'maybe'\); left out: 1",
        ),
    ],
)
def test_what_cannot_be_imported_is_one_sentence(
    package, tmp_path, text, options, kind, sentence
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(kind, match=sentence):
        write_history(tmp_path, read_history(path, package(2), options), 0.2, by_order=True)
    assert not (tmp_path / HISTORY).exists()
    with pytest.raises(DataError, match=r"nosuch\.csv is not there"):
        read_history(tmp_path / "nosuch.csv", package(2), {})


@pytest.mark.parametrize(("line", "left_out"), [("1,2,0\n", None), ("1,2,\n", "without a label")])
def test_a_long_table_takes_little_memory(
    package, tmp_path, monkeypatch, line: str, left_out: str | None
) -> None:
    monkeypatch.setattr(history, "WAITING_MAX", 10)
    monkeypatch.setattr(history, "BYTES_MAX", 100 << 10)
    path, model = tmp_path / "log.csv", package(2)
    path.write_text("a,b,kind\n" + 1000 * line)
    if left_out is None:
        with pytest.raises(DataError, match="has more than 98 samples: import a part of it"):
            read_history(path, model, ROWS)
    else:
        assert read_history(path, model, ROWS).left_out[left_out] == 1000
