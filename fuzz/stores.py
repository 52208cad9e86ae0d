"""Stores with one damaged cell: what is read can be used, or it is our error.

SQLite notices a damaged page, but not a changed bit inside a value.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from edge.data.buffer import ReplayBuffer
from edge.data.sources import Label, Sample
from fuzz import federated, security, wire
from fuzz.target import Target, number, same, settle
from ternmesh.errors import SecurityError
from ternmesh.federated import events
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.local_update import make_update
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import HostSettings
from ternmesh.link import events as link_events
from ternmesh.link.ledger import ENTRIES_MAX, Moment
from ternmesh.link.link import Link
from ternmesh.link.messages import Offer
from ternmesh.link.regions import REGIONS
from ternmesh.link.settings import LinkSettings
from ternmesh.model_package import ModelPackage, TensorSpec
from ternmesh.security.keyed_sealing import KeyedSealing
from ternmesh.security.session import GroupState, PeerState
from ternmesh.wire.global_update import Counted, certify, hash_global_update
from ternmesh_store.airtime_store import AirtimeStore
from ternmesh_store.database import MEMORY, Database, StoreError
from ternmesh_store.host_store import HostStore
from ternmesh_store.link_store import LinkStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.security_store import SecurityStore
from ternmesh_store.split_store import Checkpoint, SplitStore
from ternmesh_store.state_file import SCHEMA
from ternmesh_store.store import END

_ZEROS = np.zeros(wire.DIMENSION, np.float32)
_FIXED = np.zeros(wire.DIMENSION, np.int32)
_PACKET = make_update(_ZEROS + 0.1, wire.MODEL, 1, 10, wire.PLAN)
_LINK = LinkSettings(mtu=64, object_max=4096, incoming_bytes_max=8192, outgoing_bytes_max=8192)
_NOW = Moment("boot", 5000.0, 1e9)
_BAND = next(band for band in REGIONS["EU868"].sub_bands if band.budget_us is not None)


def _damage(database: Database, data: bytes) -> None:
    """Replace the cell that the input names; the type of its value stays."""
    rows = database.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    tables = [name for (name,) in rows if database.rows(f"SELECT 1 FROM {name} LIMIT 1")]
    table = tables[number(data, 0, 1) % len(tables)]
    columns = [row[1] for row in database.rows(f"PRAGMA table_info({table})")]
    column = columns[number(data, 1, 1) % len(columns)]
    found = database.rows(f"SELECT rowid, {column} FROM {table}")
    place, value = found[number(data, 2, 1) % len(found)]
    changed = _changed(value, data[3:])
    database.write(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", changed, place)


def _changed(value: object, data: bytes) -> object:
    eight = data[:8].ljust(8, b"\0")
    match value:
        case bytes():
            return data
        case str():
            return data.decode("utf-8", "replace")
        case int():
            return int.from_bytes(eight, "little", signed=True)
        case float():
            return struct.unpack("<d", eight)[0]
    return value


def _memory(group: str) -> Database:
    """A file in memory with one group and the counter: all tables take 30 ms to make."""
    names = f"TABLE {group}_", "TABLE security_counter"
    statements = tuple(one for one in SCHEMA.statements if any(name in one for name in names))
    database = Database(MEMORY, replace(SCHEMA, statements=statements))
    database.open()
    return database


def _check(fill: Callable[[], Any], use: Callable[[Any], object], data: bytes) -> None:
    """Fill a store, damage a cell, then load the state and go on with it."""
    store = fill()
    try:
        _damage(store._database, data)
        use(store)
    finally:
        store._database.close()


def _seeds() -> Iterator[bytes]:
    for table, column in product(range(8), range(8)):
        value = b"[1, 2]" if (table + column) % 2 else bytes(4 * wire.DIMENSION)
        yield bytes((table, column, column)) + value


def _go_on(machine: Any, *room: int) -> None:
    """Start as after a reboot, and let all timers run out."""
    machine.start(0.0)
    for now in (0.0, 6.0, 50.0):
        settle(machine, now)
        machine.frames_to_send(now, *room)
        machine.handle_timeout(now)


def _check_vector(vector: Any) -> None:
    same((vector.size, np.isfinite(vector).all()), (wire.DIMENSION, True), "a vector")


def _recorded(store: Any, *made: object) -> Any:
    for event in made:
        store.record(event)
    return store


def _node() -> Any:
    store = NodeStore(_memory("node"))
    store.load(wire.MODEL, wire.DIMENSION)
    return _recorded(
        store,
        events.Joined(federated.RUN, 7, wire.PLAN),
        events.Advanced(1, bytes(16), _FIXED, _ZEROS, False),
        events.FellSilent(1, _ZEROS, 1),
        events.UpdateMade(_PACKET),
    )


def _use_node(store: NodeStore) -> None:
    state = store.load(wire.MODEL, wire.DIMENSION)
    _check_vector(state.residual)
    _go_on(
        NodeProtocol(
            NodeSettings("ada", wire.MODEL, b"instance"),
            state,
            samples=10,
            rng=np.random.default_rng(0),
        )
    )


def _host() -> Any:
    store = HostStore(_memory("host"), 4)
    store.begin(federated.RUN, wire.PLAN, wire.MODEL)
    counted, content = (Counted(3, 0, b"abcd", b"\x01"),), b"content"
    digest, certified = hash_global_update(content), certify(content)
    made = events.GlobalUpdateMade(
        1, digest, certified, _FIXED, _ZEROS, counted, (), finished=False
    )
    accepted = [events.BodyAccepted(3, 1, body) for body in _PACKET.bodies]
    return _recorded(store, events.NodeJoined(3, "ada", 10), made, *accepted)


def _use_host(store: HostStore) -> None:
    found = store.load(wire.MODEL)
    store.history()
    store.tallies()
    if found is not None:
        _check_vector(found.state.residual)
        settings = HostSettings(min_peers=1, deadline_s=5.0, chain_max=4, partial_aggregates=True)
        _go_on(
            HostProtocol(
                plan=found.plan,
                settings=settings,
                model_hash=wire.MODEL,
                run=found.run,
                state=found.state,
            )
        )


def _link() -> Any:
    store = LinkStore(_memory("link"))
    return _recorded(
        store,
        link_events.Queued(0, "ada", ("ada",), bytes(100)),
        link_events.TransferBegun(0, 0),
        link_events.RepairsReserved(0, 64),
        link_events.SymbolHeld("bob", Offer(3, 1, b"name", 60, 20), 0, bytes(20)),
        link_events.ObjectArrived("bob", b"eman", b"payload"),
    )


def _use_link(store: LinkStore) -> None:
    state = store.load()
    store.inbox()
    _go_on(Link(_LINK, state, np.random.default_rng(0)), 8)


def _security() -> SecurityStore:
    store = SecurityStore(_memory("security"))
    known = security.fleet()
    store.keep_member_list(replace(known, revoked=(bytes(16),), number=3))
    process = known.host.exchange  # any public key will do for the host's process
    peer = PeerState("host", known.host.fingerprint, process, 4)
    group = GroupState(known.host.fingerprint, 2, bytes(range(16)), process)
    store.record(END, (peer, group))
    return store


def _use_security(store: SecurityStore) -> None:
    member_list, state = store.member_list(), store.sealing(END)
    if member_list is not None:
        own = security.identity_of("ada")
        sealing = KeyedSealing(own, member_list, 1, bytes(range(32)), 0, state, hub="host")
        sealing.due(1.0)
        sealing.changes()


def _airtime() -> AirtimeStore:
    store = AirtimeStore(MEMORY)
    store.open(_NOW)
    for step in range(3):
        store.reserve(_BAND, replace(_NOW, now_s=_NOW.now_s + step), 100_000)
    return store


def _use_airtime(store: AirtimeStore) -> None:
    """With any content of the file, no hour has more than its budget."""
    store._ledgers.clear()
    given = 0
    while store.reserve(_BAND, _NOW, 4_000_000, 5.0):
        given += 4_000_000
        same(given <= (_BAND.budget_us or 0), True, "whether the hour's budget is kept")
    record = store.ledger(_BAND, _NOW).settle()
    same(len(record.entries) <= ENTRIES_MAX, True, "the length of a ledger")


def _split() -> SplitStore:
    store = SplitStore(_memory("split"))
    store.reserve(64)
    store.add_board(1, "ada")
    store.save(Checkpoint(bytes(32), federated.RUN, {"ada": 3}, {"bottom": b"\0" * 8}))
    return store


def _use_split(store: SplitStore) -> None:
    store.counter()
    store.boards()
    found = store.load(("bottom",))
    same(found is None or len(found.run) == len(federated.RUN), True, "a checkpoint")


def _replay() -> ReplayBuffer:
    values = TensorSpec("x", "float32", (4, 3))
    both = (values, TensorSpec("y", "int64", (4,)))
    model = ModelPackage("tiny", 1, (values,), (), both, (), "mean_absolute_error", {})
    buffer = ReplayBuffer(_memory("replay"), model, 8, 1 << 16)
    buffer.load()
    for key in "abc":
        buffer.add([Sample(key, {"x": np.ones(3, np.float32)}), Label(key, {"y": np.array(1)})])
    return buffer


def _use_replay(buffer: ReplayBuffer) -> None:
    buffer.load()
    found = buffer.batch(np.arange(len(buffer)))
    same(found["x"].shape[1:], (3,), "the shape of samples")


def _target(name: str, fill: Callable[[], Any], use: Callable[[Any], object]) -> Target:
    return Target(name, _seeds, partial(_check, fill, use), (StoreError, SecurityError))


TARGETS = (
    _target("node_store", _node, _use_node),
    _target("host_store", _host, _use_host),
    _target("link_store", _link, _use_link),
    _target("security_store", _security, _use_security),
    _target("airtime_store", _airtime, _use_airtime),
    _target("split_store", _split, _use_split),
    _target("replay_store", _replay, _use_replay),
)
