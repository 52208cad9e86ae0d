"""Host and nodes over links on lossy frames: each message is repeated in one place, the link."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ternmesh.federated.events import WorkReady
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import HostSettings, new_host_state, new_node_state
from ternmesh.link.settings import LinkSettings
from ternmesh.plan import make_plan
from ternmesh_store.link_store import LinkStore
from ternmesh_store.state_file import StateFile
from tests.faulty import Faults, FaultyTransport
from transports.base import HOST
from transports.driver import Driver
from transports.loopback import LoopbackHub
from transports.reliable import ReliableTransport

BOARDS = ("ada", "bo")
MODEL = bytes(32)
DIMENSION, ROUNDS = 3000, 3
SETTINGS = LinkSettings(mtu=120, idle_s=2.0, longest_s=600.0)


class Radios:
    """A fleet on one hub; `sent` counts the frames of each end."""

    def __init__(self, folder: Path, drop: float) -> None:
        self.now = 0.0
        self.folder = folder
        self.drop = drop
        self.hub = LoopbackHub(mtu=120)
        self.rng = np.random.default_rng(5)
        self.sent: Counter[str] = Counter()
        self.ends = {name: self.end(name) for name in (HOST, *BOARDS)}
        plan = make_plan(
            DIMENSION, rounds=ROUNDS, local_steps=1, learning_rate=0.1, announce_s=3600
        )
        settings = HostSettings(min_peers=2, deadline_s=36_000.0)
        pace = self.ends[HOST].pace
        state = new_host_state(DIMENSION)
        self.host = HostProtocol(
            plan=plan, settings=settings, model_hash=MODEL, run=b"run-id-8", state=state, pace=pace
        )
        self.nodes = {name: self.node(name, pace) for name in BOARDS}
        endpoints: dict[str, Any] = {HOST: self.host, **self.nodes}
        self.drivers: dict[str, Driver[Any]] = {
            name: Driver(endpoint, self.ends[name], lambda: self.now)
            for name, endpoint in endpoints.items()
        }
        for endpoint in endpoints.values():
            endpoint.start(self.now)

    def end(self, name: str) -> ReliableTransport:
        raw = self.hub.host() if name == HOST else self.hub.node(name)
        inner = FaultyTransport(
            raw, Faults(drop=self.drop, direction="send"), self.rng, lambda: self.now
        )
        send = inner.send

        def count(peer, frames):
            self.sent[name] += len(frames)
            return send(peer, frames)

        inner.send = count  # type: ignore[method-assign]
        state = StateFile(self.folder / name)
        state.open()
        end = ReliableTransport(
            inner, SETTINGS, LinkStore(state), lambda: self.now, self.rng, BOARDS
        )
        end.open()
        return end

    def node(self, name: str, pace) -> NodeProtocol:
        instance = name.encode().ljust(8)
        return NodeProtocol(
            NodeSettings(name, MODEL, instance, pace=pace),
            new_node_state(DIMENSION),
            samples=9,
            rng=self.rng,
        )

    def run(self) -> None:
        while not all(node.finished for node in self.nodes.values()):
            for name, driver in self.drivers.items():
                driver.poll(0.0, partial(self.note, name), lambda: None)
            self.now += 0.25
            assert self.now < 5000.0

    def note(self, name: str, event: object) -> None:
        if isinstance(event, WorkReady):
            delta = self.rng.normal(0, 0.01, DIMENSION).astype(np.float32)
            self.nodes[name].submit(event.round, delta, self.now)


@pytest.mark.parametrize(("drop", "frames_max"), [(0.0, 140), (0.2, 250)])
def test_each_update_and_each_global_update_is_one_object(
    tmp_path: Path, drop: float, frames_max: int
) -> None:
    air = Radios(tmp_path, drop)
    air.run()
    objects = {name: end._log.load().number for name, end in air.ends.items()}
    inquiries = len(BOARDS)  # the host asks each for its report, once
    assert objects == {HOST: ROUNDS + inquiries, **dict.fromkeys(BOARDS, ROUNDS)}
    assert sum(air.sent.values()) <= frames_max, air.sent
