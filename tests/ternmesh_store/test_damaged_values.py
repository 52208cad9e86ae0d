"""Damaged state: what is read is what was written, or the program says what is wrong."""

import logging
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

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
from ternmesh.link.events import ObjectArrived, Queued, SymbolHeld, TransferBegun
from ternmesh.link.messages import Offer
from ternmesh.plan import make_plan
from ternmesh.wire.global_update import Counted, certify, hash_global_update
from ternmesh_store.database import StoreError
from ternmesh_store.host_store import HostStore
from ternmesh_store.link_store import LinkStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.split_store import Checkpoint, SplitStore
from ternmesh_store.state_file import STATE, StateFile

MODEL, RUN = bytes(32), b"runrunru"
PLAN = make_plan(50, rounds=5, local_steps=1, learning_rate=0.1)
PACKET = make_update(np.ones(50, np.float32), MODEL, 1, 10, PLAN)


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
    store.record(CountersReserved(4096))
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
