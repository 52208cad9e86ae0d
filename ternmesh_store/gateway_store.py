"""What an aggregating gateway stores: its run, its residual, a pending partial aggregate."""

import json

from ternmesh.federated.events import CountersReserved
from ternmesh.federated.gateway.partial_aggregate import (
    GatewayEvent,
    GatewayState,
    PartialAggregate,
    PartialAggregateMade,
    PartialAggregateSettled,
    RunFollowed,
    VersionReached,
    new_gateway_state,
    read_partial_aggregate,
)
from ternmesh.plan import from_numbers, to_numbers
from ternmesh_store.database import Database
from ternmesh_store.store import END, Store, StoredValues

_RESIDUAL, _WANTED = "residual", "wanted"


class GatewayStore(Store):
    """The tables of one gateway. `load` comes before `record`."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._values = StoredValues(database, "gateway_value")

    def load(self, model_hash: bytes, dimension: int) -> GatewayState:
        """The state of the last commit. The state of another model is deleted.

        The seal counter stays even then: it must never go back.
        """
        sql = "SELECT run, plan, version FROM gateway_run WHERE model = ? AND dimension = ?"
        rows = self._database.rows(sql, model_hash, dimension)
        if not rows:
            self._begin(model_hash, dimension)
            rows = self._database.rows(sql, model_hash, dimension)
        run, plan, version = rows[0]
        return GatewayState(
            residual=self._values.floats(_RESIDUAL),
            run=run,
            plan=from_numbers(tuple(json.loads(plan))) if plan else None,
            version=version,
            pending=self._pending(),
            counter=self._read_counter(END),
        )

    def record(self, event: GatewayEvent) -> None:
        """Write what must survive of an event. `commit` makes it durable."""
        update = self._database.update
        match event:
            case CountersReserved():
                self._reserve_counters(END, event.limit)
            case RunFollowed():
                plan = json.dumps(to_numbers(event.plan))
                update("gateway_run", {"run": event.run, "plan": plan, "version": 0})
                self._empty(event.plan.dimension)
            case PartialAggregateMade(made):
                self._drop_pending()
                self._values.put_floats(_WANTED, made.wanted)
                self._database.insert("gateway_pending", made.round, made.board)
                for row in enumerate(made.bodies):
                    self._database.insert("gateway_pending_body", *row)
            case PartialAggregateSettled():
                self._drop_pending()
                self._values.put_floats(_RESIDUAL, event.residual)
            case VersionReached():
                update("gateway_run", {"version": event.version})

    def _begin(self, model_hash: bytes, dimension: int) -> None:
        self._values.forget()
        self._database.clear("gateway_run")
        run = new_gateway_state(dimension).run
        self._database.insert("gateway_run", model_hash, dimension, run, "", 0)
        self._empty(dimension)
        self.commit()

    def _empty(self, dimension: int) -> None:
        self._drop_pending()
        self._values.put_floats(_RESIDUAL, new_gateway_state(dimension).residual)

    def _drop_pending(self) -> None:
        self._database.clear("gateway_pending", "gateway_pending_body")

    def _pending(self) -> PartialAggregate | None:
        pending = self._database.rows("SELECT round, board FROM gateway_pending")
        if not pending:
            return None
        [(round_number, board)] = pending
        rows = self._database.rows("SELECT body FROM gateway_pending_body ORDER BY position")
        wanted = self._values.floats(_WANTED)
        return read_partial_aggregate(round_number, board, wanted, [body for (body,) in rows])
