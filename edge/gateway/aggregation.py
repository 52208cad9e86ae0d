"""Partial aggregates of a trusted gateway: a `GatewayAggregator` with its store and clock."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ternmesh.config import limits
from ternmesh.federated.gateway.aggregator import GatewayAggregator, Group
from ternmesh.federated.gateway.partial_aggregate import (
    GatewayEvent,
    PartialAggregateMade,
    PartialAggregateSettled,
    RunFollowed,
)
from ternmesh.model_package import ModelPackage
from ternmesh_service.config_file import MODEL
from ternmesh_service.status import AggregatorStatus
from ternmesh_store.gateway_store import GatewayStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AggregateConfig:
    """`[aggregate]`: with a `model`, the gateway adds up the updates of its boards.

    `model` is the name of a shipped model, or a folder with a model.json. After the first frame of
    a round the gateway waits at most `wait_s` for all boards.
    """

    model: str | None = field(default=None, metadata=MODEL)
    wait_s: float = field(default=10.0, metadata=limits(0.1, 3600.0))


class GatewayAggregation:
    """Takes all frames that pass a gateway; `settle` returns those to forward.

    It goes on with what is in `store`. Methods may raise StoreError.
    """

    def __init__(
        self,
        model: ModelPackage,
        boards: Sequence[str],
        wait_s: float,
        store: GatewayStore,
        clock: Callable[[], float],
        rng: np.random.Generator,
    ) -> None:
        self.aggregates_made = 0
        self.aggregates_counted = 0  # by the host
        self.updates_aggregated = 0
        self._store = store
        self._clock = clock
        model_hash = model.model_hash()
        state = store.load(model_hash, model.dimension)
        self._aggregator = GatewayAggregator(model_hash, boards, wait_s, state, rng)
        self._aggregator.start(clock())

    def receive_up(self, board: str, frames: Sequence[bytes]) -> None:
        """Take a board's frames for the host."""
        self._aggregator.receive_up(board, frames, self._clock())

    def receive_down(self, peer: str, frames: Sequence[bytes]) -> None:
        """Take the host's frames for a board or for all."""
        self._aggregator.receive_down(peer, frames, self._clock())

    def handle_timeouts(self) -> None:
        now, due = self._clock(), self._aggregator.next_timeout()
        if due is not None and now >= due:
            self._aggregator.handle_timeout(now)

    def settle(self) -> tuple[list[Group], list[Group]]:
        """Store all events, and only then return the frames: up by board, and down by peer."""
        while (event := self._aggregator.next_event()) is not None:
            self._store.record(event)
            self._count(event)
        self._store.commit()
        return self._aggregator.frames_up(), self._aggregator.frames_down()

    def status(self) -> AggregatorStatus:
        aggregator = self._aggregator
        return AggregatorStatus(
            run=None if aggregator.plan is None else aggregator.run.hex(),
            refused=aggregator.is_refused,
            made=self.aggregates_made,
            counted=self.aggregates_counted,
            updates=self.updates_aggregated,
        )

    def _count(self, event: GatewayEvent) -> None:
        match event:
            case RunFollowed(run=run):
                _log.info("run %s is aggregated", run.hex())
            case PartialAggregateMade(partial_aggregate=made):
                self.aggregates_made += 1
                self.updates_aggregated += len(made.rows)
            case PartialAggregateSettled(is_counted=is_counted):
                self.aggregates_counted += is_counted
            case _:
                pass  # only the store needs the others
