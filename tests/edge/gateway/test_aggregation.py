"""A gateway that aggregates: boards, gateway and host over in-memory hubs, with its file."""

from functools import partial
from pathlib import Path

import numpy as np

from bench.loopback import LoopbackHub
from edge.gateway.aggregation import GatewayAggregation
from edge.gateway.service import Gateway
from ternmesh.federated.events import WorkReady
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import HostSettings, new_host_state, new_node_state
from ternmesh.plan import make_plan
from ternmesh_service.config_file import load_model_package
from ternmesh_store.gateway_store import GatewayStore
from ternmesh_store.state_file import StateFile
from transports.driver import Driver

MODEL = load_model_package("keyword")
BOARDS = ("ada", "bo")


class Fleet:
    """Two boards that learn noise; time stands still unless a test moves it."""

    def __init__(self, folder: Path) -> None:
        self.now, self.folder = 0.0, folder
        self.work: dict[str, int] = {}
        self.air, self.network = LoopbackHub(), LoopbackHub()
        plan = make_plan(MODEL.dimension, rounds=9, local_steps=1, learning_rate=0.1)
        model_hash = MODEL.model_hash()
        settings = HostSettings(min_peers=2, deadline_s=600.0, partial_aggregates=True)
        state = new_host_state(MODEL.dimension)
        self.host = HostProtocol(
            plan=plan, settings=settings, model_hash=model_hash, run=b"run-id-8", state=state
        )
        self.host_driver = Driver(self.host, self.network.host(), lambda: self.now)
        self.members = {
            name: NodeProtocol(
                NodeSettings(name, model_hash, name.encode().ljust(8)),
                new_node_state(MODEL.dimension),
                samples=10,
                rng=np.random.default_rng(1),
            )
            for name in BOARDS
        }
        self.drivers = {
            name: Driver(one, self.air.node(name), lambda: self.now)
            for name, one in self.members.items()
        }
        self.start_gateway()
        self.host_driver.transport.open()
        self.host.start(self.now)
        for name, driver in self.drivers.items():
            driver.transport.open()
            self.members[name].start(self.now)
        self.run(rounds=0)
        self.now = 31.0  # what was announced before a board had its welcome comes again
        self.run(rounds=0)

    def start_gateway(self) -> None:
        self.state = StateFile(self.folder / "gateway")
        self.state.open()
        store, rng = GatewayStore(self.state), np.random.default_rng(0)
        self.aggregation = GatewayAggregation(MODEL, BOARDS, 5.0, store, lambda: self.now, rng)
        uplinks = {name: self.network.node(name) for name in BOARDS}
        self.gateway = Gateway(self.air.host(), uplinks, self.aggregation)
        self.gateway.open()

    def run(self, rounds: int) -> None:
        """Until nothing moves any more; boards work until there are so many."""
        moved = True
        while moved:
            moved = self.host_driver.poll(0.0, lambda _: None, lambda: None)
            moved |= self.gateway.turn(0.0)
            for name, driver in self.drivers.items():
                moved |= driver.poll(0.0, partial(self.note, name), lambda: None)
                if name in self.work and self.host.version < rounds:
                    number = self.work.pop(name)
                    rng = np.random.default_rng(number)
                    delta = rng.normal(0, 0.01, MODEL.dimension).astype(np.float32)
                    self.members[name].submit(number, delta, self.now)
                    moved = True

    def note(self, name: str, event: object) -> None:
        if isinstance(event, WorkReady):
            self.work[name] = event.round


def test_rounds_arrive_as_partial_aggregates_also_after_a_restart(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(rounds=2)
    assert fleet.host.version == 2
    assert all(node.partial_aggregate is not None for node in fleet.host.nodes.values())
    status = fleet.aggregation.status()
    assert (status.made, status.counted, status.updates) == (2, 2, 4)
    assert not status.refused
    fleet.gateway.close()
    fleet.state.close()
    fleet.start_gateway()
    fleet.now += 31.0  # the host announces its run
    fleet.run(rounds=3)
    assert fleet.host.version == 3
    assert fleet.aggregation.status().counted == 1
