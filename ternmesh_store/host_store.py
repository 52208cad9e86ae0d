"""What a host stores: its run, its nodes, the chain, the open round, and past rounds."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import cbor2

from ternmesh.federated import events
from ternmesh.federated.evaluation import ACCURACY_UNIT, LOSS_UNIT, Evaluation
from ternmesh.federated.guard import KEPT_MAX
from ternmesh.federated.management import BoardRecord
from ternmesh.federated.state import HostState, Learned, RegisteredNode, new_host_state
from ternmesh.plan import Plan, from_numbers, to_numbers
from ternmesh.wire.control import Report, read_control, read_plain, write_control
from ternmesh.wire.global_update import Counted
from ternmesh_store.database import MEMORY, Database, StoreError
from ternmesh_store.state_file import SCHEMA
from ternmesh_store.store import END, HOP, Store, StoredValues

ROUNDS_MAX = 1000  # closed rounds that the history holds
_OF_ROUNDS = ("host_round", "host_traffic", "host_report")
_RUN_TABLES = ("host_run", "host_node", "host_chain", "host_body", *_OF_ROUNDS)
_COPIED = (*_RUN_TABLES, "host_board", "host_value")
_MODEL, _RESIDUAL = "model_q24", "residual"
_KEY, _CARRIED, _MEAN = "adapter_key", "carried_from", "mean"
_STANDINGS, _MUTED, _BASE = "standings", "muted", "voters since"
_KEPT = [f"kept {place}" for place in range(KEPT_MAX)]  # rounds, each in the place of an older one


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The run in a store."""

    run: bytes
    plan: Plan
    state: HostState


@dataclass(frozen=True, slots=True)
class LearnedRun:
    """A run that is to be carried over to another one."""

    run: bytes
    version: int
    model: bytes
    adapter_key: bytes | None  # of the model (`ternmesh.model_package`), if it is known
    learned: Learned


@dataclass(frozen=True, slots=True)
class StoredRound:
    """A closed round. Nodes are named; bytes are those that the transport moved."""

    version: int  # of the global update that the round made
    counted: tuple[str, ...]
    missing: tuple[str, ...]
    bytes_up: Mapping[str, int]  # by node, while the round was open
    bytes_down: int  # to all nodes, the global update included
    seconds: float  # without the time that the host was down
    loss: float | None = None  # median of the nodes, for the global adapter of the version before
    accuracy: float | None = None
    evaluations: int = 0  # how many nodes reported
    useful_bytes: int = 0  # of the updates that arrived, and of the global update
    # Loss and accuracy by node, of the global adapter of the version before
    reports: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tally:
    """What a node has contributed to the run so far. Bytes are those that the transport moved."""

    rounds_counted: int = 0
    rounds_missed: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


