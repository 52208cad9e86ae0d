"""What programs find on their own disk, with one cell that holds something else.

SQLite notices a damaged page, not a flipped bit inside a value. A state that cannot be read is a
StoreError.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.fuzz_targets import wire
from bench.fuzz_targets.target import Target, number
from ternmesh.link.frames import Offer
from ternmesh.link.records import ObjectArrived, Queued, SymbolHeld
from ternmesh.swarm.events import (
    Advanced,
    BodyAccepted,
    FellSilent,
    HostEvent,
    Joined,
    NodeJoined,
    PacketMade,
    ReferenceMade,
)
from ternmesh.swarm.packet import make_packet
from ternmesh.wire.reference import Counted
from ternmesh_store.database import Database, StoreError
from ternmesh_store.host_store import HostStore
from ternmesh_store.link_store import LinkStore
from ternmesh_store.node_store import NodeStore

_MEMORY = Path(":memory:")
_RUN = b"runrunru"
_ZEROS = np.zeros(wire.DIMENSION, np.float32)
_FIXED = np.zeros(wire.DIMENSION, np.int32)
_MEMORY_MAX = 4 << 20


def _damage(database: Database, data: bytes) -> None:
    """Change the bytes of the cell that the input names; its kind stays."""
    rows = database.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    tables = [name for (name,) in rows]
    table = tables[number(data, 0, 1) % len(tables)]
    columns = [row[1] for row in database.rows(f"PRAGMA table_info({table})")]
    column = columns[number(data, 1, 1) % len(columns)]
    found = database.rows(f"SELECT rowid, {column} FROM {table}") if table != "traffic" else []
    if found:
        place, value = found[number(data, 2, 1) % len(found)]
        changed = _changed(value, data[3:])
        database.write(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", changed, place)


def _changed(value: object, data: bytes) -> object:
    match value:
        case bytes():
            return data
        case str():
            return data.decode("utf-8", "replace")
        case int():
            return int.from_bytes(data[:8].ljust(8, b"\0"), "little", signed=True)
        case float():
            found: float = struct.unpack("<d", data[:8].ljust(8, b"\0"))[0]
            return found
    return value


def _check_node(data: bytes) -> None:
    store = NodeStore(_MEMORY)
    store.open()
    try:
        store.load(wire.MODEL, wire.DIMENSION)
        pending = make_packet(_ZEROS + 0.1, wire.MODEL, 1, 10, wire.PLAN)
        for event in (
            Joined(_RUN, 7, wire.PLAN),
            Advanced(1, bytes(16), _FIXED, _ZEROS, False),
            FellSilent(1, _ZEROS, 1),
            PacketMade(pending),
        ):
            store.record(event)
        _damage(store._database, data)
        state = store.load(wire.MODEL, wire.DIMENSION)
    finally:
        store.close()
    _check_vectors(state.fixed, state.residual)


def _check_host(data: bytes) -> None:
    store = HostStore(_MEMORY, 4)
    store.open()
    try:
        store.begin(_RUN, wire.PLAN, wire.MODEL)
        counted = (Counted(3, 0, b"abcd", b"\x01"),)
        bodies = make_packet(_ZEROS + 0.1, wire.MODEL, 1, 10, wire.PLAN).bodies
        events: list[HostEvent] = [
            NodeJoined(3, "ada", 10),
            ReferenceMade(1, bytes(16), b"content", _FIXED, _ZEROS, counted, (), False),
            *(BodyAccepted(3, 1, body) for body in bodies),
        ]
        for event in events:
            store.record(event)
        _damage(store._database, data)
        found = store.load(wire.MODEL)
        if found is None:
            return
        store.history()
        store.tallies()
    finally:
        store.close()
    _check_vectors(found.state.fixed, found.state.residual)


def _check_vectors(fixed: Any, residual: Any) -> None:
    if not fixed.size == residual.size == wire.DIMENSION or not np.isfinite(residual).all():
        raise AssertionError("a state with which nobody can go on")


def _check_link(data: bytes) -> None:
    store = LinkStore(_MEMORY)
    store.open()
    try:
        offer = Offer(3, 1, b"name", 60, 20)
        for event in (
            Queued(0, "ada", ("ada",), bytes(100), 1, "key"),
            SymbolHeld("bob", offer, 0, bytes(20)),
            ObjectArrived("bob", b"eman", b"payload"),
        ):
            store.record(event)
        _damage(store._database, data)
        store.load()
        store.inbox()
    finally:
        store.close()


def _seeds() -> Iterator[bytes]:
    for table in range(8):
        for column in range(8):
            yield bytes((table, column, 0)) + b"[1, 2]"
            yield bytes((table, column, column)) + bytes(4 * wire.DIMENSION)


def _target(name: str, check: Callable[[bytes], object]) -> Target:
    refusals: Sequence[type[Exception]] = (StoreError,)
    return Target(name, check, _seeds, tuple(refusals), 256, _MEMORY_MAX)


TARGETS = (
    _target("node_store", _check_node),
    _target("host_store", _check_host),
    _target("link_store", _check_link),
)
