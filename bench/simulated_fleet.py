"""A fleet in one process for benchmarks: the real state machines, drivers, codec and train step.

Only the bearer is simulated: an in-memory hub that counts bytes as MQTT messages and may lose
frames on their way up. `ternmesh demo` runs real processes over a real broker.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from bench.keys import keyed
from bench.loopback import LoopbackHub, LoopbackTransport
from edge.evaluation import Evaluator
from edge.onnx.session import Inference, LoadedModel, TrainStep, write_adapter
from edge.trainer import AdamSettings, Trainer, round_rng
from experiments.data import Clips
from ternmesh.codec.scale import to_float
from ternmesh.federated.evaluation import Evaluation, write_values
from ternmesh.federated.events import Advanced, HostEvent, NodeEvent, WorkReady
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.news import News
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import HostSettings, new_host_state, new_node_state
from ternmesh.plan import Plan
from ternmesh.security.authenticator import OPEN, SecurityLayer
from ternmesh.security.membership import HOST
from ternmesh.wire.frame import open_seal
from ternmesh.wire.update import CHUNK_KIND, MANIFEST_KIND
from transports import batch
from transports.driver import Driver

Vector = NDArray[np.float32]
AT_ONCE = 64  # samples in one prediction
DEADLINE_S = 1.0  # before any node sends a packet again


def correct(loaded: LoadedModel, vector: Vector, clips: Clips) -> NDArray[np.bool_]:
    """Which samples an adapter (float32, D) gets right, through onnxruntime; bool [samples]."""
    inference = Inference(loaded.folder, loaded.package)
    names = [spec.name for spec in loaded.package.inputs]
    right = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.onnx_adapter"
        write_adapter(path, loaded.package, vector, 1)
        inference.use_adapter(path)
        for first in range(0, len(clips), AT_ONCE):
            part = {name: a[first : first + AT_ONCE] for name, a in clips.arrays.items()}
            [logits] = inference.predict({name: part[name] for name in names}).values()
            right.append(logits.argmax(axis=1) == part["target"])
    return np.concatenate(right)


def accuracy(loaded: LoadedModel, vector: Vector, data: Sequence[Clips]) -> float:
    """The share of samples that an adapter gets right."""
    return float(np.mean(np.concatenate([correct(loaded, vector, clips) for clips in data])))


class Judge:
    """Accuracy and loss of an adapter, as a node finds them."""

    def __init__(self, loaded: LoadedModel) -> None:
        inference = Inference(loaded.folder, loaded.package)
        # Without a clock, the sizes of batches do not depend on the machine.
        self._evaluator = Evaluator(inference, loaded.package, clock=lambda: 0.0)
        self._package, self._initial = loaded.package, loaded.initial

    def __call__(self, adapter: Vector, clips: Clips) -> tuple[float, float]:
        """Mean loss, and the share of hits."""
        tensors = self._package.split(self._initial + adapter)
        for _ in self._evaluator.evaluate(clips, np.arange(len(clips)), tensors):
            pass
        hits, loss = self._evaluator.take()
        assert hits is not None
        assert loss is not None
        return loss, hits

    def effect(self, adapter: Vector, probe: Vector, clips: Clips) -> float | None:
        """What a probe does to the error, as a node finds it."""
        indexes, whole = np.arange(len(clips)), self._initial + adapter
        steps = self._evaluator.effect(clips, indexes, whole, probe)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(float | None, end.value)


def make_trainer(loaded: LoadedModel, clips: Clips, *, keep_moments: bool = False) -> Trainer:
    """What trains the model on a board's clips, in one thread."""
    step = TrainStep(loaded.folder, loaded.package, 1)
    return Trainer(step, clips, loaded.package.batch, AdamSettings(), keep_moments=keep_moments)


def make_host(
    loaded: LoadedModel,
    plan: Plan,
    seed: int,
    settings: HostSettings,
    security: SecurityLayer = OPEN,
) -> HostProtocol:
    """The host of a new run; its name follows from the seed."""
    return HostProtocol(
        plan=plan,
        settings=settings,
        model_hash=loaded.package.model_hash(),
        run=(seed + 1).to_bytes(8, "little"),
        state=new_host_state(plan.dimension),
        security=security,
    )


@dataclass(frozen=True, slots=True)
class FleetRun:
    """The global adapter at the end, those of the boards, and bytes of one node and round."""

    vector: Vector
    own: tuple[Vector, ...]
    bytes_up: float
    bytes_down: float


def run_fleet(
    loaded: LoadedModel,
    data: Sequence[Clips],
    plan: Plan,
    seed: int,
    *,
    drop: float = 0.0,
    keep_moments: bool = False,
    keys: bool = False,
    held_out: Sequence[Clips] = (),
) -> FleetRun:
    """Train one board per element of `data` through the whole protocol.

    With `held_out`, boards report how good global adapters and probes are on it.
    Each frame of a packet is lost with the probability `drop`; a round then closes before anything
    is sent again, unless no packet at all could be used. With `keys` all is sealed and signed.
    """
    clock, hub = Clock(), LoopbackHub()
    names = [f"board-{index}" for index in range(len(data))]
    security = keyed(names, loaded.package.model_hash(), seed) if keys else lambda _name: OPEN
    settings = HostSettings(min_peers=1 if drop else len(data), deadline_s=DEADLINE_S)
    host = make_host(loaded, plan, seed, settings, security(HOST))
    host_driver: Driver[HostEvent] = Driver(host, hub.host(), clock)
    boards = []
    for index, (name, clips) in enumerate(zip(names, data, strict=True)):
        link = _Lossy(hub, name, drop, np.random.default_rng((seed, index)))
        trainer = make_trainer(loaded, clips, keep_moments=keep_moments)
        board = Board(link, name, loaded, trainer, len(clips), seed, clock, security(name))
        if held_out:
            board.judge, board.held_out = Judge(loaded), held_out[index]
        boards.append(board)
    host.start(clock.now)
    host_driver.transport.open()
    for board in boards:
        board.driver.transport.open()
        board.member.start(clock.now)
    run_until_finished(host_driver, boards, clock, plan.rounds)
    while any(board.member.version < plan.rounds for board in boards):
        for board in boards:
            board.driver.poll(0.0, board.take, lambda: None)
    vector = loaded.initial + to_float(host.model_q24)
    own = tuple(loaded.initial + to_float(board.member.adapter_q24) for board in boards)
    return FleetRun(vector, own, *_bytes_of(host_driver, boards, plan.rounds))


