"""Whole nodes over a loopback hub, with a real host and a clock that the test moves."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.loopback import LoopbackHub
from edge.config import DataConfig, EvaluateConfig, NodeConfig, ResourcesConfig, TrainingConfig
from edge.data.front import CACHE, Front
from edge.data.node_data import open_data
from edge.node import Node
from edge.onnx.session import LoadedModel, TrainStep
from edge.service import run_node
from ternmesh.codec.scale import to_float
from ternmesh.federated.evaluation import Evaluation
from ternmesh.federated.events import GlobalUpdateMade
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.state import HostSettings, HostState, new_host_state
from ternmesh.plan import Plan, make_plan
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile
from transports.base import Transport
from transports.driver import Driver
from transports.link_config import LinkConfig

ROUNDS, STEPS = 6, 10
RUN, SECOND_RUN = b"first   ", b"second  "


def new_plan(rounds: int = ROUNDS, steps: int = STEPS, **more: Any) -> Plan:
    return make_plan(
        18,
        rounds=rounds,
        local_steps=steps,
        learning_rate=0.05,
        up_zeros=0.5,
        down_zeros=0.5,
        **more,
    )


def board_config(folder: Path, model: Path, **more: Any) -> NodeConfig:
    """A board "ada" that no broker answers, with its samples in `folder`."""
    return NodeConfig(
        name="ada",
        state_dir=str(folder / "state"),
        model=str(model),
        link=LinkConfig("mqtt://127.0.0.1:9"),
        data=DataConfig(path=str(folder / "ada.npz")),
        training=TrainingConfig(samples_min=8),
        **more,
    )


class Host:
    """A host at one end of a transport, and what it has counted."""

    def __init__(
        self,
        loaded: LoadedModel,
        end: Transport,
        clock: Callable[[], float],
        plan: Plan,
        *,
        run: bytes = RUN,
        min_peers: int = 1,
        state: HostState | None = None,
    ) -> None:
        self.protocol = HostProtocol(
            plan=plan,
            settings=HostSettings(min_peers, deadline_s=60.0),
            model_hash=loaded.package.model_hash(),
            run=run,
            state=state or new_host_state(plan.dimension),
        )
        self.counted: Counter[int] = Counter()  # rounds by address
        self.evaluations: list[Evaluation] = []  # by version of the global adapter
        end.open()
        self.driver = Driver(self.protocol, end, clock)
        self.protocol.start(clock())

    def turn(self, wait_s: float = 0.0) -> bool:
        return self.driver.poll(wait_s, self._note, lambda: None)

    def _note(self, event: object) -> None:
        if isinstance(event, GlobalUpdateMade):
            self.counted.update(entry.address for entry in event.counted)
            self.evaluations.append(event.evaluation)


class World:
    """A host, nodes by name, and the time. `data` are the arrays of each name's file."""

    def __init__(
        self, loaded: LoadedModel, data: Mapping[str, Mapping[str, Any]], folder: Path
    ) -> None:
        self.loaded, self.folder = loaded, folder
        self.hub = LoopbackHub()
        self.now = 1000.0
        self.nodes: dict[str, Node] = {}
        self.opened: dict[str, ExitStack] = {}
        for name, arrays in data.items():
            np.savez(folder / f"{name}.npz", **arrays)

    def new_host(self, plan: Plan | None = None, **more: Any) -> None:
        self.host = Host(self.loaded, self.hub.host(), lambda: self.now, plan or new_plan(), **more)

    def config(self, name: str) -> NodeConfig:
        return NodeConfig(
            name=name,
            state_dir=str(self.folder / f"state-{name}"),
            model=str(self.loaded.folder),
            link=LinkConfig("mqtt://unused.example"),
            data=DataConfig(path=str(self.folder / f"{name}.npz")),
            evaluate=EvaluateConfig(path=str(self.folder / "dev.npz")),
            training=TrainingConfig(samples_min=8),
            resources=ResourcesConfig(temperature_max_c=0, memory_pressure_max=0),
        )

    def add(self, name: str, config: NodeConfig | None = None) -> Node:
        config, stack = config or self.config(name), ExitStack()
        file, end = StateFile(Path(config.state_dir)), self.hub.node(name)
        file.open()
        stack.callback(file.close)
        store, package = NodeStore(file), self.loaded.package
        state = store.load(package.model_hash(), package.dimension)
        front = Front(self.loaded, cache=Path(config.state_dir, CACHE))
        data = open_data(config, package, file, front)
        node = Node(config, self.loaded, data, store, state, end, lambda: self.now)
        end.open()
        stack.callback(end.close)
        self.nodes[name], self.opened[name] = node, stack
        node.start()
        return node

    def cut_power(self, name: str) -> None:
        """What was not committed is gone; nothing says goodbye."""
        del self.nodes[name]
        self.opened.pop(name).close()

    def turn(self, names: Sequence[str] | None = None) -> bool:
        moved = self.host.turn()
        for name, node in list(self.nodes.items()):
            if names is None or name in names:
                moved |= node.turn(0.0)
        return moved

    def until(
        self, done: Callable[[], Any], names: Sequence[str] | None = None, each_s: float = 0.0
    ) -> None:
        """Turn until `done`; time passes where nothing moves, and `each_s` in any case."""
        for _ in range(5000):
            if done():
                return
            self.now += each_s
            if not self.turn(names):
                self.now += 1.0
        raise AssertionError("the fleet stands still")

    def finish(self) -> None:
        self.until(lambda: all(node.protocol.finished for node in self.nodes.values()))

    def until_run(self, node: Node, run: bytes) -> None:
        """Until the node has joined that run."""
        self.until(lambda: node.protocol.run == run, each_s=1.0)

    def global_adapter(self) -> np.ndarray:
        return self.loaded.initial + to_float(self.host.protocol.model_q24)

    def close(self) -> None:
        for name in list(self.nodes):
            self.cut_power(name)


def replace_step(patch: pytest.MonkeyPatch, step: Callable[..., Any]) -> None:
    """Train with `step(run, adapter, batch)`, where `run` is the real one."""
    run = TrainStep.run
    patch.setattr(TrainStep, "run", lambda self, *given: step(lambda *now: run(self, *now), *given))


@contextmanager
def running(config: NodeConfig) -> Iterator[threading.Thread]:
    """A node in a thread of this process, which must end when it is stopped."""
    stop = threading.Event()
    thread = threading.Thread(target=run_node, args=(config, stop), kwargs={"insecure": True})
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()
