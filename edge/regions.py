"""A board that takes the nearest of several aggregators: its looks at them, and its moves.

A move is what a restart with another aggregator in the settings would be, but for an update that
may count where the board was (`ternmesh.federated.events.SentTo`).
"""

import json
import logging
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from edge.config import NodeConfig
from edge.node import Node
from ternmesh.errors import SecurityError
from ternmesh.federated.channel import BLOCK
from ternmesh.federated.events import NodeEvent, SentTo
from ternmesh.federated.grouping import Grouping
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import NodeState, new_node_state
from ternmesh.security.authenticator import OPEN, SecurityLayer
from ternmesh_service.keyring import Keyring, NoKeyring
from ternmesh_store.node_store import NodeStore
from transports.driver import Driver
from transports.link_config import LinkConfig, link_settings
from transports.mqtt.transport import MqttTransport

LOOK_MAX_S = 5.0  # of a look at all
SLICE_S = 0.002  # by which answers may seem to be late
KEY = "regions"  # of what the store keeps

_log = logging.getLogger(__name__)


class Regions:
    """The choice of a board among the aggregators of its settings."""

    def __init__(self, config: NodeConfig, keyring: Keyring | NoKeyring) -> None:
        self._rng = np.random.default_rng()
        self.grouping = Grouping(next(iter(config.link.aggregators)), self._rng, time.monotonic())
        self._config = config
        self._keyring = keyring

    @property
    def parts(self) -> dict[str, Callable[[], Any]]:
        """What of a board's status is its own."""
        return {"belongs_to": lambda: self.grouping.name, "trips_s": lambda: self.grouping.trips_s}

    def begin(self, store: NodeStore, state: NodeState) -> tuple[LinkConfig, NodeState]:
        """The link to the present one, at first that which is named first, and the state there."""
        self._store, pending = store, state.pending
        name, since, digest, sent_to = json.loads(store.get(KEY) or b'["", 0, "", null]')
        if pending and sent_to and pending.digest.hex() == digest:
            state = replace(state, pending=replace(pending, sent_to=SentTo(*sent_to)))
        if name in self._config.link.aggregators:
            self.grouping.begin(name, since, time.monotonic())
        return self._config.link.toward(self.grouping.name), state

    def turn(self, node: Node) -> bool:
        """Look at all, if it is time for that. True where the board moves: it starts again."""
        grouping, protocol = self.grouping, node.protocol
        if (residual := grouping.settled(protocol, time.monotonic())) is not None:
            self._store.settle(residual)
            return True
        is_busy = node.trainer.round is not None or protocol.finished
        if is_busy or not grouping.is_due(protocol, time.monotonic()):
            return False
        seen = self._look(node)
        # The steps of a round that has begun would pass for time of the answers.
        is_fair = node.trainer.round is None
        chosen = grouping.choose(seen, time.monotonic()) if is_fair else grouping.name
        if chosen == grouping.name:
            return False
        _log.warning("%s goes from %s to %s", self._config.name, grouping.name, chosen)
        self.go_to(chosen, protocol)
        protocol.joining.say_away(protocol.version)
        node.turn(0.0)
        return True

    def go_to(self, name: str, node: NodeProtocol) -> None:
        """The next session of this board is with the host `name`."""
        sent_to, pending = self.grouping.stays_at(node), node.pending
        digest = pending.digest.hex() if pending else ""
        kept = name, node.version, digest, sent_to and astuple(sent_to)
        self._store.put(KEY, json.dumps(kept).encode())
        self._store.commit()

    def _look(self, node: Node) -> dict[str, NodeProtocol]:
        """Say hello to all at once; it takes seconds. Without samples, the others only answer."""
        seen = {self.grouping.name: node.protocol}
        drivers: list[Driver[NodeEvent]] = []
        counter = self._store.reserve(BLOCK)
        with ExitStack() as stack:
            for name in self._config.link.aggregators.keys() - seen.keys():
                link = self._config.link.toward(name)
                try:
                    seen[name] = look = self._new_look(node, link.aggregator, counter)
                except SecurityError as error:
                    _log.warning("%s is left out: %s", name, error)
                    continue
                end = link_settings(link, self._config.name)
                end = replace(end, client_id=f"{end.identity}-look", session_expiry_s=0)
                drivers.append(Driver(look, MqttTransport(end), time.monotonic))
                drivers[-1].transport.open()
                stack.callback(drivers[-1].transport.close)
            node.protocol.joining.trip_s, began = math.inf, time.monotonic()
            for one in seen.values():
                one.say_hello(began)
            while time.monotonic() < began + LOOK_MAX_S and node.trainer.round is None:
                for driver in drivers:
                    driver.poll(0.0, lambda _: None, lambda: None)
                node.turn(SLICE_S)
                if all(one.joining.trip_s < math.inf for one in seen.values()):
                    break
        return seen

    def _new_look(self, node: Node, aggregator: str, counter: int) -> NodeProtocol:
        name, settings = self._config.name, node.protocol.settings
        made = self._keyring.security(name, settings.model_hash, counter, aggregator=aggregator)
        return NodeProtocol(
            settings,
            new_node_state(node.package.dimension),
            samples=0,
            rng=self._rng,
            security=SecurityLayer(made.sealing, OPEN.authenticator),
        )