def _bytes_of(
    host: Driver[HostEvent], boards: "Sequence[Board]", rounds: int
) -> tuple[float, float]:
    """The bytes up and down of one board and round."""
    per_round = len(boards) * rounds
    up = sum(board.driver.traffic["host"].bytes_out for board in boards) / per_round
    down = sum(host.traffic[board.member.settings.name].bytes_out for board in boards) / per_round
    return up, down + host.traffic["all"].bytes_out / rounds


def run_until_finished(
    host: Driver[HostEvent], boards: "Sequence[Board]", clock: "Clock", rounds: int
) -> None:
    """Serve host and boards in turn."""
    protocol = host.endpoint
    assert isinstance(protocol, HostProtocol)
    while protocol.version < rounds:
        moved = host.poll(0.0, lambda _: None, lambda: None)
        for board in boards:
            moved |= board.poll()
        if not moved:
            clock.now = host.endpoint.next_timeout() or clock.now


class Clock:
    """Simulated seconds: they pass only while all endpoints wait."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time in seconds."""
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
        is_packet = open_seal(frame)[1][0] in (MANIFEST_KIND, CHUNK_KIND)
        return is_packet and self._rng.random() < self._drop


class Board:
    """A node that trains whenever there is a round to train for."""

    def __init__(
        self,
        link: LoopbackTransport,
        name: str,
        loaded: LoadedModel,
        trainer: Trainer,
        samples: int,
        seed: int,
        clock: Clock,
        security: SecurityLayer = OPEN,
    ) -> None:
        self.member = NodeProtocol(
            NodeSettings(name, loaded.package.model_hash(), name.encode().ljust(8)[:8]),
            new_node_state(loaded.package.dimension),
            samples=samples,
            rng=np.random.default_rng(seed),
            security=security,
        )
        self.driver: Driver[NodeEvent] = Driver(self.member, link, clock)
        self._initial, self._seed = loaded.initial, seed
        self._trainer, self._clock = trainer, clock
        self._round: int | None = None
        self._news = News(samples)
        self.judge: Judge | None = None  # with `held_out`: it reports on global adapters
        self.held_out = Clips({})
        self.probe: Vector | None = None
        self.sent = np.zeros(0, np.float32)  # the whole vector of the newest round

    def poll(self) -> bool:
        """Serve the network, then train if there is a round to train for."""
        moved = self.driver.poll(0.0, self.take, lambda: None)
        plan, offered = self.member.plan, self._round
        number, self._round = self._news.round_to_train(self.member, offered, self._clock()), None
        if number is None or plan is None:
            return moved or offered is not None
        self.work(number, plan)
        return True

    def work(self, number: int, plan: Plan) -> None:
        """Train for a round, report, and submit the result."""
        self.report()
        delta = self.train(number, plan)
        self.sent = self.member.residual + delta
        self.member.submit(number, delta, self._clock())

    def report(self) -> None:
        """Evaluate the global adapter, and the probe if there is one, as a node does."""
        if self.judge is None:
            return
        adapter = to_float(self.member.adapter_q24)
        loss, hits = self.judge(adapter, self.held_out)
        told = Evaluation(loss, hits)
        if self.probe is not None:
            told = Evaluation(loss, probe=self.judge.effect(adapter, self.probe, self.held_out))
        self.member.evaluation = write_values(told)

    def train(self, number: int, plan: Plan) -> Vector:
        """What the training of a round changes (float32, D)."""
        rng = round_rng(self._seed, self.member.settings.name, number)
        begin = self._initial + to_float(self.member.adapter_q24) + self.member.residual
        self._trainer.begin(number, begin, plan, rng, self._news.rounds)
        while self._trainer.step():
            pass
        return self._trainer.delta()

    def take(self, event: NodeEvent) -> None:
        """Note an event of the protocol."""
        if isinstance(event, WorkReady):
            self._round = event.round
        elif isinstance(event, Advanced):
            self._news.advanced(event)
            self.probe = event.probe


def average_in_float(
    loaded: LoadedModel,
    data: Sequence[Clips],
    plan: Plan,
    seed: int,
    *,
    send: Callable[[Vector], Vector] = lambda state: state,
    keep_moments: bool = False,
) -> Vector:
    """The peer: the same local training, whole adapters in float32 averaged by samples, no codec.

    `send` makes of a board's adapter what arrives of it.
    """
    vector = loaded.initial
    samples = np.array([len(clips) for clips in data], dtype=np.float32)
    trainers = [make_trainer(loaded, clips, keep_moments=keep_moments) for clips in data]
    for number in range(plan.rounds):
        states = []
        for index, trainer in enumerate(trainers):
            trainer.begin(number, vector, plan, round_rng(seed, f"board-{index}", number))
            while trainer.step():
                pass
            states.append(send(vector + trainer.delta()))
        vector = np.average(states, axis=0, weights=samples).astype(np.float32)
    return vector
