"""What programs find on their own disk, with one cell that holds something else.

SQLite notices a damaged page, not a flipped bit inside a value. A state that nobody can go on with
is a StoreError: with one that was read, the endpoint begins and lives through a timeout.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.fuzz_targets import gateways, seals, wire
from bench.fuzz_targets.target import Target, number, same, settle
from edge.replay import ReplayBuffer
from edge.sources import Label, Sample
from ternmesh.bundle import Bundle, TensorSpec
from ternmesh.errors import TrustError
from ternmesh.link.frames import Offer
from ternmesh.link.ledger import ENTRIES_MAX, Moment
from ternmesh.link.link import Link, LinkSettings
from ternmesh.link.records import (
    ObjectArrived,
    Queued,
    RepairsReserved,
    SymbolHeld,
    TransferBegun,
)
from ternmesh.link.regions import REGIONS, SubBand
from ternmesh.swarm.bundle_records import BundleMade, BundlerEvent, RunFollowed, VersionReached
from ternmesh.swarm.bundler import Bundler
from ternmesh.swarm.coordinator import Coordinator
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
from ternmesh.swarm.member import Member
from ternmesh.swarm.packet import make_packet
from ternmesh.swarm.records import Settings
from ternmesh.trust.keyed import KeyedSealing
from ternmesh.trust.roster import Roster
from ternmesh.trust.session import GroupState, PeerState, Session
from ternmesh.wire import seal
from ternmesh.wire.control import Hello, write_control
from ternmesh.wire.reference import Counted, certify, reference_hash
from ternmesh_store import trust_store
from ternmesh_store.airtime_store import AirtimeStore
from ternmesh_store.database import MEMORY, Database, StoreError
from ternmesh_store.gateway_store import GatewayStore
from ternmesh_store.host_store import HostStore
from ternmesh_store.link_store import LinkStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.split_store import Checkpoint, SplitStore

_RUN = b"runrunru"
_ZEROS = np.zeros(wire.DIMENSION, np.float32)
_FIXED = np.zeros(wire.DIMENSION, np.int32)
_CONTENT = b"content"
_LINK = LinkSettings(mtu=64, object_max=4096, incoming_bytes_max=8192, outgoing_bytes_max=8192)
_MOMENTS_S = (0.0, 6.0, 50.0)
_MEMORY_MAX = 4 << 20
_LENGTH_MAX = 512  # a vector of 64 numbers, and which cell


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
    store = NodeStore(MEMORY)
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
    rng = np.random.default_rng(0)
    _go_on(Member("ada", wire.MODEL, 10, b"instance", state, rng))


def _check_host(data: bytes) -> None:
    store = HostStore(MEMORY, 4)
    store.open()
    try:
        store.begin(_RUN, wire.PLAN, wire.MODEL)
        counted = (Counted(3, 0, b"abcd", b"\x01"),)
        bodies = make_packet(_ZEROS + 0.1, wire.MODEL, 1, 10, wire.PLAN).bodies
        events: list[HostEvent] = [
            NodeJoined(3, "ada", 10),
            ReferenceMade(
                *(1, reference_hash(_CONTENT), certify(_CONTENT), _FIXED, _ZEROS, counted, ()),
                finished=False,
            ),
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
    settings = Settings(min_peers=1, deadline_s=5.0, chain_max=4, bundles=True)
    host = Coordinator(found.plan, settings, wire.MODEL, found.run, found.state)
    _go_on(host)
    hello = Hello("ada", b"instance", wire.MODEL[:8], found.run, 0, bytes(16), 10)
    host.receive_frames("ada", [seal.seal(seal.Header(seal.ENROL, 0), write_control(hello))], 1.0)
    _go_on(host)


def _go_on(endpoint: Member | Coordinator | Link) -> None:
    """Begin as after a restart, and let all that is due come due."""
    endpoint.start(0.0)
    settle(endpoint, 0.0)
    for now in _MOMENTS_S:
        if isinstance(endpoint, Link):
            endpoint.frames_to_send(now, 8)
        else:
            endpoint.frames_to_send(now)
        endpoint.handle_timeout(now)
        settle(endpoint, now)


def _check_vectors(fixed: Any, residual: Any) -> None:
    if not fixed.size == residual.size == wire.DIMENSION or not np.isfinite(residual).all():
        raise AssertionError("a state with which nobody can go on")


def _check_link(data: bytes) -> None:
    store = LinkStore(MEMORY)
    store.open()
    try:
        offer = Offer(3, 1, b"name", 60, 20)
        for event in (
            Queued(0, "ada", ("ada",), bytes(100), 1, "key"),
            TransferBegun(0, 0),
            RepairsReserved(0, 64),
            Queued(1, "all", ("ada", "bob"), bytes(90), 1, None),
            TransferBegun(1, 8),
            SymbolHeld("bob", offer, 0, bytes(20)),
            ObjectArrived("bob", b"eman", b"payload"),
        ):
            store.record(event)
        _damage(store._database, data)
        state = store.load()
        store.inbox()
    finally:
        store.close()
    _go_on(Link(_LINK, state, np.random.default_rng(0)))


def _check_gateway(data: bytes) -> None:
    store = GatewayStore(MEMORY)
    store.open()
    try:
        store.load(wire.MODEL, wire.DIMENSION)
        events: list[BundlerEvent] = [
            RunFollowed(gateways.RUN, wire.PLAN),
            VersionReached(0),
            BundleMade(gateways.bundle()),
        ]
        for event in events:
            store.record(event)
        _damage(store._database, data)
        state = store.load(wire.MODEL, wire.DIMENSION)
    finally:
        store.close()
    if state.residual.size != wire.DIMENSION or not np.isfinite(state.residual).all():
        raise AssertionError("a residual with which nobody can go on")
    rng = np.random.default_rng(0)
    gateways.run_on(Bundler(wire.MODEL, gateways.BOARDS, 1.0, state, rng), _next_round())


@cache
def _next_round() -> bytes:
    """What a gateway hears when its bundle has been counted."""
    return list(gateways.conversations())[1]


def _check_trust(data: bytes) -> None:
    store = trust_store.TrustStore(Path("unused"))
    store._database = Database(MEMORY, trust_store.SCHEMA)
    store._database.open()
    try:
        own, known = seals.member(), seals.fleet()
        store.keep_roster(replace(known, revoked=(bytes(16),), number=3))
        session = Session(b"instance", 4)
        peer = PeerState("host", known.host.fingerprint, b"line", bytes(8), 5, session)
        group = GroupState(known.host.fingerprint, 2, bytes(range(16)), 4)
        store.record(trust_store.END, (peer, group))
        _damage(store._database, data)
        roster, state = store.roster(), store.sealing(trust_store.END)
    finally:
        store.close()
    if roster is not None:
        same(Roster(roster.state).state, roster.state, "a roster")
        sealing = KeyedSealing(own, roster, 1, b"another.", 0, state, hub="host")
        sealing.due(1.0)
        sealing.changes()


def _band() -> SubBand:
    return next(band for band in REGIONS["EU868"].sub_bands if band.budget_us is not None)


def _check_airtime(data: bytes) -> None:
    """Whatever the file says, no hour is given more than its budget."""
    now, store, band = Moment("boot", 5000.0, 1e9), AirtimeStore(MEMORY), _band()
    store.open(now)
    try:
        for step in range(3):
            store.reserve(band, replace(now, now_s=now.now_s + step), 100_000)
        _damage(store._database, data)
        store._ledgers.clear()
        given = 0
        while store.reserve(band, now, 4_000_000, 5.0):
            given += 4_000_000
            if given > (band.budget_us or 0):
                raise AssertionError("more air than an hour has")
        record = store.ledger(band, now).settle()
    finally:
        store.close()
    same(len(record.entries) <= ENTRIES_MAX, True, "the length of a ledger")


def _check_split(data: bytes) -> None:
    store = SplitStore(MEMORY)
    store.open()
    try:
        store.reserve(64)
        store.add_board(1, "ada")
        store.save(Checkpoint(bytes(32), _RUN, {"ada": 3}, {"bottom": b"\0" * 8}))
        _damage(store._database, data)
        store.counter()
        store.boards()
        found = store.load(("bottom",))
    finally:
        store.close()
    same(found is None or len(found.run) == len(_RUN), True, "a checkpoint")


def _check_replay(data: bytes) -> None:
    values = TensorSpec("x", "float32", (4, 3))
    both = (values, TensorSpec("y", "int64", (4,)))
    bundle = Bundle("tiny", 1, (values,), (), both, (), "accuracy", {})
    buffer = ReplayBuffer(MEMORY, bundle, 8, 1 << 16)
    buffer.open()
    try:
        for key in "abc":
            buffer.add([Sample(key, {"x": np.ones(3, np.float32)}), Label(key, {"y": np.array(1)})])
        buffer.add([Sample("d", {"x": np.ones(3, np.float32)})])
        _damage(buffer._database, data)
        buffer._load()
        found = buffer.batch(np.arange(len(buffer)))
        buffer.add([Label("d", {"y": np.array(2)})])
    finally:
        buffer.close()
    same(found["x"].shape[1:], (3,), "the shape of samples")


def _seeds() -> Iterator[bytes]:
    for table in range(8):
        for column in range(8):
            yield bytes((table, column, 0)) + b"[1, 2]"
            yield bytes((table, column, column)) + bytes(4 * wire.DIMENSION)


def _target(name: str, check: Callable[[bytes], object]) -> Target:
    refusals: Sequence[type[Exception]] = (StoreError, TrustError)
    return Target(name, check, _seeds, tuple(refusals), _LENGTH_MAX, _MEMORY_MAX)


TARGETS = (
    _target("node_store", _check_node),
    _target("host_store", _check_host),
    _target("link_store", _check_link),
    _target("gateway_store", _check_gateway),
    _target("trust_store", _check_trust),
    _target("airtime_store", _check_airtime),
    _target("replay_store", _check_replay),
    _target("split_store", _check_split),
)
