"""`ternmesh backup` and `restore`: what a copy holds, and what is not overwritten."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ternmesh.federated.events import GlobalUpdateMade
from ternmesh.plan import make_plan
from ternmesh.security.identity import Role
from ternmesh.security.membership import found_fleet
from ternmesh_cli.keys import keyring_at
from ternmesh_cli.main import main
from ternmesh_service.backup import answer_backup
from ternmesh_service.control_socket import BACKUP, ControlServer, Relay
from ternmesh_service.identity_file import make_identity_file
from ternmesh_store.host_store import HostStore
from ternmesh_store.state_file import STATE, StateFile

MODEL = bytes(range(32))
PLAN = make_plan(8, rounds=9, local_steps=1, learning_rate=0.1)
RUN = b"run-id-8"


class Host:
    """A host's configuration, its state folder, and commands for it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder / "state"
        self._config = folder / "host.toml"
        self._config.write_text('state_dir = "state"\nmodel = "keyword"\n')
        self._capsys = capsys

    def ternmesh(self, command: str, folder: Path, *options: str) -> tuple[int, str]:
        code = main([command, str(folder), "--config", str(self._config), *options])
        shown = self._capsys.readouterr()
        return code, shown.out + shown.err

    def reach(self, version: int, run: bytes = RUN) -> None:
        """A state whose run has this version."""
        state = StateFile(self.folder)
        state.open()
        store = HostStore(state)
        began = store.begin(run, PLAN, MODEL).state
        made = GlobalUpdateMade(
            version, bytes(16), b"content", began.model_q24, began.residual, (), (), False
        )
        store.record(made)
        store.commit()
        state.close()
        if not (self.folder / "identity").exists():
            make_identity_file(self.folder / "identity", "host", Role.HOST)

    def found(self) -> None:
        """Found a fleet of one board."""
        with keyring_at(self.folder, "host", Role.HOST) as keyring:
            keyring.adopt(found_fleet("attic", keyring.own.public))

    @property
    def version(self) -> int:
        return StateFile(self.folder).content().runs[RUN]


@pytest.fixture
def host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Host:
    made = Host(tmp_path, capsys)
    made.reach(3)
    return made


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda host: host.reach(4), "has reached global update 4 of run"),
        (lambda host: host.reach(1, b"other-id"), "holds nothing of it"),
        (lambda host: host.found(), "has the members of a fleet"),
    ],
)
def test_what_is_newer_or_other_is_overwritten_with_force_only(
    host: Host, tmp_path: Path, change: Callable[[Host], Any], sentence: str
) -> None:
    host.ternmesh("backup", tmp_path / "copy")
    key = (host.folder / "identity").read_text()
    change(host)
    (host.folder / "identity").chmod(0o600)
    before = (host.folder / STATE).read_bytes()
    code, said = host.ternmesh("restore", tmp_path / "copy")
    assert code == 1
    assert sentence in said
    assert "--force" in said
    assert (host.folder / STATE).read_bytes() == before
    assert host.ternmesh("restore", tmp_path / "copy", "--force")[0] == 0
    assert host.version == 3
    assert (host.folder / "identity").read_text() == key
    assert (host.folder / f"{STATE}.replaced-1").exists()


def emptied(copy: Path) -> None:
    (copy / STATE).unlink()
    state = StateFile(copy)
    state.open()
    state.close()


def of_a_board(copy: Path) -> None:
    state = StateFile(copy)
    state.open()
    state.write("INSERT INTO node_value VALUES ('key', x'00')")
    state.commit()
    state.close()


def other_identity(copy: Path) -> None:
    (copy / "identity").unlink()
    make_identity_file(copy / "identity", "ada", Role.NODE)


def with_a_trigger(copy: Path) -> None:
    sql = "CREATE TRIGGER t AFTER INSERT ON host_run BEGIN DELETE FROM host_run; END"
    with closing(sqlite3.connect(copy / STATE)) as connection:
        connection.execute(sql)
        connection.commit()


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (emptied, "holds no fleet and no run"),
        (of_a_board, "is of a node: name a copy of host"),
        (other_identity, "is the identity of ada (node)"),
        (with_a_trigger, "is damaged (its tables)"),
    ],
)
def test_a_copy_that_is_spoilt_or_of_another_is_refused(
    host: Host, tmp_path: Path, spoil: Callable[[Path], None], sentence: str
) -> None:
    copy = tmp_path / "copy"
    host.ternmesh("backup", copy)
    spoil(copy)
    before = {path.name: path.read_bytes() for path in host.folder.iterdir()}
    code, said = host.ternmesh("restore", copy)
    assert code == 1
    assert sentence in said
    assert f"{STATE}.restored" not in said
    assert {path.name: path.read_bytes() for path in host.folder.iterdir()} == before


@pytest.fixture
def running(host: Host) -> Iterator[StateFile]:
    """A program that holds the state, and answers requests for copies."""
    state, relay, stop = StateFile(host.folder), Relay(), threading.Event()

    def work() -> None:
        state.open()
        state.write("UPDATE host_run SET version = 5")
        state.commit()
        while not stop.wait(0.01):
            relay.serve(lambda request: answer_backup(state, host.folder / "identity", request))
        state.close()

    thread = threading.Thread(target=work)
    with ControlServer(host.folder / "control.sock", relay.ask):
        thread.start()
        yield state
        stop.set()
        thread.join()


def test_nothing_is_restored_under_a_running_program(
    host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host.ternmesh("backup", tmp_path / "copy")
    state = StateFile(host.folder)
    state.open()  # as a program does whose socket is elsewhere
    state.write("UPDATE host_run SET version = 5")
    code, said = host.ternmesh("restore", tmp_path / "copy", "--force")
    assert code == 1
    assert "another process uses" in said
    state.close()
    with ControlServer(host.folder / "control.sock", lambda _: {BACKUP: []}):
        code, said = host.ternmesh("restore", tmp_path / "copy", "--force")
    assert code == 1
    assert "stop it" in said


def test_a_copy_that_a_unit_has_made_in_its_own_tmp_is_told(host: Host, tmp_path: Path) -> None:
    with ControlServer(host.folder / "control.sock", lambda _: {BACKUP: [STATE]}):
        code, said = host.ternmesh("backup", tmp_path / "copy")
    assert (code, "copy is not there: host runs as a unit" in said) == (1, True)
