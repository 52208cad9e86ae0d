"""`ternmesh decommission`: a board is wiped and a host lets it go; each part may be repeated."""

import json
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
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
from ternmesh.security.identity import parse_identity
from ternmesh_cli.broker import folder as broker_folder
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


KEPT = {"airtime.db", "notes.txt", "identity.toml", MARKER}


def test_a_board_is_wiped_after_a_confirmation(ends: Ends) -> None:
    folder = ends.folder / "ada"
    full(folder)
    before = names(folder)
    code, said = ends.run("ada")
    assert (code, names(folder)) == (2, before)
    assert "--yes" in said
    assert ends.run("ada", "--yes")[0] == 0
    assert names(folder) == KEPT
    code, said = ends.run("ada", "--yes")
    assert (code, said) == (0, "board        the keys and the state of ada are wiped\n")


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
        assert (code, names(folder)) == (0, KEPT)
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


def test_a_board_is_wiped_whatever_is_left_of_its_folder(ends: Ends) -> None:
    """An identity elsewhere goes, too, and a state of a newer version."""
    key = ends.folder / "key"
    (ends.folder / "ada" / IDENTITY).rename(key)
    (ends.folder / "ada.toml").write_text(f'{NODE}[security]\nidentity_file = "{key}"\n')
    with closing(sqlite3.connect(ends.folder / "ada" / STATE)) as state:
        state.execute("PRAGMA user_version = 999")
    assert ends.run("ada", command="node")[0] == 1
    assert ends.run("ada", "--yes") == (0, "board        the keys and the state of ada are wiped\n")
    assert names(ends.folder / "ada") == {MARKER}
    assert not key.exists()
    key.write_bytes(SECRET)
    shutil.rmtree(ends.folder / "ada")
    assert ends.run("ada", "--yes")[0] == 0
    assert not key.exists()


def test_files_beside_an_identity_of_another_name_stay(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    for name in ("board", "board.next", "board.toml", "board-2", "board.replaced-x"):
        (tmp_path / name).write_bytes(SECRET)
    wipe(tmp_path / "state", tmp_path / "board")
    assert names(tmp_path) == {"state", "board.toml", "board-2", "board.replaced-x"}


def test_a_wiped_board_may_begin_again(ends: Ends) -> None:
    old = ends.run("ada", "--json", command="enrol identity")[1]
    assert ends.run("ada", "--yes")[0] == 0
    assert ends.run("ada", command="node")[0] == 0, "its unit does not start it again"
    (ends.folder / "ada" / STATE).write_bytes(b"the wipe was not complete")
    code, new = ends.run("ada", "--json", command="enrol identity")
    assert code == 0
    lines = [parse_identity(json.loads(said)["identity"]) for said in (old, new)]
    assert lines[0] != lines[1]
    assert not (ends.folder / "ada" / MARKER).exists()


def test_what_a_restore_brings_back_is_not_wiped(ends: Ends, tmp_path: Path) -> None:
    assert ends.run("ada", str(tmp_path / "copy"), command="backup")[0] == 0
    assert ends.run("ada", "--yes")[0] == 0
    assert ends.run("ada", str(tmp_path / "copy"), command="restore")[0] == 0
    assert not (ends.folder / "ada" / MARKER).exists()
    assert {IDENTITY, STATE} <= names(ends.folder / "ada")


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


def test_a_host_lets_a_board_go_in_one_command(ends: Ends) -> None:
    folder = str(ends.folder / "broker")
    config = ["broker", "config", "--dir", folder, "--fleet", "garden", "--name", "localhost"]
    assert main([*config, "--node", "ada", "--node", "bo"]) == 0
    for _ in range(2):  # it is safe to repeat
        code, said = ends.run("host", "ada", "--yes", "--broker", folder)
        assert code == 0
        parts = [
            line.split()[0]
            for line in said.splitlines()
            if not line.startswith(("wrote", "garden"))
        ]
        assert parts[-3:] == ["key", "gateways", "broker"]
        assert "reload a running mosquitto" in said
        state = ends.members().member_list.state
        assert len(state.decommissioned) == 1
        assert state.decommissioned == state.revoked
        accounts = {account.role for account in broker_folder.known(Path(folder))}
        assert accounts == {"host", "bo"}
        assert not (Path(folder) / "credentials" / "ada.credentials.toml").exists()
        assert "garden~ada" not in (Path(folder) / "access").read_text()


def test_a_part_that_fails_is_said_and_done_the_next_time(ends: Ends) -> None:
    folder = ends.folder / "broker"
    code, said = ends.run("host", "ada", "--yes", "--broker", str(folder))
    assert code == 1
    assert "key          revoked for good" in said
    assert "cannot be read" in said
    assert ends.members().member_list.state.decommissioned
    main(
        [
            "broker",
            "config",
            "--dir",
            str(folder),
            "--fleet",
            "garden",
            "--name",
            "a",
            "--node",
            "ada",
        ]
    )
    passwords = folder / "passwords"
    half = "".join(line for line in passwords.open() if "garden~ada" not in line)
    passwords.write_text(half)  # a removal that was killed in the middle
    assert ends.run("host", "ada", "--yes", "--broker", str(folder))[0] == 0
    assert "garden~ada" not in (folder / "access").read_text()
    assert not list((folder / "credentials").glob("ada*"))


@pytest.mark.parametrize(
    ("who", "arguments", "code", "sentence"),
    [
        ("host", (), 2, "name the board"),
        ("host", ("ada",), 2, "add --yes"),
        ("host", ("cleo", "--yes"), 1, "cleo is not enrolled"),
        ("host", ("..", "--yes"), 2, "name"),
        ("ada", ("ada", "--yes"), 2, "for the host"),
        ("ada", ("--yes", "--broker", "x"), 2, "for the host"),
    ],
)
def test_what_is_wrong_is_a_sentence_and_changes_nothing(
    ends: Ends, who: str, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    before = names(ends.folder / "ada")
    found, said = ends.run(who, *arguments)
    assert (found, sentence in said) == (code, True), said
    assert names(ends.folder / "ada") == before
    assert not ends.members().member_list.state.revoked
