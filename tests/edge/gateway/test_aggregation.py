"""A gateway that aggregates: boards, gateway and host over in-memory hubs, with its file."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edge.gateway.aggregation import AggregateConfig, GatewayAggregation
from edge.gateway.service import Gateway, read_gateway_config
from models.zoo import package_path
from ternmesh.config import ConfigError
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
from transports.loopback import LoopbackHub

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


def test_rounds_arrive_as_partial_aggregates_and_status_shows_it(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(rounds=2)
    assert fleet.host.version == 2
    assert all(node.partial_aggregate is not None for node in fleet.host.nodes.values())
    status = fleet.aggregation.status()
    assert (status.made, status.counted, status.updates) == (2, 2, 4)
    assert not status.refused


def test_a_gateway_that_restarts_goes_on(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.run(rounds=1)
    fleet.gateway.close()
    fleet.state.close()
    fleet.start_gateway()
    fleet.now += 31.0  # the host announces its run
    fleet.run(rounds=2)
    assert fleet.host.version == 2
    assert fleet.aggregation.status().counted == 1


CONFIG = """
state_dir = "state"
[radio]
region = "EU868"
[radio.serial]
port = "/dev/ttyUSB0"
dialect = "rnode"
frequency_hz = 869525000
addresses = { ada = 1, bo = 2 }
[network]
url = "mqtt://127.0.0.1"
[aggregate]
"""


def test_the_model_is_a_shipped_one_or_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(CONFIG)
    assert read_gateway_config(path).aggregate == AggregateConfig(None, 10.0)
    path.write_text(CONFIG + 'model = "keyword"\nwait_s = 3')
    assert read_gateway_config(path).aggregate == AggregateConfig("keyword", 3.0)
    (tmp_path / "mine").symlink_to(package_path("keyword"))
    path.write_text(CONFIG + 'model = "mine"')
    config = read_gateway_config(path).aggregate
    assert config.model == str(tmp_path / "mine")
    assert load_model_package(config.model) == MODEL


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('model = "nobody"', "aggregate.model is 'nobody': no such folder"),
        ('model = "."', "model.json cannot be read"),
        ('model = "keyword"\nwait_s = 0', "aggregate.wait_s is 0.0"),
    ],
)
def test_a_wrong_table_is_one_sentence(tmp_path: Path, line: str, sentence: str) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(CONFIG + line)
    with pytest.raises(ConfigError, match=sentence):
        read_gateway_config(path)
