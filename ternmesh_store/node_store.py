"""What a node keeps on disk: where it stands in its run, its residual, its pending packet."""

import json
import struct
from pathlib import Path

from ternmesh.plan import Plan, from_numbers, genesis, to_numbers
from ternmesh.swarm.events import (
    Advanced,
    CountersReserved,
    FellSilent,
    Joined,
    NodeEvent,
    PacketMade,
    PacketReceived,
    Pending,
    ResidualChanged,
)
from ternmesh.swarm.member import new_state
from ternmesh.swarm.records import MemberState
from ternmesh_store.arrays import read_fixed, read_floats, write_fixed, write_floats
from ternmesh_store.database import Database, Schema, checked
from ternmesh_store.state_checks import check_member

SCHEMA = Schema(
    application=0x544D4E44,  # "TMND"
    version=1,
    statements=(
        """CREATE TABLE standing (
            model BLOB NOT NULL,
            dimension INTEGER NOT NULL,
            run BLOB NOT NULL,
            context INTEGER NOT NULL,
            plan TEXT NOT NULL,
            version INTEGER NOT NULL,
            reference BLOB NOT NULL,
            finished INTEGER NOT NULL
        )""",
        "CREATE TABLE counter (reserved INTEGER NOT NULL)",
        "INSERT INTO counter VALUES (0)",
        "CREATE TABLE pending (round INTEGER NOT NULL, digest BLOB NOT NULL, received INTEGER)",
        "CREATE TABLE pending_body (position INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    ),
)
_FIXED, _RESIDUAL, _CORRECTED = "member.fixed", "member.residual", "member.corrected"
_SILENCE = "member.silence"
_SILENCES = struct.Struct("<?H")  # silent now; silent rounds since the last packet
_OWN = "edge."


class NodeStore:
    """The file of one node; see `Database` for errors. `load` comes before `record`."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, SCHEMA)
        self._model = b""
        self._dimension = 0

    def open(self) -> None:
        """Take the file, or make it."""
        self._database.open()

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
    def load(self, model_hash: bytes, dimension: int) -> MemberState:
        """The state of the last commit. What was kept for another model is deleted.

        The frame counter stays even then: it must never run backwards.
        """
        self._model, self._dimension = model_hash, dimension
        [(counter,)] = self._database.rows("SELECT reserved FROM counter")
        empty = new_state(dimension)
        found = self._database.rows("SELECT * FROM standing")
        if not found or found[0][:2] != (model_hash, dimension):
            self._begin(empty)
            self._database.commit()
            return MemberState(empty.fixed, empty.residual, counter=counter)
        _, _, run, context, plan, version, reference, finished = found[0]
        pending, received = self._pending()
        silent, silences = self._silence()
        state = MemberState(
            fixed=read_fixed(self._vector(_FIXED)),
            residual=read_floats(self._vector(_RESIDUAL)),
            run=run,
            context=context,
            plan=_read_plan(plan),
            version=version,
            reference=reference,
            finished=bool(finished),
            pending=pending,
            received=received,
            counter=counter,
            silent=silent,
            silences=silences,
        )
        check_member(state, model_hash, dimension)
        return state

    def record(self, event: NodeEvent) -> None:
        """Write what of an event must survive; `commit` makes it durable."""
        match event:
            case CountersReserved():
                self._database.write("UPDATE counter SET reserved = ?", event.limit)
            case Joined():
                self._join(event)
            case Advanced():
                self._advance(event)
            case PacketMade():
                self._keep(event.pending)
                self._put_silence(silent=False, silences=0)
            case PacketReceived():
                self._database.write("UPDATE pending SET received = 1 WHERE round = ?", event.round)
            case ResidualChanged():
                self._database.put(_RESIDUAL, write_floats(event.residual))
            case FellSilent():
                self._database.put(_RESIDUAL, write_floats(event.residual))
                self._put_silence(silent=True, silences=event.in_a_row)
            case _:
                pass  # Nothing of the other events must survive.

    def get(self, key: str) -> bytes | None:
        """What the program around the member has put under `key`, of this model."""
        return self._database.get(_OWN + key)

    def put(self, key: str, value: bytes) -> None:
        """Keep bytes under a key, in the same transaction as the events."""
        self._database.put(_OWN + key, value)

    def _begin(self, empty: MemberState) -> None:
        self._database.forget()
        self._drop_pending()
        self._database.write("DELETE FROM standing")
        values = (self._model, self._dimension, empty.run, 0, "", 0, empty.reference, 0)
        self._database.write("INSERT INTO standing VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *values)
        self._database.put(_FIXED, write_fixed(empty.fixed))
        self._database.put(_RESIDUAL, write_floats(empty.residual))

    def _join(self, event: Joined) -> None:
        [(run, plan)] = self._database.rows("SELECT run, plan FROM standing")
        if run != event.run or _read_plan(plan) != event.plan:
            self._begin_run(event.run, event.plan)
        self._database.write("UPDATE standing SET context = ?", event.context)

    def _begin_run(self, run: bytes, plan: Plan) -> None:
        self._drop_pending()
        self._put_silence(silent=False, silences=0)
        empty = new_state(self._dimension)
        self._database.put(_FIXED, write_fixed(empty.fixed))
        self._database.put(_RESIDUAL, write_floats(empty.residual))
        self._database.write(
            "UPDATE standing SET run = ?, plan = ?, version = 0, reference = ?, finished = 0",
            run,
            json.dumps(to_numbers(plan)),
            genesis(self._model, run, plan),
        )

    def _advance(self, event: Advanced) -> None:
        self._drop_pending()
        self._put_silence(silent=False, silences=self._silence()[1])
        self._database.put(_FIXED, write_fixed(event.fixed))
        self._database.put(_RESIDUAL, write_floats(event.residual))
        self._database.write(
            "UPDATE standing SET version = ?, reference = ?, finished = ?",
            event.version,
            event.reference,
            event.finished,
        )

    def _keep(self, pending: Pending) -> None:
        self._drop_pending()
        self._database.put(_CORRECTED, write_floats(pending.corrected))
        self._database.write("INSERT INTO pending VALUES (?, ?, 0)", pending.round, pending.digest)
        self._database.write_many(
            "INSERT INTO pending_body VALUES (?, ?)", enumerate(pending.bodies)
        )

    def _drop_pending(self) -> None:
        self._database.write("DELETE FROM pending")
        self._database.write("DELETE FROM pending_body")

    def _pending(self) -> tuple[Pending | None, bool]:
        found = self._database.rows("SELECT round, digest, received FROM pending")
        if not found:
            return None, False
        round_number, digest, received = found[0]
        bodies = self._database.rows("SELECT body FROM pending_body ORDER BY position")
        corrected = read_floats(self._vector(_CORRECTED))
        kept = Pending(round_number, corrected, digest, tuple(body for (body,) in bodies))
        return kept, bool(received)

    def _silence(self) -> tuple[bool, int]:
        value = self._database.get(_SILENCE)
        return (False, 0) if value is None else _SILENCES.unpack(value)

    def _put_silence(self, *, silent: bool, silences: int) -> None:
        self._database.put(_SILENCE, _SILENCES.pack(silent, silences))

    def _vector(self, key: str) -> bytes:
        value = self._database.get(key)
        if value is None:
            raise ValueError(f"{key} is missing")
        return value


def _read_plan(text: str) -> Plan | None:
    return from_numbers(tuple(json.loads(text))) if text else None