class HostStore(Store):
    """The tables of one host. The newest `chain_max` global updates are stored."""

    def __init__(self, database: Database, chain_max: int = 256) -> None:
        super().__init__(database)
        self._chain_max = chain_max
        self._values = StoredValues(database, "host_value")

    def load(self, model_hash: bytes) -> StoredRun | None:
        """The run of the last commit; None where there is none of this model."""
        rows = self._database.rows(
            "SELECT run, plan, version, global_hash, started, finished, is_first FROM host_run "
            "WHERE model = ?",
            model_hash,
        )
        if not rows:
            return None
        run, plan, version, global_hash, started, finished, is_first = rows[0]
        state = HostState(
            model_q24=self._values.integers(_MODEL),
            residual=self._values.floats(_RESIDUAL),
            version=version,
            global_hash=global_hash,
            started=bool(started),
            finished=bool(finished),
            is_first=bool(is_first),
            mean=self._values.get(_MEAN) or b"",
            standings=self._values.get(_STANDINGS) or b"",
            kept=tuple(filter(None, map(self._values.get, _KEPT))),
            nodes=tuple(self._nodes()),
            chain=self._chain("host_chain"),
            bodies=self.bodies(),
            counter=self._read_counter(END),
        )
        return StoredRun(run, from_numbers(tuple(json.loads(plan))), state)

    def learned(self) -> LearnedRun | None:
        """The run with what it has learned or taken along; None where there is nothing."""
        rows = self._database.rows("SELECT run, version, model FROM host_run")
        if not rows or (rows[0][1] == 0 and not self.carried_from):
            return None
        run, version, model = rows[0]
        learned = Learned(self._values.integers(_MODEL), self._values.floats(_RESIDUAL))
        return LearnedRun(run, version, model, self._values.get(_KEY), learned)

    @property
    def version(self) -> int:
        """Of the newest global update; 0 where there is none."""
        rows = self._database.rows("SELECT version FROM host_run")
        return int(rows[0][0]) if rows else 0

    @property
    def carried_from(self) -> str:
        """The run, and its version, whose adapter this run has begun with; '' for none."""
        return (self._values.get(_CARRIED) or b"").decode()

    @property
    def muted(self) -> list[str]:
        """The nodes of the fleet that the owner has muted while the host ran."""
        return [str(name) for name in json.loads(self._values.get(_MUTED) or b"[]")]

    @property
    def base(self) -> int | None:
        """The version of the run when its fleet got voters; None where it has none."""
        value = self._values.get(_BASE)
        return int(value) if value else None

    def keep_base(self, version: int) -> None:
        """Store it; `commit` makes it durable."""
        self._values.put(_BASE, str(version).encode())

    def forget_seat(self) -> None:
        """Forget that its fleet had voters before, and whom they had muted."""
        for key in (_BASE, _MUTED):
            self._values.put(key, b"")

    def keep_muted(self, names: Iterable[str]) -> None:
        """Store them; `commit` makes it durable."""
        self._values.put(_MUTED, json.dumps(sorted(names)).encode())

    def bodies(self) -> tuple[tuple[int, bytes], ...]:
        """The bodies of the open round, by address, in the order in which they came."""
        return tuple(self._database.rows("SELECT address, body FROM host_body ORDER BY position"))

    def certified(self, version: int) -> bytes:
        """The global update to a version, with its certificate; nothing where it is not kept."""
        rows = self._database.rows("SELECT content FROM host_chain WHERE version = ?", version)
        return bytes(rows[0][0]) if rows else b""

    def pass_hop_counters(self, limit: int) -> None:
        """Use no seal counter below `limit` with neighbours any more, durably."""
        if self._read_counter(HOP) < limit:
            self._reserve_counters(HOP, limit)
            self.commit()

    def forget_open_round(self) -> None:
        """Forget its bodies, and nodes that were never counted; `commit` makes it durable."""
        self._database.clear("host_body")
        self._database.write("DELETE FROM host_node WHERE counted_round IS NULL")

    def copied(self) -> bytes:
        """All that another host of this fleet needs to go on with the run, from the last commit."""
        rows = {table: self._database.rows(f"SELECT * FROM {table}") for table in _COPIED}
        return cbor2.dumps(rows)

    def take_copy(self, data: bytes) -> None:
        """Replace the run by that of another host (`copied`); `commit` makes it durable.

        ValueError for anything else, and nothing is changed.
        """
        found = read_plain(data)
        if not isinstance(found, dict) or found.keys() != set(_COPIED):
            raise ValueError("no copy of a run")
        self._database.clear(*_COPIED)
        for table, rows in found.items():
            for row in rows:
                self._database.insert(table, *row)
        self._values = StoredValues(self._database, "host_value")  # the old one knows other values

    def begin(
        self,
        run: bytes,
        plan: Plan,
        model_hash: bytes,
        adapter_key: bytes = b"",
        *,
        is_first: bool = False,
        carried: LearnedRun | None = None,
    ) -> StoredRun:
        """Begin a run, durably. The run before is deleted, but not the seal counter.

        `carried` is what it takes along from that run.
        """
        self._database.clear(*_RUN_TABLES)
        self._database.write(
            "INSERT INTO host_run (model, run, plan, is_first) VALUES (?, ?, ?, ?)",
            model_hash,
            run,
            json.dumps(to_numbers(plan)),
            is_first,
        )
        start = carried.learned if carried else new_host_state(plan.dimension)
        self._values.put_integers(_MODEL, start.model_q24)
        self._values.put_floats(_RESIDUAL, start.residual)
        self._values.put(_KEY, adapter_key)
        origin = f"{carried.run.hex()} {carried.version}" if carried else ""
        self._values.put(_CARRIED, origin.encode())
        for key in (_MEAN, _STANDINGS, _BASE, *_KEPT):
            self._values.put(key, b"")
        self._database.checkpoint()  # damage to the WAL must not begin another run
        stored = self.load(model_hash)
        assert stored is not None
        return stored

    def record(self, event: events.HostEvent) -> None:
        """Write what must survive of an event: of others nothing. `commit` makes it durable."""
        match event:
            case events.CountersReserved():
                self._reserve_counters(END, event.limit)
            case events.NodeJoined():
                self._database.write(
                    "INSERT INTO host_node (address, name, samples) VALUES (?, ?, ?) "
                    "ON CONFLICT (address) DO UPDATE SET samples = excluded.samples",
                    event.address,
                    event.name,
                    event.samples,
                )
            case events.RoundOpened():
                self._database.update("host_run", {"started": 1})
            case events.BodyAccepted():
                self._database.write(
                    "INSERT INTO host_body (address, body) VALUES (?, ?)", event.address, event.body
                )
            case events.UpdateForgotten():
                self._database.write("DELETE FROM host_body WHERE address = ?", event.address)
            case events.GlobalUpdateMade():
                self._advance(event)
            case events.BoardChanged():
                self._put_board(event)
            case events.RunAdopted():
                self._database.update("host_run", {"run": event.run, "is_first": 0})
                self._database.clear("host_body")

    def charge(self, version: int, traffic: Mapping[str, tuple[int, int]], seconds: float) -> None:
        """Add bytes (up, down) by peer, and time, to the round that makes `version`."""
        for peer, (up, down) in traffic.items():
            self._database.write(
                "INSERT INTO host_traffic VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "bytes_up = bytes_up + excluded.bytes_up, "
                "bytes_down = bytes_down + excluded.bytes_down",
                version,
                peer,
                up,
                down,
            )
            self._database.write(
                "UPDATE host_node SET bytes_up = bytes_up + ?, bytes_down = bytes_down + ? "
                "WHERE name = ?",
                up,
                down,
                peer,
            )
        if seconds:
            self._database.write(
                "INSERT INTO host_round (version, seconds) VALUES (?, ?) "
                "ON CONFLICT DO UPDATE SET seconds = seconds + excluded.seconds",
                version,
                seconds,
            )

    def history(self, rounds_max: int = ROUNDS_MAX) -> list[StoredRound]:
        """The newest closed rounds, oldest first."""
        rows = self._database.rows(
            "SELECT version, counted, missing, seconds, loss, accuracy, evaluations, "
            "useful_bytes, reports FROM host_round JOIN host_report USING (version) "
            "WHERE counted IS NOT NULL ORDER BY version DESC LIMIT ?",
            rounds_max,
        )
        rounds = []
        for version, counted, missing, seconds, loss, accuracy, nodes, useful, reports in rows:
            traffic = self._database.rows(
                "SELECT peer, bytes_up, bytes_down FROM host_traffic WHERE version = ?", version
            )
            row = StoredRound(
                version=version,
                counted=tuple(json.loads(counted)),
                missing=tuple(json.loads(missing)),
                bytes_up={peer: up for peer, up, _ in traffic if up},
                bytes_down=sum(down for _, _, down in traffic),
                seconds=seconds,
                loss=loss,
                accuracy=accuracy,
                evaluations=nodes,
                useful_bytes=useful,
                reports=_read_reports(reports),
            )
            rounds.append(row)
        return rounds[::-1]

    def boards(self, now: float) -> dict[str, BoardRecord]:
        """What is wanted and known of each board of the fleet, by name. `now` is any clock's."""
        rows = self._database.rows(
            "SELECT name, number, settings, report, max(0, strftime('%s', 'now') - reported_at) "
            "FROM host_board"
        )
        boards = {}
        for name, number, wanted, body, age_s in rows:
            report = None if body is None else read_control(body)
            assert isinstance(report, Report | None)
            boards[name] = BoardRecord(number, tuple(json.loads(wanted)), report, now - age_s)
        return boards

    def _put_board(self, event: events.BoardChanged) -> None:
        body = None if event.report is None else write_control(event.report)
        self._database.write(
            "INSERT INTO host_board VALUES (?, ?, ?, ?, strftime('%s', 'now')) "
            "ON CONFLICT DO UPDATE SET "
            "number = excluded.number, settings = excluded.settings, report = excluded.report, "
            "reported_at = iif(report IS excluded.report, reported_at, excluded.reported_at)",
            event.name,
            event.number,
            json.dumps(event.wanted),
            body,
        )

    def tallies(self) -> dict[str, Tally]:
        """What each node has contributed, by name."""
        rows = self._database.rows(
            "SELECT name, rounds_counted, rounds_missed, bytes_up, bytes_down FROM host_node"
        )
        return {name: Tally(*numbers) for name, *numbers in rows}

    def _advance(self, event: events.GlobalUpdateMade) -> None:
        write = self._database.write
        self._values.put_integers(_MODEL, event.model_q24)
        self._values.put_floats(_RESIDUAL, event.residual)
        if event.standings:
            self._values.put(_STANDINGS, event.standings)
        if event.kept:
            self._values.put(_KEPT[event.version % KEPT_MAX], event.kept)
        if event.mean:
            self._values.put(_MEAN, event.mean)
        reached = {"version": event.version, "global_hash": event.global_hash}
        self._database.update("host_run", reached | {"finished": event.finished})
        previous = event.version - 1  # not there if a node has given the host a newer adapter
        write("DELETE FROM host_chain WHERE ? NOT IN (SELECT version FROM host_chain)", previous)
        if event.content:
            kept = event.version, event.global_hash, event.content, event.rows
            self._database.insert("host_chain", *kept)
        write("DELETE FROM host_chain WHERE version <= ?", event.version - self._chain_max)
        self._close_round(event)
        self._database.clear("host_body")
        for entry in event.counted:
            values = entry.round, entry.digest, entry.have, entry.root, entry.address
            write(
                "UPDATE host_node SET rounds_counted = rounds_counted + 1, counted_round = ?, "
                "counted_digest = ?, counted_have = ?, counted_root = ? WHERE address = ?",
                *values,
            )
        for address in event.missing:
            write(
                "UPDATE host_node SET rounds_missed = rounds_missed + 1 WHERE address = ?", address
            )

    def _close_round(self, event: events.GlobalUpdateMade) -> None:
        names: dict[int, str] = dict(self._database.rows("SELECT address, name FROM host_node"))
        self._database.write(
            "INSERT INTO host_round (version, counted, missing, loss, accuracy, evaluations) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET counted = excluded.counted, "
            "missing = excluded.missing, loss = excluded.loss, accuracy = excluded.accuracy, "
            "evaluations = excluded.evaluations",
            event.version,
            json.dumps([names[entry.address] for entry in event.counted]),
            json.dumps([names[address] for address in event.missing]),
            event.evaluation.loss,
            event.evaluation.accuracy,
            event.evaluation.nodes,
        )
        [(arrived,)] = self._database.rows("SELECT total(length(body)) FROM host_body")
        self._database.insert(
            "host_report",
            event.version,
            int(arrived) + len(event.content),
            _write_reports(event.evaluations, names),
        )
        for table in _OF_ROUNDS:
            oldest = event.version - ROUNDS_MAX
            self._database.write(f"DELETE FROM {table} WHERE version <= ?", oldest)

    def _nodes(self) -> Iterable[RegisteredNode]:
        rows = self._database.rows(
            "SELECT address, name, samples, counted_round, counted_digest, counted_have, "
            "counted_root FROM host_node ORDER BY address"
        )
        for address, name, samples, round_number, *row in rows:
            counted = None if round_number is None else Counted(address, round_number, *row)
            yield RegisteredNode(address, name, samples, counted)


