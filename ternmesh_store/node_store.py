"""What a node stores: its place in the run, its residual, its pending update."""

import json
from dataclasses import replace

from ternmesh.federated import events
from ternmesh.federated.state import Learned, NodeState, new_node_state
from ternmesh.model_package import keeps_adapter
from ternmesh.plan import Plan, from_numbers, genesis, to_numbers
from ternmesh.types import Vector
from ternmesh.wire.control import Numbers
from ternmesh_store.database import Database
from ternmesh_store.store import END, Store, StoredValues

_MODEL, _RESIDUAL, _CORRECTED, _OWN = "model_q24", "residual", "corrected", "own_q24"
_BEFORE = "before."  # before the keys of the vectors of the run before
_KEY = "adapter_key"  # of the model
_PROGRAM = "program."  # before the keys of `get` and `put`
_PENDING = ("node_pending", "node_pending_body")


class NodeStore(Store):
    """The tables of one node. `load` comes before `record`."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._values = StoredValues(database, "node_value")
        self._model = b""  # the hash of the model
        self._dimension = 0

    def load(self, model_hash: bytes, dimension: int, adapter_key: bytes = b"") -> NodeState:
        """The state of the last commit. The state of another model is deleted.

        The seal counter stays even then: it must never go back. So does what was learned where the
        keys of both models allow it (`keeps_adapter`): as `before`.
        """
        self._model = model_hash
        self._dimension = dimension
        counter = self._read_counter(END)
        rows = self._database.rows(
            "SELECT run, address, plan, version, global_hash, finished, silent, silences "
            "FROM node_run WHERE model = ? AND dimension = ?",
            model_hash,
            dimension,
        )
        if not rows:
            fits = keeps_adapter(self._values.get(_KEY), adapter_key)
            empty = replace(new_node_state(dimension), before=self._learned() if fits else None)
            self._begin(empty)
            self._values.put(_KEY, adapter_key)
            self.commit()
            return replace(empty, counter=counter)
        run, address, plan, version, global_hash, finished, silent, silences = rows[0]
        pending, received = self._pending()
        return NodeState(
            model_q24=self._values.integers(_MODEL),
            residual=self._values.floats(_RESIDUAL),
            run=run,
            address=address,
            plan=_read_plan(plan),
            version=version,
            global_hash=global_hash,
            finished=bool(finished),
            pending=pending,
            received=received,
            counter=counter,
            silent=bool(silent),
            silences=silences,
            chain=self._chain("node_chain"),
            before=self._learned() if version == 0 else None,
            own_q24=self._values.integers(_OWN) if self._values.get(_OWN) else None,
        )

    def record(self, event: events.NodeEvent) -> None:
        """Write what must survive of an event: of others nothing. `commit` makes it durable."""
        match event:
            case events.CountersReserved():
                self._reserve_counters(END, event.limit)
            case events.Joined():
                self._join(event)
            case events.Advanced():
                self._advance(event)
            case events.UpdateMade():
                self._put_pending(event.pending)
                self._database.update("node_run", {"silent": 0, "silences": 0})
            case events.UpdateReceived():
                self._database.update("node_pending", {"received": 1}, "round = ?", event.round)
            case events.ResidualChanged():
                self._values.put_floats(_RESIDUAL, event.residual)
            case events.FellSilent():
                self._values.put_floats(_RESIDUAL, event.residual)
                self._database.update("node_run", {"silent": 1, "silences": event.in_a_row})
            case events.SettingsTaken():
                self._database.clear("node_settings")
                settings = json.dumps(event.settings)
                self._database.insert("node_settings", event.number, settings)

    def reserve(self, count: int) -> int:
        """Reserve seal counters for another session, and commit; the first of them."""
        first = self._read_counter(END)
        self._reserve_counters(END, first + count)
        self.commit()
        return first

    def settle(self, residual: Vector) -> None:
        """Take the pending update for counted: the node begins anew with this residual."""
        self._database.clear(*_PENDING)
        self._values.put_floats(_RESIDUAL, residual)
        self.commit()

    def settings(self) -> tuple[int, Numbers]:
        """The settings of the host and their number, whatever the model is; 0 for none."""
        rows = self._database.rows("SELECT number, settings FROM node_settings")
        return (int(rows[0][0]), tuple(json.loads(rows[0][1]))) if rows else (0, ())

    def get(self, key: str) -> bytes | None:
        """The bytes that the node's program has put under `key` for this model."""
        return self._values.get(_PROGRAM + key)

    def put(self, key: str, value: bytes) -> None:
        """Store bytes in the same transaction as the events."""
        self._values.put(_PROGRAM + key, value)

    def _begin(self, empty: NodeState) -> None:
        self._values.forget()
        self._database.clear(*_PENDING, "node_chain", "node_run")
        begin = (empty.run, 0, "", 0, empty.global_hash)  # without an address or a plan
        self._database.insert("node_run", self._model, self._dimension, *begin, 0, 0, 0)
        self._put_vectors(empty)
        if empty.before is not None:
            self._put_vectors(empty.before, _BEFORE)

    def _join(self, event: events.Joined) -> None:
        [(run, plan)] = self._database.rows("SELECT run, plan FROM node_run")
        if run != event.run or _read_plan(plan) != event.plan:
            self._begin_run(event.run, event.plan)
        self._database.update("node_run", {"address": event.address})

    def _begin_run(self, run: bytes, plan: Plan) -> None:
        if (learned := self._learned()) is not None:
            self._put_vectors(learned, _BEFORE)
        self._database.clear(*_PENDING, "node_chain")
        self._put_vectors(new_node_state(self._dimension))
        self._values.put(_OWN, b"")
        begin = {"run": run, "plan": json.dumps(to_numbers(plan)), "version": 0, "finished": 0}
        begin |= {"global_hash": genesis(self._model, run, plan), "silent": 0, "silences": 0}
        self._database.update("node_run", begin)

    def _advance(self, event: events.Advanced) -> None:
        self._database.clear(*_PENDING)
        self._put_vectors(event)
        own = b"" if event.own_q24 is None else event.own_q24.astype("<i4").tobytes()
        self._values.put(_OWN, own)
        reached = {"version": event.version, "global_hash": event.global_hash}
        self._database.update("node_run", reached | {"finished": event.finished, "silent": 0})
        if event.content:
            kept = event.version, event.global_hash, event.content, event.rows
            self._database.insert("node_chain", *kept)
        oldest = event.version + 1 if event.oldest is None else event.oldest
        self._database.write("DELETE FROM node_chain WHERE version < ?", oldest)

    def _put_vectors(self, source: NodeState | events.Advanced | Learned, prefix: str = "") -> None:
        self._values.put_integers(prefix + _MODEL, source.model_q24)
        self._values.put_floats(prefix + _RESIDUAL, source.residual)

    def _learned(self) -> Learned | None:
        """What this run has taught; before its first global update, what the run before has."""
        [(version,)] = self._database.rows("SELECT version FROM node_run")
        if version > 0:
            pending, _ = self._pending()
            residual = self._values.floats(_RESIDUAL) if pending is None else pending.corrected
            return Learned(self._values.integers(_MODEL), residual)
        if self._values.get(_BEFORE + _MODEL) is None:
            return None
        model_q24 = self._values.integers(_BEFORE + _MODEL)
        return Learned(model_q24, self._values.floats(_BEFORE + _RESIDUAL))

    def _put_pending(self, pending: events.Pending) -> None:
        self._database.clear(*_PENDING)
        self._values.put_floats(_CORRECTED, pending.corrected)
        self._database.insert("node_pending", pending.round, pending.digest, False)
        for row in enumerate(pending.bodies):
            self._database.insert("node_pending_body", *row)

    def _pending(self) -> tuple[events.Pending | None, bool]:
        """The pending update, and whether the host has received it."""
        rows = self._database.rows("SELECT round, digest, received FROM node_pending")
        if not rows:
            return None, False
        round_number, digest, received = rows[0]
        bodies = self._database.rows("SELECT body FROM node_pending_body ORDER BY position")
        pending = events.Pending(
            round=round_number,
            corrected=self._values.floats(_CORRECTED),
            digest=digest,
            bodies=tuple(body for (body,) in bodies),
        )
        return pending, bool(received)


def _read_plan(text: str) -> Plan | None:
    return from_numbers(tuple(json.loads(text))) if text else None
