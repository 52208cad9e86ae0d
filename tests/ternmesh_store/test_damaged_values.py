"""Damaged state: what is read is what was written, or the program says what is wrong."""

import logging
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ternmesh.federated.events import (
    BoardChanged,
    BodyAccepted,
    CountersReserved,
    GlobalUpdateMade,
    Joined,
    NodeJoined,
    UpdateMade,
)
from ternmesh.federated.local_update import make_update
from ternmesh.link.events import (
    LinkCountersReserved,
    ObjectArrived,
    Queued,
    SymbolHeld,
    TransferBegun,
)
from ternmesh.link.ledger import Moment
from ternmesh.link.messages import Offer
from ternmesh.link.regions import REGIONS
from ternmesh.plan import make_plan
from ternmesh.wire.control import Silent, write_control
from ternmesh.wire.global_update import Counted, certify, hash_global_update
from ternmesh_store.airtime_store import SCHEMA, AirtimeStore
from ternmesh_store.database import Database, StoreError
from ternmesh_store.host_store import HostStore
from ternmesh_store.link_store import LinkStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.split_store import Checkpoint, SplitStore
from ternmesh_store.state_file import STATE, StateFile

MODEL, RUN = bytes(32), b"runrunru"
PLAN = make_plan(50, rounds=5, local_steps=1, learning_rate=0.1)
PACKET = make_update(np.ones(50, np.float32), MODEL, 1, 10, PLAN)
NAN = np.full(50, np.nan, "<f4").tobytes()
KEY = "UPDATE {}_value SET value = ? WHERE key = '{}'"


def node_of(state: StateFile) -> Callable[[], object]:
    store = NodeStore(state)
    store.load(MODEL, 50)
    for event in (CountersReserved(4096), Joined(RUN, 7, PLAN), UpdateMade(PACKET)):
        store.record(event)
    return lambda: store.load(MODEL, 50)


def host_of(state: StateFile) -> Callable[[], object]:
    store = HostStore(state)
    store.begin(RUN, PLAN, MODEL)
    counted, hashed = Counted(3, 0, b"dige", b"\x01"), hash_global_update(b"content")
    made = (np.zeros(50, np.int32), np.zeros(50, np.float32), (counted,), (), False)
    store.record(CountersReserved(4096))
    store.record(NodeJoined(3, "ada", 10))
    store.record(GlobalUpdateMade(1, hashed, certify(b"content"), *made))
    store.record(BoardChanged("ada", 1, (), None))
    for body in PACKET.bodies:
        store.record(BodyAccepted(3, 1, body))
    return lambda: (store.load(MODEL), store.history(), store.boards(0.0))


def link_of(state: StateFile) -> Callable[[], object]:
    store = LinkStore(state)
    store.record(LinkCountersReserved(4096))
    for number in range(2):
        store.record(Queued(number, "ada", ("ada",), b"payload"))
        store.record(TransferBegun(number, number))
    store.record(SymbolHeld("bob", Offer(3, 1, b"name", 60, 20), 0, bytes(20)))
    store.record(ObjectArrived("bob", b"eman", b"payload"))
    return store.load


def split_of(state: StateFile) -> Callable[[], object]:
    store = SplitStore(state)
    store.reserve(4096)
    store.add_board(1, "theo")
    store.save(Checkpoint(MODEL, RUN, {"theo": 3}))
    return lambda: (store.load(()), store.boards(), store.counter())


FILLED = {"node": node_of, "host": host_of, "link": link_of, "split": split_of}


def contents(state: StateFile) -> dict[str, list[Any]]:
    """All rows of an open file."""
    tables = state.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return {name: sorted(state.rows(f"SELECT * FROM {name}"), key=repr) for (name,) in tables}


