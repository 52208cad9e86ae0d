"""Files of state are kept from others, also in a folder that everybody may read."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ternmesh.link.ledger import Moment
from ternmesh_store.database import Database, Schema
from ternmesh_store.files import replace_file
from ternmesh_store.state_file import StateFile

SCHEMA = Schema(0x54455354, 1, ("CREATE TABLE item (name TEXT PRIMARY KEY)",))

OPEN: dict[str, Callable[[Path], object]] = {
    "airtime.db": lambda folder: StateFile(folder).airtime().open(Moment("boot", 1.0, 1.0)),
    "state.sqlite": lambda folder: StateFile(folder).open(),
}


@pytest.fixture(autouse=True)
def _others_may_read() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def folder_of_all(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o755)
    return folder


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.mark.parametrize("name", OPEN)
def test_only_its_owner_may_read_a_file(tmp_path: Path, name: str) -> None:
    folder = folder_of_all(tmp_path)
    OPEN[name](folder)
    assert modes(folder)[name] == 0o600
    assert set(modes(folder).values()) == {0o600}


def test_a_link_in_the_place_of_an_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "signatures.new").symlink_to(tmp_path / "victim")
    replace_file(tmp_path / "signatures", b"signed")
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert (tmp_path / "signatures").read_bytes() == b"signed"


def test_what_an_earlier_version_left_open_to_all_is_closed(tmp_path, in_killed_process) -> None:
    folder = folder_of_all(tmp_path)
    path = folder / "test.sqlite"

    def work() -> None:
        database = Database(path, SCHEMA)
        database.open()
        database.write("INSERT INTO item VALUES ('kept')")
        database.commit()

    in_killed_process(work)
    assert set(modes(folder)) == {"test.sqlite", "test.sqlite-wal"}
    for file in folder.iterdir():
        file.chmod(0o644)
    database = Database(path, SCHEMA)
    database.open()
    assert set(modes(folder).values()) == {0o600}
    assert database.rows("SELECT name FROM item") == [("kept",)]
    database.close()
