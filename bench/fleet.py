"""A fleet in one process for benchmarks: the real state machines, drivers, codec and train step.

Only the bearer is simulated (an in-memory hub that counts bytes as MQTT messages), and processes
are missing; `ternmesh demo` has both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge import adam
from edge.session import LoadedBundle, TrainStep
from edge.trainer import Step, Trainer, round_rng
from ternmesh.hypervector.scale import to_float
from ternmesh.plan import Plan
from ternmesh.swarm import member, records
from ternmesh.swarm.coordinator import Coordinator
from ternmesh.swarm.events import HostEvent, NodeEvent, WorkReady
from ternmesh.swarm.member import Member
from transports.driver import Driver
from transports.loopback import LoopbackHub

Vector = NDArray[np.float32]


class Clips:
    """Samples in memory, by the names of the model's tensors."""

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def batch(self, indexes: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The arrays of the given samples."""
        return {name: array[indexes] for name, array in self.arrays.items()}


def gradient_step(loaded: LoadedBundle, _name: str) -> Step:
    """What a board trains with if nothing else is asked for."""
    return TrainStep(loaded.folder, loaded.bundle, 1)


MakeStep = Callable[[LoadedBundle, str], Step]


@dataclass(frozen=True, slots=True)
class FleetRun:
    """What a run ended with; bytes are those on the wire, for one node and round."""

    vector: Vector
    bytes_up: float
    bytes_down: float


def run_fleet(
    loaded: LoadedBundle,
    data: Sequence[Clips],
    plan: Plan,
    seed: int,
    make_step: MakeStep = gradient_step,
) -> FleetRun:
    """Train one board per element of `data` through the whole protocol, without loss of frames."""
    hub, now = LoopbackHub(), 0.0
    model_hash = loaded.bundle.model_hash()
    settings = records.Settings(min_peers=len(data), deadline_s=60.0)
    state = records.new_state(plan.dimension)
    host = Coordinator(plan, settings, model_hash, (seed + 1).to_bytes(8, "little"), state)
    host_driver: Driver[HostEvent] = Driver(host, hub.host(), lambda: now)
    boards = [
        _Board(hub, f"board-{i}", loaded, clips, model_hash, seed, lambda: now, make_step)
        for i, clips in enumerate(data)
    ]
    host.start(now)
    host_driver.transport.open()
    for board in boards:
        board.driver.transport.open()
        board.member.start(now)
    while host.version < plan.rounds:
        moved = host_driver.poll(0.0, lambda _: None, lambda: None)
        for board in boards:
            moved |= board.poll(now)
        if not moved:
            raise RuntimeError(f"the fleet stands still at round {host.version}")
    per_round = len(boards) * plan.rounds
    traffic = [board.driver.traffic["host"] for board in boards]
    up = sum(t.bytes_out for t in traffic) / per_round
    down = host_driver.traffic["all"].bytes_out / plan.rounds
    down += sum(host_driver.traffic[b.member.name].bytes_out for b in boards) / per_round
    return FleetRun(loaded.initial + to_float(host.fixed), up, down)


class _Board:
    def __init__(
        self,
        hub: LoopbackHub,
        name: str,
        loaded: LoadedBundle,
        clips: Clips,
        model_hash: bytes,
        seed: int,
        clock: Any,
        make_step: MakeStep,
    ) -> None:
        dimension = loaded.bundle.dimension
        self.member = Member(
            name,
            model_hash,
            len(clips),
            name.encode().ljust(8)[:8],
            member.new_state(dimension),
            np.random.default_rng(seed),
        )
        self.driver: Driver[NodeEvent] = Driver(self.member, hub.node(name), clock)
        self._initial, self._seed = loaded.initial, seed
        step = make_step(loaded, name)
        self._trainer = Trainer(step, clips, loaded.bundle.batch, adam.AdamSettings())
        self._round: int | None = None

    def poll(self, now: float) -> bool:
        """Serve the network, then train if there is a round to train for."""
        moved = self.driver.poll(0.0, self._take, lambda: None)
        if self._round is None:
            return moved
        plan, number = self.member.plan, self._round
        assert plan is not None
        reference = self._initial + to_float(self.member.fixed)
        rng = round_rng(self._seed, self.member.name, number)
        self._trainer.begin(number, reference + self.member.residual, plan, rng)
        while self._trainer.step():
            pass
        self.member.submit(number, self._trainer.delta(), now)
        self._round = None
        return True

    def _take(self, event: NodeEvent) -> None:
        if isinstance(event, WorkReady):
            self._round = event.round


def average_in_float(
    loaded: LoadedBundle,
    data: Sequence[Clips],
    plan: Plan,
    seed: int,
    make_step: MakeStep = gradient_step,
) -> Vector:
    """The peer: the same local training, whole float32 deltas averaged by samples, no codec."""
    steps = [make_step(loaded, f"board-{index}") for index in range(len(data))]
    vector = loaded.initial
    samples = np.array([len(clips) for clips in data], dtype=np.float32)
    for number in range(plan.rounds):
        deltas = []
        for index, clips in enumerate(data):
            trainer = Trainer(steps[index], clips, loaded.bundle.batch, adam.AdamSettings())
            trainer.begin(number, vector, plan, round_rng(seed, f"board-{index}", number))
            while trainer.step():
                pass
            deltas.append(trainer.delta())
        vector = vector + np.average(deltas, axis=0, weights=samples).astype(np.float32)
    return vector
