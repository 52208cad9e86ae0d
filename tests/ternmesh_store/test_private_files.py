"""Files of state are kept from others, also in a folder that everybody may read."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ternmesh.link.ledger import Moment
from ternmesh_store.files import replace_file
from ternmesh_store.state_file import StateFile


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    before = os.umask(0o022)
    (tmp_path / "state").mkdir(0o755)
    yield tmp_path / "state"
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


def test_only_its_owner_may_read_a_file(folder: Path) -> None:
    state = StateFile(folder)
    state.open()
    ledger = state.airtime()
    ledger.open(Moment("boot", 1.0, 1.0))
    assert {"state.sqlite", "airtime.db"} < modes(folder).keys()
    assert set(modes(folder).values()) == {0o600}
    for file in (state, ledger):
        file.close()


def test_a_link_in_the_place_of_an_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "signatures.new").symlink_to(tmp_path / "victim")
    replace_file(tmp_path / "signatures", b"signed")
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert (tmp_path / "signatures").read_bytes() == b"signed"


def test_what_was_left_open_to_all_is_closed(folder: Path, in_killed_process) -> None:
    state = StateFile(folder)

    def work() -> None:
        state.open()
        state.insert("link_number", 7)
        state.commit()

    in_killed_process(work)
    assert set(modes(folder)) == {"state.sqlite", "state.sqlite-wal"}
    for file in folder.iterdir():
        file.chmod(0o644)
    state.open()
    assert set(modes(folder).values()) == {0o600}
    assert state.rows("SELECT next FROM link_number") == [(7,)]
    state.close()
