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

    Methods may raise StoreError.
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
        self._model = model
        self._boards = boards
        self._wait_s = wait_s
        self._store = store
        self._clock = clock
        self._rng = rng
        self._aggregator: GatewayAggregator | None = None

    def open(self) -> None:
        """Load the stored state of an earlier process, and start."""
        model_hash = self._model.model_hash()
        state = self._store.load(model_hash, self._model.dimension)
        aggregator = GatewayAggregator(model_hash, self._boards, self._wait_s, state, self._rng)
        aggregator.start(self._clock())
        self._aggregator = aggregator

    def receive_up(self, board: str, frames: Sequence[bytes]) -> None:
        """Take a board's frames for the host."""
        self._opened().receive_up(board, frames, self._clock())

    def receive_down(self, peer: str, frames: Sequence[bytes]) -> None:
        """Take the host's frames for a board or for all."""
        self._opened().receive_down(peer, frames, self._clock())

    def handle_timeouts(self) -> None:
        """Handle the timeout of the aggregator, if it is due."""
        aggregator = self._opened()
        now = self._clock()
        due = aggregator.next_timeout()
        if due is not None and now >= due:
            aggregator.handle_timeout(now)

    def settle(self) -> tuple[list[Group], list[Group]]:
        """Store all events, and only then return the frames: up by board, and down by peer."""
        aggregator = self._opened()
        while (event := aggregator.next_event()) is not None:
            self._store.record(event)
            self._count(event)
        self._store.commit()
        return aggregator.frames_up(), aggregator.frames_down()

    def status(self) -> AggregatorStatus:
        """Counters and state."""
        aggregator = self._opened()
        return AggregatorStatus(
            run=None if aggregator.plan is None else aggregator.run.hex(),
            refused=aggregator.is_refused,
            made=self.aggregates_made,
            counted=self.aggregates_counted,
            updates=self.updates_aggregated,
        )

    def _opened(self) -> GatewayAggregator:
        assert self._aggregator is not None, "open it first"
        return self._aggregator

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
