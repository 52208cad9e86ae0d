"""Files are read with a limit, and kept from others: what is no regular file is refused at once."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge.config import read_node_config
from edge.data.sources import NpzSettings, open_folder
from edge.onnx.check import check_file
from edge.onnx.session import load_model
from models.zoo import package_path
from ternmesh.config import ConfigError, read_toml
from ternmesh.errors import TernmeshError
from ternmesh.link.ledger import Moment
from ternmesh_cli import keys
from ternmesh_service.config_file import load_model_package
from ternmesh_service.identity_file import read_identity_file
from ternmesh_store import files
from ternmesh_store.state_file import StateFile

PACKAGE = load_model(package_path("keyword")).package


def fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, 1 << 40)


READERS: dict[str, Callable[[Path], object]] = {
    "settings": read_node_config,
    "settings for keys": keys.read,
    "identity": read_identity_file,
    "data": lambda path: open_folder(path, PACKAGE, NpzSettings()),
    "data in a folder": lambda path: open_folder(path.parent, PACKAGE, NpzSettings()),
    "model": lambda path: load_model_package(str(path.parent)),
    "graph": check_file,
}


IN_PARTS = ("data", "data in a folder", "graph")  # these may be large


@pytest.mark.parametrize(
    ("make", "reader"),
    [(make, name) for name in READERS for make in (fifo, device, huge)[: 3 - (name in IN_PARTS)]],
)
def test_what_is_no_file_of_the_kind_is_refused_at_once(tmp_path, make, reader) -> None:
    path = tmp_path / {"model": "model.json"}.get(reader, "a.npz")
    make(path)
    with pytest.raises(TernmeshError, match=r"no regular file|more than the|cannot be read"):
        READERS[reader](path)


def test_a_copy_has_a_limit_and_its_mode(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1234")
    files.copy_file(tmp_path / "a", tmp_path / "b", 4, 0o600)
    assert (tmp_path / "b").read_bytes() == b"1234"
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
    with pytest.raises(files.UnfitFile, match="more than the 3 bytes"):
        files.copy_file(tmp_path / "a", tmp_path / "c", 3)
    assert files.read_file(tmp_path / "a", 4) == b"1234"


def test_a_key_of_many_names_is_refused_before_it_takes_memory() -> None:
    with pytest.raises(ConfigError, match="a line has more than 100 dots"):
        read_toml(".".join("a" * 30_000) + " = 1\n")


@pytest.mark.parametrize("content", ["name = 'ä'".encode("latin-1"), "name = 1".encode("utf-16")])
def test_settings_in_another_encoding_are_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "node.toml"
    path.write_bytes(content)
    for read in (read_node_config, keys.read):
        with pytest.raises(ConfigError, match=r"cannot be read \(it is no text in UTF-8\)"):
            read(path)


def test_a_folder_that_we_make_is_its_owners_and_not_for_git(tmp_path: Path) -> None:
    files.make_private_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "b" / files.GITIGNORE).read_text() == "*\n"
    files.make_private_folder(tmp_path)
    assert not (tmp_path / files.GITIGNORE).exists()
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(NotADirectoryError, match="no folder, or a link to none"):
        files.make_private_folder(tmp_path / "link")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    before = os.umask(0o022)
    (tmp_path / "state").mkdir(0o755)
    yield tmp_path / "state"
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


def test_a_link_in_the_place_of_an_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "signatures.new").symlink_to(tmp_path / "victim")
    files.replace_file(tmp_path / "signatures", b"signed")
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert (tmp_path / "signatures").read_bytes() == b"signed"


def test_only_its_owner_may_read_what_was_left_open_to_all(folder: Path, in_killed_process) -> None:
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
    ledger = state.airtime()
    ledger.open(Moment("boot", 1.0, 1.0))
    assert {"state.sqlite", "airtime.db"} < modes(folder).keys()
    assert set(modes(folder).values()) == {0o600}
    ledger.close()
    assert state.rows("SELECT next FROM link_number") == [(7,)]
    state.close()
