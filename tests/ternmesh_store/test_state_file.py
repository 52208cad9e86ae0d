"""One file and one commit for all that a process stores."""

from pathlib import Path

import pytest

from ternmesh.federated.events import CountersReserved
from ternmesh.link.events import ObjectArrived
from ternmesh.link.ledger import Moment
from ternmesh.link.regions import EU868
from ternmesh.security.session import CloneCount
from ternmesh_store.database import DamagedError, StoreError
from ternmesh_store.host_store import HostStore
from ternmesh_store.link_store import LinkStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.security_store import SecurityStore
from ternmesh_store.state_file import HOST, SECURITY, STATE, StateFile
from ternmesh_store.store import HOP

MODEL, DIMENSION = bytes(32), 50


def opened(folder: Path, keep: tuple[str, ...] | None = None) -> StateFile:
    state = StateFile(folder)
    state.open(keep)
    return state


def record_all(state: StateFile) -> None:
    NodeStore(state).record(CountersReserved(4096))
    state.link().record(CountersReserved(64))
    state.link().record(ObjectArrived("ada", b"name", b"payload"))
    SecurityStore(state).record(HOP, (CloneCount("ada", 3),))


def found(state: StateFile) -> tuple[object, ...]:
    node = NodeStore(state).load(MODEL, DIMENSION)
    link = LinkStore(state)
    clones = SecurityStore(state).sealing(HOP).clones
    return node.counter, link.load().counter, len(link.inbox()), clones


def damage(state: StateFile, table: str) -> None:
    """Close the file, and overwrite the first page of a table."""
    sql = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name LIKE ?"
    page = state.rows(sql, table)[0][0]
    state.close()
    with state.path.open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xff" * 4096)


@pytest.mark.parametrize("commit", [False, True])
def test_one_commit_makes_all_of_it_durable(reopen, commit: bool) -> None:
    state = reopen()
    record_all(state)
    if commit:
        state.link().commit()  # that of any store
    assert found(reopen()) == ((4096, 64, 1, (CloneCount("ada", 3),)) if commit else (0, 0, 0, ()))


@pytest.mark.parametrize("group", [SECURITY, HOST])
def test_what_a_program_cannot_do_without_is_not_given_up(tmp_path: Path, group: str) -> None:
    state = opened(tmp_path)
    record_all(state)
    HostStore(state).load(MODEL)
    state.commit()
    damage(state, f"{group}_%")
    damaged = (tmp_path / STATE).read_bytes()
    with pytest.raises(DamagedError):
        opened(tmp_path, keep=(group,))
    assert (tmp_path / STATE).read_bytes() == damaged
    other = {SECURITY: HOST, HOST: SECURITY}[group]
    state = opened(tmp_path, keep=(other,))
    assert state.link().inbox() == [(1, "ada", b"payload")]
    state.close()


def test_each_radio_has_a_ledger_of_its_own_beside_the_state(tmp_path: Path) -> None:
    state, now = opened(tmp_path), Moment("boot", 100.0, None)
    band = next(band for band in EU868.sub_bands if band.budget_us is not None)
    first, second = state.airtime(), state.airtime("far")
    for ledger in (first, second):
        ledger.open(now)
    assert first.reserve(band, now, 100_000)
    assert second.ledger(band, now).spent_us(now.now_s) == 0
    assert first.path.parent == tmp_path
    assert second.path.parent == tmp_path / "link-far"
    for file in (first, second, state):
        file.close()


def test_a_folder_that_may_not_be_read_is_a_sentence_about_the_state(tmp_path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.stat", refuse)  # root may read everything
    with pytest.raises(StoreError, match=r"cannot open .*state\.sqlite: Permission denied"):
        opened(tmp_path)