def damage(folder: Path, rng: random.Random) -> None:
    """Damage one file of a state folder as a failing card or a power cut does."""
    path = folder / rng.choice((STATE, STATE, f"{STATE}-wal"))
    if path.name == STATE and rng.random() < 0.5:  # as after an end in order
        sqlite3.connect(path).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
    content = bytearray(path.read_bytes())
    match rng.choice((1, 8, 64, 512, 4096, None)):
        case None:
            content = content[: rng.randrange(len(content))]
        case 512 | 4096 as size:
            start = rng.randrange(len(content) // size) * size
            content[start : start + size] = bytes(size)
        case count:
            for _ in range(count):
                content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
    path.write_bytes(content)


def test_no_damage_is_passed_over_in_silence(reopen, tmp_path, caplog) -> None:
    state = reopen(tmp_path / "live")
    for number, fill in enumerate(FILLED.values()):
        fill(state)
        state.commit()
        if number == 1:
            state.checkpoint()
    before = contents(state)
    for seed in range(60):
        folder = shutil.copytree(tmp_path / "live", tmp_path / "damaged")
        damage(folder, random.Random(seed))
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            try:
                state = reopen(folder, ("security", "host"))
            except StoreError as error:
                assert f"{folder / STATE} is damaged" in str(error), seed  # noqa: PT017
            else:
                assert caplog.records or contents(state) == before, seed
                state.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("kind", "sql", "value"),
    [
        ("node", "UPDATE node_run SET plan = ?", "[0,0,0,0,0,0,0,0,0,0,0]"),
        ("node", "UPDATE node_run SET plan = ?", "[" * 3000),
        ("node", KEY.format("node", "residual"), NAN),
        ("node", KEY.format("node", "residual"), bytes(196)),
        ("node", "DELETE FROM node_value WHERE ? = ''", ""),
        ("node", "UPDATE node_run SET silences = ?", b"x"),
        ("node", "UPDATE security_counter SET reserved = ?", -1),
        ("node", "UPDATE node_run SET global_hash = ?", b""),
        ("node", "UPDATE node_pending SET round = ?", -1),
        ("node", "UPDATE node_pending SET digest = ?", b"abcd"),
        ("node", "UPDATE node_pending_body SET body = ? WHERE position = 0", b""),
        ("node", "UPDATE node_pending_body SET body = ? WHERE position = 1", bytes(80)),
        ("host", "UPDATE host_run SET plan = ?", "{}"),
        ("host", KEY.format("host", "model_q24"), bytes(4)),
        ("host", "UPDATE host_run SET run = ?", b""),
        ("host", "UPDATE host_run SET version = ?", -1),
        ("host", "UPDATE host_run SET global_hash = ?", bytes(16)),
        ("host", "UPDATE security_counter SET reserved = ?", (1 << 63) - 1),
        ("host", "UPDATE host_node SET address = ?", 4),
        ("host", "UPDATE host_node SET name = ?", "no/name"),
        ("host", "UPDATE host_node SET samples = ?", -1),
        ("host", "UPDATE host_node SET counted_round = ?", 9),
        ("host", "UPDATE host_chain SET version = ?", 5),
        ("host", "UPDATE host_chain SET content = ?", b"content"),
        ("host", "UPDATE host_body SET address = ?", 65539),
        ("host", "UPDATE host_body SET address = ? WHERE position = 1", 9),
        ("host", "UPDATE host_body SET body = ? WHERE position = 1", b""),
        ("host", "UPDATE host_body SET body = ? WHERE position = 2", bytes(90)),
        ("link", "UPDATE link_outgoing SET receivers = ?", "[[]]"),
        ("link", "UPDATE link_outgoing SET number = ? WHERE slot = 1", 99),
        ("link", "UPDATE link_outgoing SET payload = ?", b""),
        ("link", "UPDATE link_outgoing SET repairs = ?", -1),
        ("link", "UPDATE link_outgoing SET slot = ?", 1),
        ("link", "UPDATE security_counter SET reserved = ?", -1),
        ("link", "UPDATE link_number SET next = ?", 0),
        ("link", "UPDATE link_symbol SET position = ?", 1 << 16),
        ("link", "UPDATE link_symbol SET slot = ?", 99),
        ("link", "UPDATE link_symbol SET name = ?", b""),
        ("link", "UPDATE link_symbol SET size = ?", 0),
        ("link", "UPDATE link_symbol SET data = ?", b""),
        ("link", "UPDATE link_arrived SET name = ?", b""),
        ("host", "UPDATE host_round SET counted = ?", "[1"),
        ("host", "UPDATE host_board SET settings = ?", "[-1]"),
        ("host", "UPDATE host_board SET report = ?", write_control(Silent(1))),
        ("split", "UPDATE split_value SET value = ?", '{"run": "00", "model": "", "numbers": {}}'),
        ("split", "UPDATE split_board SET name = ?", "a b"),
        ("split", "UPDATE split_board SET address = ?", 40_000),
        ("split", "UPDATE security_counter SET reserved = ?", "x"),
    ],
)
def test_no_program_begins_with_what_was_never_written(reopen, kind, sql, value) -> None:
    state = reopen()
    load = FILLED[kind](state)
    load()
    state.write(sql, value)
    with pytest.raises(StoreError, match=r"that was never written.*the identity stays"):
        load()


def test_nor_with_a_ledger_of_airtime_that_is_cut(tmp_path) -> None:
    now = Moment("boot", 1.0, None)
    band = next(band for band in REGIONS["EU868"].sub_bands if band.budget_us is not None)
    path = tmp_path / "airtime.sqlite"
    store = AirtimeStore(path)
    store.open(now)
    assert store.reserve(band, now, 1000)
    store.close()
    database = Database(path, SCHEMA)
    database.open()
    database.write("UPDATE airtime_ledger SET entries = ?", b"cut")
    database.commit()
    database.close()
    store.open(now)
    with pytest.raises(StoreError, match=r"airtime\.sqlite holds something that was never"):
        store.reserve(band, now, 1000)
    store.close()
