"""What a host keeps on disk: its run, its nodes, the chain, the open round, and past rounds."""

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ternmesh.plan import Plan, from_numbers, to_numbers
from ternmesh.swarm.events import (
    BodyAccepted,
    CountersReserved,
    HostEvent,
    NodeJoined,
    PacketForgotten,
    ReferenceMade,
    RoundOpened,
)
from ternmesh.swarm.records import CoordinatorState, Link, NodeRecord, new_state
from ternmesh.wire.reference import Counted
from ternmesh_store.arrays import read_fixed, read_floats, write_fixed, write_floats
from ternmesh_store.database import Database, Schema, checked
from ternmesh_store.state_checks import check_run

ROUNDS_MAX = 1000  # rounds that the history goes back
SCHEMA = Schema(
    application=0x544D4853,  # "TMHS"
    version=1,
    statements=(
        """CREATE TABLE run (
            model BLOB NOT NULL,
            run BLOB NOT NULL,
            plan TEXT NOT NULL,
            version INTEGER NOT NULL DEFAULT 0,
            reference BLOB NOT NULL DEFAULT x'',
            started INTEGER NOT NULL DEFAULT 0,
            finished INTEGER NOT NULL DEFAULT 0
        )""",
        "CREATE TABLE counter (reserved INTEGER NOT NULL)",
        "INSERT INTO counter VALUES (0)",
        """CREATE TABLE node (
            context INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            samples INTEGER NOT NULL,
            counted_round INTEGER,
            counted_digest BLOB,
            counted_have BLOB,
            rounds_counted INTEGER NOT NULL DEFAULT 0,
            rounds_missed INTEGER NOT NULL DEFAULT 0,
            bytes_up INTEGER NOT NULL DEFAULT 0,
            bytes_down INTEGER NOT NULL DEFAULT 0
        )""",
        "CREATE TABLE link (version INTEGER PRIMARY KEY, reference BLOB, content BLOB)",
        "CREATE TABLE body (position INTEGER PRIMARY KEY, context INTEGER, body BLOB)",
        """CREATE TABLE round (
            version INTEGER PRIMARY KEY,
            counted TEXT,
            missing TEXT,
            seconds REAL NOT NULL DEFAULT 0
        )""",
        """CREATE TABLE traffic (
            version INTEGER,
            peer TEXT,
            bytes_up INTEGER NOT NULL,
            bytes_down INTEGER NOT NULL,
            PRIMARY KEY (version, peer)
        ) WITHOUT ROWID""",
    ),
)
_TABLES = ("run", "node", "link", "body", "round", "traffic")
_FIXED, _RESIDUAL = "coordinator.fixed", "coordinator.residual"
# Round and digest of a node's packet that was counted in a bundle; that one's context and digest.
_BUNDLE = struct.Struct("<I4sH4s")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The run that a file holds."""

    run: bytes
    plan: Plan
    state: CoordinatorState


@dataclass(frozen=True, slots=True)
class Round:
    """A closed round: the reference `version` that it made, and whom it counted, by name.

    Bytes are those on the bearer while the round was open and the reference went out: `bytes_up`
    by node, `bytes_down` to all together. `seconds` leaves out the time that the host was down.
    """

    version: int
    counted: tuple[str, ...]
    missing: tuple[str, ...]
    bytes_up: Mapping[str, int]
    bytes_down: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Tally:
    """What a node has contributed to the run so far; bytes are those on the bearer."""

    rounds_counted: int = 0
    rounds_missed: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


class HostStore:
    """The file of one host; see `Database` for errors. `chain_max` references are kept."""

    def __init__(self, path: Path, chain_max: int = 256) -> None:
        self.path = path
        self._chain_max = chain_max
        self._database = Database(path, SCHEMA)

    def open(self, *, give_up_damaged: bool = False) -> None:
        """Take the file, or make it. In place of a damaged one only when told to: it is the run."""
        self._database.open(replace_damaged=give_up_damaged)

    def close(self) -> None:
        """Forget what was not committed, and give the file back."""
        self._database.close()

    def commit(self) -> None:
        """Make all that was recorded durable."""
        self._database.commit()

    @property
    def changed(self) -> bool:
        """Whether `commit` has something to do."""
        return self._database.changed

    @checked
    def load(self, model_hash: bytes) -> StoredRun | None:
        """The run of the last commit, or None where there is none of this model."""
        found = self._database.rows("SELECT * FROM run WHERE model = ?", model_hash)
        if not found:
            return None
        _, run, plan, version, reference, started, finished = found[0]
        [(counter,)] = self._database.rows("SELECT reserved FROM counter")
        state = CoordinatorState(
            fixed=read_fixed(self._vector(_FIXED)),
            residual=read_floats(self._vector(_RESIDUAL)),
            version=version,
            reference=reference,
            started=bool(started),
            finished=bool(finished),
            nodes=tuple(self._nodes()),
            chain=tuple(Link(*row) for row in self._chain()),
            bodies=tuple(self._database.rows("SELECT context, body FROM body ORDER BY position")),
            counter=counter,
        )
        made = StoredRun(run, from_numbers(tuple(json.loads(plan))), state)
        check_run(run, made.plan, state, model_hash)
        return made

    def learned_run(self) -> tuple[bytes, int] | None:
        """The run of whatever model that the file holds and its version, if it has learned."""
        found = self._database.rows("SELECT run, version FROM run WHERE version > 0")
        return found[0] if found else None

    def begin(self, run: bytes, plan: Plan, model_hash: bytes) -> StoredRun:
        """Begin a run, durably: the file forgets the one before, but not the frame counter."""
        for table in _TABLES:
            self._database.write(f"DELETE FROM {table}")
        self._database.write(
            "INSERT INTO run (model, run, plan) VALUES (?, ?, ?)",
            model_hash,
            run,
            json.dumps(to_numbers(plan)),
        )
        empty = new_state(plan.dimension)
        self._database.put(_FIXED, write_fixed(empty.fixed))
        self._database.put(_RESIDUAL, write_floats(empty.residual))
        self._database.commit()
        stored = self.load(model_hash)
        assert stored is not None
        return stored

    def record(self, event: HostEvent) -> None:
        """Write what of an event must survive; `commit` makes it durable."""
        match event:
            case CountersReserved():
                self._database.write("UPDATE counter SET reserved = ?", event.limit)
            case NodeJoined():
                self._database.write(
                    "INSERT INTO node (context, name, samples) VALUES (?, ?, ?) "
                    "ON CONFLICT (context) DO UPDATE SET samples = excluded.samples",
                    event.context,
                    event.name,
                    event.samples,
                )
            case RoundOpened():
                self._database.write("UPDATE run SET started = 1")
            case BodyAccepted():
                self._database.write(
                    "INSERT INTO body (context, body) VALUES (?, ?)", event.context, event.body
                )
            case PacketForgotten():
                self._database.write("DELETE FROM body WHERE context = ?", event.context)
            case ReferenceMade():
                self._advance(event)
            case _:
                pass  # Nothing of the other events must survive.

    def charge(self, version: int, traffic: Mapping[str, tuple[int, int]], seconds: float) -> None:
        """Add bytes (up, down) by peer, and time, to the round that makes `version`."""
        for peer, (up, down) in traffic.items():
            self._database.write(
                "INSERT INTO traffic VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "bytes_up = bytes_up + excluded.bytes_up, "
                "bytes_down = bytes_down + excluded.bytes_down",
                *(version, peer, up, down),
            )
            self._database.write(
                "UPDATE node SET bytes_up = bytes_up + ?, bytes_down = bytes_down + ? "
                "WHERE name = ?",
                *(up, down, peer),
            )
        if seconds:
            self._database.write(
                "INSERT INTO round (version, seconds) VALUES (?, ?) "
                "ON CONFLICT DO UPDATE SET seconds = seconds + excluded.seconds",
                *(version, seconds),
            )

    @checked
    def history(self, rounds_max: int = ROUNDS_MAX) -> list[Round]:
        """The newest closed rounds, oldest first."""
        found = self._database.rows(
            "SELECT version, counted, missing, seconds FROM round WHERE counted IS NOT NULL "
            "ORDER BY version DESC LIMIT ?",
            rounds_max,
        )
        return [self._round(*row) for row in reversed(found)]

    def tallies(self) -> dict[str, Tally]:
        """What each node has contributed, by name."""
        rows = self._database.rows(
            "SELECT name, rounds_counted, rounds_missed, bytes_up, bytes_down FROM node"
        )
        return {name: Tally(*numbers) for name, *numbers in rows}

    def _advance(self, event: ReferenceMade) -> None:
        write, version = self._database.write, event.version
        self._database.put(_FIXED, write_fixed(event.fixed))
        self._database.put(_RESIDUAL, write_floats(event.residual))
        write("UPDATE run SET version = ?, reference = ?", version, event.reference)
        write("UPDATE run SET finished = ?", event.finished)
        write("INSERT INTO link VALUES (?, ?, ?)", version, event.reference, event.content)
        write("DELETE FROM link WHERE version <= ?", version - self._chain_max)
        write("DELETE FROM body")
        self._note_round(event)
        for entry in event.counted:
            write(
                "UPDATE node SET rounds_counted = rounds_counted + 1, counted_round = ?, "
                "counted_digest = ?, counted_have = ? WHERE context = ?",
                *(entry.round, entry.digest, entry.have, entry.context),
            )
        digests = {entry.context: entry.digest for entry in event.counted}
        for context, row in event.bundles:
            packed = _BUNDLE.pack(row.round, digests[context], row.context, row.digest)
            self._database.put(f"bundle.{context}", packed)
        for context in event.missing:
            write("UPDATE node SET rounds_missed = rounds_missed + 1 WHERE context = ?", context)

    def _note_round(self, event: ReferenceMade) -> None:
        names: dict[int, str] = dict(self._database.rows("SELECT context, name FROM node"))
        counted = [names[entry.context] for entry in event.counted]
        missing = [names[context] for context in event.missing]
        self._database.write(
            "INSERT INTO round (version, counted, missing) VALUES (?, ?, ?) ON CONFLICT "
            "DO UPDATE SET counted = excluded.counted, missing = excluded.missing",
            *(event.version, json.dumps(counted), json.dumps(missing)),
        )
        for table in ("round", "traffic"):
            oldest = event.version - ROUNDS_MAX
            self._database.write(f"DELETE FROM {table} WHERE version <= ?", oldest)

    def _round(self, version: int, counted: str, missing: str, seconds: float) -> Round:
        traffic = self._database.rows(
            "SELECT peer, bytes_up, bytes_down FROM traffic WHERE version = ?", version
        )
        return Round(
            version=version,
            counted=tuple(json.loads(counted)),
            missing=tuple(json.loads(missing)),
            bytes_up={peer: up for peer, up, _ in traffic if up},
            bytes_down=sum(down for _, _, down in traffic),
            seconds=seconds,
        )

    def _nodes(self) -> Iterable[NodeRecord]:
        for context, name, samples, round_number, digest, have in self._database.rows(
            "SELECT context, name, samples, counted_round, counted_digest, counted_have "
            "FROM node ORDER BY context"
        ):
            known = round_number is not None
            counted = Counted(context, round_number, digest, have) if known else None
            bundle = self._bundle(counted) if counted else None
            yield NodeRecord(context, name, samples, counted, bundle)

    def _bundle(self, counted: Counted) -> Counted | None:
        """The row of the bundle in which this was counted, if it was in one."""
        packed = self._database.get(f"bundle.{counted.context}")
        if packed is None:
            return None
        round_number, own, lead, digest = _BUNDLE.unpack(packed)
        same = (round_number, own) == (counted.round, counted.digest)  # else it is an older one
        return Counted(lead, counted.round, digest, counted.have) if same else None

    def _chain(self) -> list[tuple[int, bytes, bytes]]:
        return self._database.rows("SELECT version, reference, content FROM link ORDER BY version")

    def _vector(self, key: str) -> bytes:
        value = self._database.get(key)
        if value is None:
            raise ValueError(f"{key} is missing")
        return value
