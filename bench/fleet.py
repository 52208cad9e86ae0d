"""A fleet in one process for benchmarks: the real state machines, drivers, codec and train step.

Only the bearer is simulated (an in-memory hub that counts bytes as MQTT messages, and may lose
frames on their way up), and processes are missing; `ternmesh demo` has both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.keys import keyed
from edge import adam
from edge.session import LoadedBundle, TrainStep
from edge.trainer import Step, Trainer, round_rng
from ternmesh.hypervector.scale import to_float
from ternmesh.plan import Plan
from ternmesh.swarm import member, records
from ternmesh.swarm.coordinator import Coordinator
from ternmesh.swarm.events import HostEvent, NodeEvent, WorkReady
from ternmesh.swarm.member import Member
from ternmesh.trust.notary import OPEN, Trust
from ternmesh.trust.roster import HOST
from ternmesh.wire import manifest, seal, share
from transports import batch
from transports.driver import Driver
from transports.loopback import LoopbackHub, LoopbackTransport

Vector = NDArray[np.float32]
DEADLINE_S = 1.0  # before any node sends a packet again


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
    """What a run ended with: the adapter that all agree on, and what each board made of it.

    Bytes are those on the wire, for one node and round.
    """

    vector: Vector
    bytes_up: float
    bytes_down: float
    own: tuple[Vector, ...] = ()


def run_fleet(
    loaded: LoadedBundle,
    data: Sequence[Clips],
    plan: Plan,
    seed: int,
    make_step: MakeStep = gradient_step,
    *,
    drop: float = 0.0,
    keep_moments: bool = False,
    keys: bool = False,
) -> FleetRun:
    """Train one board per element of `data` through the whole protocol.

    Each frame of a packet is lost with the probability `drop`; a round then closes before anything
    is sent again, unless no packet at all could be used. With `keys` all is sealed and signed.
    """
    clock = Clock()
    hub, model_hash = LoopbackHub(), loaded.bundle.model_hash()
    settings = records.Settings(min_peers=1 if drop else len(data), deadline_s=DEADLINE_S)
    state = records.new_state(plan.dimension)
    names = [f"board-{index}" for index in range(len(data))]
    trust = keyed(names, model_hash, seed) if keys else lambda _name: OPEN
    run = (seed + 1).to_bytes(8, "little")
    host = Coordinator(plan, settings, model_hash, run, state, trust(HOST))
    host_driver: Driver[HostEvent] = Driver(host, hub.host(), clock)
    boards = []
    for index, (name, clips) in enumerate(zip(names, data, strict=True)):
        link = _Lossy(hub, name, drop, np.random.default_rng((seed, index)))
        trainer = Trainer(
            make_step(loaded, name),
            clips,
            loaded.bundle.batch,
            adam.AdamSettings(),
            keep_moments=keep_moments,
        )
        board = Board(link, name, loaded, trainer, len(clips), seed, clock, trust(name))
        boards.append(board)
    host.start(clock.now)
    host_driver.transport.open()
    for board in boards:
        board.driver.transport.open()
        board.member.start(clock.now)
    run_until_finished(host_driver, boards, clock, plan.rounds)
    per_round = len(boards) * plan.rounds
    traffic = [board.driver.traffic["host"] for board in boards]
    up = sum(t.bytes_out for t in traffic) / per_round
    down = host_driver.traffic["all"].bytes_out / plan.rounds
    down += sum(host_driver.traffic[b.member.name].bytes_out for b in boards) / per_round
    vector = loaded.initial + to_float(host.fixed)
    own = tuple(vector + board.member.residual for board in boards)
    return FleetRun(vector, up, down, own)


def run_until_finished(
    host: Driver[HostEvent],
    boards: "Sequence[Board]",
    clock: "Clock",
    rounds: int,
    between: Callable[[], bool] = lambda: False,
) -> None:
    """Serve everybody in turn; `between` is what stands between host and boards, if anything."""
    coordinator = host.endpoint
    assert isinstance(coordinator, Coordinator)
    while coordinator.version < rounds:
        moved = host.poll(0.0, lambda _: None, lambda: None)
        moved |= between()
        for board in boards:
            moved |= board.poll()
        if not moved:
            clock.now = host.endpoint.next_timeout() or clock.now


class Clock:
    """Seconds that pass only while everybody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """What time it is."""
        return self.now


class _Lossy(LoopbackTransport):
    """A node's end that loses some of the frames of its packets; what it sent is counted."""

    def __init__(self, hub: LoopbackHub, name: str, drop: float, rng: np.random.Generator) -> None:
        super().__init__(hub, name)
        self._drop, self._rng = drop, rng

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """Deliver what is not lost; returns the bytes of everything."""
        if not self._drop:
            return super().send(peer, frames)
        total = sum(len(batch.join(group)) for group in batch.fill(frames, self._hub.message_max))
        kept = [frame for frame in frames if not self._is_lost(frame)]
        if kept:
            super().send(peer, kept)
        return total

    def _is_lost(self, frame: bytes) -> bool:
        is_packet = seal.open_seal(frame)[1][0] in (manifest.KIND, share.KIND)
        return is_packet and self._rng.random() < self._drop


class Board:
    """A node that trains whenever there is a round to train for."""

    def __init__(
        self,
        link: LoopbackTransport,
        name: str,
        loaded: LoadedBundle,
        trainer: Trainer,
        samples: int,
        seed: int,
        clock: Clock,
        trust: Trust = OPEN,
    ) -> None:
        self.member = Member(
            name,
            loaded.bundle.model_hash(),
            samples,
            name.encode().ljust(8)[:8],
            member.new_state(loaded.bundle.dimension),
            np.random.default_rng(seed),
            trust=trust,
        )
        self.driver: Driver[NodeEvent] = Driver(self.member, link, clock)
        self._initial, self._seed = loaded.initial, seed
        self._trainer, self._clock = trainer, clock
        self._round: int | None = None

    def poll(self) -> bool:
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
        self.member.submit(number, self._trainer.delta(), self._clock())
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
    *,
    send: Callable[[Vector], Vector] = lambda state: state,
    keep_moments: bool = False,
) -> Vector:
    """The peer: the same local training, whole adapters in float32 averaged by samples, no codec.

    `send` makes of a board's adapter what arrives of it.
    """
    vector = loaded.initial
    samples = np.array([len(clips) for clips in data], dtype=np.float32)
    trainers = [
        Trainer(
            make_step(loaded, f"board-{index}"),
            clips,
            loaded.bundle.batch,
            adam.AdamSettings(),
            keep_moments=keep_moments,
        )
        for index, clips in enumerate(data)
    ]
    for number in range(plan.rounds):
        states = []
        for index, trainer in enumerate(trainers):
            trainer.begin(number, vector, plan, round_rng(seed, f"board-{index}", number))
            while trainer.step():
                pass
            states.append(send(vector + trainer.delta()))
        vector = np.average(states, axis=0, weights=samples).astype(np.float32)
    return vector
