"""`ternmesh decommission`: a board is wiped and a host lets it go; each part may be repeated."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import edge.split.service
from edge.config import DataConfig
from edge.split.config import SplitBoardConfig
from edge.split.node import SplitNode
from edge.split.service import run_split_board
from ternmesh.federated.events import Decommissioned
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.main import main
from ternmesh_service import wipe as wipe_module
from ternmesh_service.control_socket import ControlServer
from ternmesh_service.identity_file import IDENTITY
from ternmesh_service.keyring import Keyring, SecurityConfig
from ternmesh_service.wipe import MARKER, DecommissionOrdered, wipe
from ternmesh_store.state_file import STATE, StateFile
from transports.link_config import LinkConfig
from transports.loopback import LoopbackHub

HOST = 'state_dir = "host"\nmodel = "keyword"\n[link]\nfleet = "garden"\n'
NODE = 'name = "ada"\nstate_dir = "ada"\nmodel = "keyword"\n[link]\nfleet = "garden"\n'
NODE += 'url = "mqtt://127.0.0.1:1"\n'
NODE += '[data]\npath = "clips"\n'
SECRET = b"TM1-PRIVATE"


class Ends:
    """The files of a host and of the board ada, and the command."""

    def __init__(self, folder: Path, capsys: Any) -> None:
        self.folder, self._capsys = folder, capsys
        enrol_fleet("garden", folder / "host", {n: folder / n for n in ("ada", "bo")})
        (folder / "host.toml").write_text(HOST)
        (folder / "ada.toml").write_text(NODE)

    def run(self, who: str, *arguments: str, command: str = "decommission") -> tuple[int, str]:
        code = main([*command.split(), *arguments, "--config", str(self.folder / f"{who}.toml")])
        shown = self._capsys.readouterr()
        return int(code), shown.out + shown.err

    def members(self) -> Keyring:
        ring = Keyring(StateFile(self.folder / "host"), SecurityConfig())
        ring.state.open()
        ring.open()
        ring.state.close()
        return ring


@pytest.fixture
def ends(tmp_path: Path, capsys: Any) -> Ends:
    return Ends(tmp_path, capsys)


def full(folder: Path) -> None:
    """All that a board may have in its folder."""
    for name in (
        f"{IDENTITY}.next",
        f"{IDENTITY}.new",
        f"{IDENTITY}.next.replaced-2",
        f"{IDENTITY}.replaced-1",
        f"{STATE}-wal",
        f"{STATE}.damaged-1",
        f"{STATE}.replaced-1",
        "current.onnx_adapter",
    ):
        (folder / name).write_bytes(SECRET)
    for name in ("airtime.db", "notes.txt", "identity.toml"):
        (folder / name).write_bytes(b"mine")


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()} - {".gitignore"}


def test_a_board_that_runs_is_not_wiped(ends: Ends) -> None:
    folder = ends.folder / "ada"
    before = names(folder)
    with ControlServer(folder / "control.sock", lambda _: {"name": "ada"}):
        code, said = ends.run("ada", "--yes")
        assert (code, "stop it" in said) == (1, True)
    state = StateFile(folder)
    state.open()  # a program without a control socket
    code, said = ends.run("ada", "--yes")
    assert (code, "another process uses" in said) == (1, True)
    state.close()
    assert names(folder) == before


def test_what_lies_on_the_disk_is_overwritten(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ends.folder / "ada"
    full(folder)
    seen: dict[str, bytes] = {}
    unlink = Path.unlink

    def look(path: Path, missing_ok: bool = False) -> None:
        if path.parent == folder and path.exists():
            seen[path.name] = path.read_bytes()
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", look)
    wipe(folder, folder / IDENTITY)
    assert {IDENTITY, STATE, f"{IDENTITY}.next"} <= seen.keys()
    assert not any(content.strip(b"\0") for content in seen.values())
    assert all(seen.values()), "of the same length"


@pytest.mark.nightly
def test_a_wipe_that_is_killed_goes_on(tmp_path: Path, capsys: Any) -> None:
    """At each file, before and after it is gone."""

    class Killed(BaseException):
        pass

    at = 0
    killed = True
    while killed:
        at += 1
        ends = Ends(tmp_path / str(at), capsys)
        folder = ends.folder / "ada"
        full(folder)
        left = [at]

        def cut(act: Callable[..., Any], left: list[int] = left) -> Callable[..., Any]:
            def run(*arguments: Any, **keywords: Any) -> Any:
                result = None
                for step in (None, act):
                    result = step and step(*arguments, **keywords)
                    left[0] -= 1
                    if left[0] == 0:
                        raise Killed
                return result

            return run

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "touch", cut(Path.touch))
            patch.setattr(wipe_module, "_overwrite", cut(wipe_module._overwrite))
            try:
                wipe(folder, folder / IDENTITY)
                killed = False
            except Killed:
                pass
        if not (folder / MARKER).exists():
            assert (folder / IDENTITY).exists(), "nothing is gone"
            continue
        code, _ = ends.run("ada", command="node")  # the next start wipes the rest, and is done
        assert (code, names(folder)) == (0, {"airtime.db", "notes.txt", "identity.toml", MARKER})
    assert at > 15, "the cuts were not made"


def test_what_cannot_be_wiped_is_said_and_the_rest_is_gone(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ends.folder / "ada"
    overwrite = wipe_module._overwrite

    def refuse(file: Path) -> None:
        if file.name == IDENTITY:
            raise PermissionError(30, "Read-only file system")
        overwrite(file)

    monkeypatch.setattr(wipe_module, "_overwrite", refuse)
    code, said = ends.run("ada", "--yes")
    assert (code, names(folder)) == (1, {IDENTITY, MARKER})
    assert f"cannot wipe {folder / IDENTITY} (Read-only file system): delete it by hand" in said


def test_a_split_board_wipes_itself_too(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ends.folder / "ada"
    monkeypatch.chdir(ends.folder)
    link = LinkConfig(url="mqtt://127.0.0.1:1", fleet="garden")
    board = SplitBoardConfig("ada", "ada", "model", link, DataConfig(path="clips"))
    for name in ("load_parts", "with_labels", "open_folder", "warn_of_shared", "SplitNode"):
        monkeypatch.setattr(edge.split.service, name, MagicMock())
    monkeypatch.setattr(edge.split.service, "make_transport", lambda *_: LoopbackHub().node("ada"))
    turn = edge.split.service.SplitNode.return_value.turn  # type: ignore[attr-defined]
    turn.side_effect = DecommissionOrdered("by the host")
    assert run_split_board(board, threading.Event()) is None
    assert not (folder / IDENTITY).exists()
    with pytest.raises(DecommissionOrdered):
        SplitNode._react(MagicMock(), Decommissioned())
