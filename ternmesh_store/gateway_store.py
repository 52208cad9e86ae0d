"""What a bundling gateway keeps on disk: its run, its residual, a bundle of unknown fate."""

import json
from pathlib import Path

from ternmesh.plan import Plan, from_numbers, to_numbers
from ternmesh.swarm.bundle_records import (
    Bundle,
    BundleMade,
    BundlerEvent,
    BundlerState,
    BundleSettled,
    RunFollowed,
    VersionReached,
    new_state,
)
from ternmesh.swarm.bundling import bundle_units, read_bundle
from ternmesh.swarm.events import CountersReserved
from ternmesh_store.arrays import read_floats, write_floats
from ternmesh_store.database import Database, Schema, checked

SCHEMA = Schema(
    application=0x544D4757,  # "TMGW"
    version=1,
    statements=(
        """CREATE TABLE standing (
            model BLOB NOT NULL,
            dimension INTEGER NOT NULL,
            run BLOB NOT NULL,
            plan TEXT NOT NULL,
            version INTEGER NOT NULL
        )""",
        "CREATE TABLE counter (reserved INTEGER NOT NULL)",
        "INSERT INTO counter VALUES (0)",
        "CREATE TABLE pending (round INTEGER NOT NULL, board TEXT NOT NULL)",
        "CREATE TABLE pending_body (position INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    ),
)
_RESIDUAL, _WANTED = "bundler.residual", "bundler.wanted"


class GatewayStore:
    """The file of one gateway; see `Database` for errors. `load` comes before `record`."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, SCHEMA)

    def open(self) -> None:
        """Take the file, or make it."""
        self._database.open()

    def close(self) -> None:
        """Forget what was not committed, and give the file back."""
        self._database.close()

    def commit(self) -> None:
        """Make all that was recorded durable."""
        self._database.commit()

    @checked
    def load(self, model_hash: bytes, dimension: int) -> BundlerState:
        """The state of the last commit. What was kept for another model is deleted.

        The frame counter stays even then: it must never run backwards.
        """
        [(counter,)] = self._database.rows("SELECT reserved FROM counter")
        found = self._database.rows("SELECT * FROM standing")
        if not found or found[0][:2] != (model_hash, dimension):
            self._begin(model_hash, dimension)
            found = self._database.rows("SELECT * FROM standing")
        _, _, run, plan, version = found[0]
        residual = read_floats(self._vector(_RESIDUAL))
        if residual.size != dimension:
            raise ValueError(f"its residual is not of {dimension} numbers")
        state = BundlerState(
            residual=residual,
            run=run,
            plan=_read_plan(plan),
            version=version,
            pending=self._pending(),
            counter=counter,
        )
        _check_pending(state)
        return state

    def record(self, event: BundlerEvent) -> None:
        """Write what of an event must survive; `commit` makes it durable."""
        write = self._database.write
        match event:
            case CountersReserved():
                write("UPDATE counter SET reserved = ?", event.limit)
            case RunFollowed():
                plan = json.dumps(to_numbers(event.plan))
                write("UPDATE standing SET run = ?, plan = ?, version = 0", event.run, plan)
                self._empty(event.plan.dimension)
            case BundleMade(bundle):
                self._drop_pending()
                self._database.put(_WANTED, write_floats(bundle.wanted))
                write("INSERT INTO pending VALUES (?, ?)", bundle.round, bundle.board)
                rows = enumerate(bundle.bodies)
                self._database.write_many("INSERT INTO pending_body VALUES (?, ?)", rows)
            case BundleSettled():
                self._drop_pending()
                self._database.put(_RESIDUAL, write_floats(event.residual))
            case VersionReached():
                write("UPDATE standing SET version = ?", event.version)

    def _begin(self, model_hash: bytes, dimension: int) -> None:
        self._database.forget()
        self._database.write("DELETE FROM standing")
        values = (model_hash, dimension, new_state(dimension).run, "", 0)
        self._database.write("INSERT INTO standing VALUES (?, ?, ?, ?, ?)", *values)
        self._empty(dimension)
        self._database.commit()

    def _empty(self, dimension: int) -> None:
        self._drop_pending()
        self._database.put(_RESIDUAL, write_floats(new_state(dimension).residual))

    def _drop_pending(self) -> None:
        self._database.write("DELETE FROM pending")
        self._database.write("DELETE FROM pending_body")

    def _pending(self) -> Bundle | None:
        found = self._database.rows("SELECT round, board FROM pending")
        if not found:
            return None
        [(round_number, board)] = found
        rows = self._database.rows("SELECT body FROM pending_body ORDER BY position")
        wanted = read_floats(self._vector(_WANTED))
        return read_bundle(round_number, board, wanted, [body for (body,) in rows])

    def _vector(self, key: str) -> bytes:
        value = self._database.get(key)
        if value is None:
            raise ValueError(f"{key} is missing")
        return value


def _check_pending(state: BundlerState) -> None:
    """ValueError for a bundle that is not one of this run's plan."""
    bundle, plan = state.pending, state.plan
    if bundle is None:
        return
    if plan is None or plan.up.count != len(bundle.bodies) - 2:
        raise ValueError("its bundle is of another plan")
    if bundle.wanted.size != state.residual.size:
        raise ValueError(f"its bundle is not of {state.residual.size} numbers")
    bundle_units(bundle.bodies[2:], plan)


def _read_plan(text: str) -> Plan | None:
    return from_numbers(tuple(json.loads(text))) if text else None