def read_copy(data: bytes, model_hash: bytes, base: int) -> StoredRun:
    """The run in a copy (`HostStore.copied`) of another host, all of whose tables can be read.

    ValueError where they cannot, or where its fleet got voters at another version than `base`.
    """
    database = Database(MEMORY, SCHEMA)
    database.open()
    store = HostStore(database)
    try:
        store.take_copy(data)
        run = store.load(model_hash)
        shown = store.history(), store.boards(0.0), store.tallies(), store.muted
        runs = database.rows("SELECT count(*) FROM host_run")[0][0]
        if run is None or runs != 1 or store.base != base or None in shown:
            raise ValueError("a copy is of another model, or of a run without voters")
    except (StoreError, TypeError, LookupError, AttributeError, AssertionError) as error:
        raise ValueError(f"a copy of a run cannot be read: {error}") from error
    finally:
        database.close()
    return run


def _write_reports(
    evaluations: Iterable[tuple[int, Evaluation]], names: Mapping[int, str]
) -> bytes:
    """Loss and accuracy by name, in units of the wire; -1 for what a node has not reported."""
    rows = [
        [names[address], _units(own.loss, LOSS_UNIT), _units(own.accuracy, ACCURACY_UNIT)]
        for address, own in evaluations
    ]
    return cbor2.dumps(rows)


def _units(value: float | None, unit: float) -> int:
    return -1 if value is None else round(value / unit)


def _read_reports(content: bytes) -> dict[str, tuple[float | None, float | None]]:
    return {
        name: (
            None if loss < 0 else round(loss * LOSS_UNIT, 3),
            None if accuracy < 0 else round(accuracy * ACCURACY_UNIT, 4),
        )
        for name, loss, accuracy in read_plain(content)
    }
