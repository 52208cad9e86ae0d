"""A board in a split training: it trains its part of the model over a link to the host.

It uses one thread. One micro-batch is under way at a time; what is lost is skipped.
"""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.config import warn_of_shared
from edge.data.sources import FolderData, input_specs, open_folder
from edge.errors import DataError
from edge.report import rss_mib
from edge.split.config import SplitBoardConfig
from edge.split.part import SplitPart, load_part
from edge.trainer import round_rng
from ternmesh.errors import CodecError
from ternmesh.federated.events import CountersReserved, Refused, refusals
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.refusals import RefusalLog, why
from ternmesh.model_package import ModelPackage, TensorSpec
from ternmesh.split.board import SplitBoard
from ternmesh.split.messages import Answered, BoardEvent, Lost, Welcomed
from ternmesh.split.plan import SplitPlan
from ternmesh.timers import NETWORK_TIMERS, TimerSettings
from ternmesh.wire import activation, control
from ternmesh.wire.activation import Activation
from ternmesh_service.config_file import control_path
from ternmesh_service.control_socket import ControlServer, Relay
from ternmesh_service.keyring import Keyring, NoKeyring, choose_keyring, hop_keys, opened
from ternmesh_service.status import SplitBoardStatus, to_json
from ternmesh_store.split_store import Checkpoint, SplitStore
from ternmesh_store.state_file import StateFile
from transports.base import HOST, Transport
from transports.driver import Driver, PeerTraffic
from transports.factory import make_transport, pace_of

LABEL = "label"
KEPT = ("learned", "lost", "diverged")  # counts in a checkpoint
POLL_S = 0.25

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """The samples whose answer the board waits for; a question is for evaluation."""

    indexes: NDArray[np.int64]
    is_question: bool = False


def with_labels(package: ModelPackage) -> ModelPackage:
    """The package for which data is read: its inputs, and the class of each sample."""
    label = TensorSpec(LABEL, "int64", (package.batch,))
    return replace(package, batch_inputs=(*input_specs(package), label))


def drawn(seed: int, name: str, number: int, batch: int, samples: int) -> NDArray[np.int64]:
    """The samples of micro-batch `number`: each once in an epoch, also after losses."""
    places = np.arange(number * batch, (number + 1) * batch)
    orders = {
        epoch: round_rng(seed, name, epoch).permutation(samples)
        for epoch in np.unique(places // samples).tolist()
    }
    return np.array([orders[place // samples][place % samples] for place in places.tolist()])


def _largest_label(data: FolderData, config: SplitBoardConfig) -> int:
    labels = data.batch(np.arange(len(data)))[LABEL]
    if labels.min() < 0:
        raise DataError(f"{config.data.path}: a label is {labels.min()}: labels count from 0")
    return int(labels.max())


class SplitNode:
    """One board: `start`, then `turn` until `is_done`. The store is open.

    Raises StoreError, ModelError or DataError.
    """

    def __init__(
        self,
        config: SplitBoardConfig,
        part: SplitPart,
        training: FolderData,
        held_out: FolderData | None,
        store: SplitStore,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        keyring: Keyring | NoKeyring | None = None,
        pace: TimerSettings = NETWORK_TIMERS,
    ) -> None:
        self.config = config
        self.training = training
        self.held_out = held_out  # samples for evaluation
        self.part = part
        self._model = part.package.model_hash()
        self._store = store
        self._clock = clock
        self._keyring = keyring or NoKeyring()
        self._label_max = _largest_label(training, config)
        kept = self._restore()
        counter = store.counter()
        self.counts: Counter[str] = Counter(kept.counts if kept else {})  # of KEPT, and samples
        self.board = SplitBoard(
            NodeSettings(
                config.name, self._model, os.urandom(8), pace=pace, frame_max=lambda: transport.mtu
            ),
            samples=len(training),
            rng=np.random.default_rng(),
            run=bytes(8) if kept is None else kept.run,
            number=0 if kept is None else kept.numbers[config.name],
            counter=counter,
            security=self._keyring.security(config.name, self._model, counter),
            fits=self._fits,
        )
        self.driver: Driver[BoardEvent] = Driver(self.board, transport, clock)
        self.learning_traffic: PeerTraffic | None = None  # up to the last micro-batch
        self.right: tuple[int, int] | None = None  # right and all held-out samples, at the end
        self._run = self.board.run  # the run of what was learned
        self._under_way: _UnderWay | None = None
        self._events: list[BoardEvent] = []  # to act on, once they are on disk
        self._evaluated = 0  # batches of held-out samples so far
        self._hits = 0  # right ones of them
        self._refusals = RefusalLog()

    @property
    def is_done(self) -> bool:
        """Whether the run is over and all held-out samples are evaluated."""
        return self.board.phase == control.FINISHED and self._evaluated >= self._question_count

    @property
    def accuracy(self) -> float | None:
        """The fraction of the held-out samples that the finished model gets right."""
        return None if self.right is None else self.right[0] / max(1, self.right[1])

    def start(self) -> None:
        """Begin: say hello to the host."""
        self.board.start(self._clock())

    def turn(self, wait_s: float = POLL_S) -> bool:
        """Serve traffic, learn from what came back, send the next; True if anything happened."""
        moved = self.driver.poll(wait_s, self._note, self._store.commit)
        events, self._events = self._events, []
        for event in events:
            self._react(event)
        if self._under_way is None and self.board.ready and self.driver.transport.connected:
            self._send_next()
        return moved

    # Events

    def _note(self, event: BoardEvent) -> None:
        if isinstance(event, CountersReserved):
            self._store.reserve(event.limit)
        self._keyring.record(event)
        self._events.append(event)
        if isinstance(event, Refused) and self._refusals.is_news(event.peer, event.reason):
            who = f"from {event.peer}" if event.peer else "by the host"
            _log.warning("refused %s: %s: %s", who, event.reason, why(event.reason, on_host=False))

    def _react(self, event: BoardEvent) -> None:
        match event:
            case Welcomed():
                self._welcomed(event)
            case Answered(item) if self._under_way is not None:
                try:
                    self._take(item, self._under_way)
                except CodecError as error:
                    self._drop("diverged")
                    _log.warning("micro-batch %d gives nothing: %s", item.number, error)
            case Lost():
                if self._under_way is not None and not self._under_way.is_question:
                    self._drop("lost")
                self._under_way = None

    def _fits(self, plan: SplitPlan) -> bool:
        mine = self.part.width, self.part.package.batch
        return mine == (plan.width, plan.batch) and self._label_max < plan.classes

    def _welcomed(self, event: Welcomed) -> None:
        if event.run != self._run:
            _log.info("run %s: %d micro-batches", event.run.hex(), event.plan.micro_batches)
            self.part.reset()
            self._run = event.run
            self._under_way = None
            self.counts = Counter(samples=self.counts["samples"])
            self.save()
        elif event.undone:
            self.counts["lost"] += event.undone

    # Learning

    def _send_next(self) -> None:
        plan = self._plan
        if self.board.number < plan.micro_batches:
            number = self.board.number
            seed, name = self.config.training.seed, self.config.name
            indexes = drawn(seed, name, number, plan.batch, len(self.training))
            inputs, labels = self._batch(self.training, indexes)
            self._under_way = _UnderWay(indexes)
            sent = labels.astype(np.uint8).tobytes()
            self._offer(Activation(activation.LEARN, number, self.part.forward(inputs), sent))
        elif self.board.phase != control.FINISHED:
            if self.learning_traffic is None:
                self.learning_traffic = replace(self._traffic)
                self.save()
            self.board.finish(self._clock())
        elif self._evaluated < self._question_count:
            self._send_question()

    def _offer(self, item: Activation) -> None:
        try:
            self.board.send(item, self._clock())
        except CodecError as error:
            _log.warning("micro-batch %d gives nothing: %s", item.number, error)
            if item.leg == activation.ASK:
                self._evaluated += 1
                self._under_way = None
                return
            self.board.number = item.number + 1
            self._drop("diverged")

    def _take(self, item: Activation, under_way: _UnderWay) -> None:
        if under_way.is_question:
            self._evaluate(item, under_way)
            return
        inputs, _ = self._batch(self.training, under_way.indexes)
        rate = self._plan.learning_rate(item.number)
        self.part.learn(inputs, item.values, rate, self._plan.clip_norm)
        self.counts["learned"] += 1
        self._finish_one(item.number)

    def _drop(self, reason: str) -> None:
        self.counts[reason] += 1
        self._finish_one(self.board.number - 1)

    def _finish_one(self, number: int) -> None:
        self._under_way = None
        self.counts["samples"] += self._plan.batch
        if (number + 1) % self.config.training.checkpoint == 0:
            self.save()

    # Evaluation

    def _send_question(self) -> None:
        assert self.held_out is not None
        plan = self._plan
        start = self._evaluated * plan.batch
        indexes = np.arange(start, min(start + plan.batch, len(self.held_out)))
        inputs, _ = self._batch(self.held_out, indexes)
        self._under_way = _UnderWay(indexes, is_question=True)
        number = (plan.micro_batches + self._evaluated) & 0xFFFFFFFF
        self._offer(Activation(activation.ASK, number, self.part.forward(inputs)))

    def _evaluate(self, item: Activation, under_way: _UnderWay) -> None:
        assert self.held_out is not None
        _, labels = self._batch(self.held_out, under_way.indexes)
        self._hits += int((np.argmax(item.values, axis=1)[: len(labels)] == labels).sum())
        self._evaluated += 1
        self._under_way = None
        if self._evaluated == self._question_count:
            self.right = self._hits, len(self.held_out)
            _log.info("%d of %d right", *self.right)

    @property
    def _question_count(self) -> int:
        return 0 if self.held_out is None else -(-len(self.held_out) // self._plan.batch)

    # Inside

    @property
    def _plan(self) -> SplitPlan:
        assert self.board.plan is not None
        return self.board.plan

    @property
    def _traffic(self) -> PeerTraffic:
        return self.driver.traffic.get(HOST, PeerTraffic())

    def _batch(
        self, data: FolderData, indexes: NDArray[np.int64]
    ) -> tuple[Mapping[str, NDArray[Any]], NDArray[np.int64]]:
        arrays = data.batch(indexes)
        labels = arrays.pop(LABEL)
        return arrays, labels

    def save(self) -> None:
        """Put what was learned on disk. A micro-batch that is under way is not learned yet."""
        counts = {name: self.counts[name] for name in KEPT}
        is_waiting = self._under_way is not None and not self._under_way.is_question
        numbers = {self.config.name: self.board.number - is_waiting}
        self._store.save(Checkpoint(self._model, self._run, numbers, self.part.state(), counts))
        self._store.commit()

    def _restore(self) -> Checkpoint | None:
        kept = self._store.load(tuple(self.part.state()))
        if kept is None or kept.model != self._model or self.config.name not in kept.numbers:
            return None
        self.part.restore(kept.learned)
        return kept

    def status(self) -> SplitBoardStatus:
        plan = self.board.plan
        return SplitBoardStatus(
            name=self.config.name,
            fleet=self.config.link.fleet,
            model=self.part.package.name,
            run=self.board.run.hex(),
            joined=self.board.joined,
            phase=control.PHASES[self.board.phase],
            number=self.board.number,
            micro_batches=None if plan is None else plan.micro_batches,
            samples=len(self.training),
            counts=dict(self.counts),
            accuracy=self.accuracy,
            right=self.right,
            learning_traffic=self.learning_traffic or self._traffic,
            traffic=dict(self.driver.traffic),
            refused=refusals(self.board.refused),
            rss_mib=rss_mib(),
        )


def run_split_board(
    config: SplitBoardConfig,
    stop: threading.Event,
    *,
    insecure: bool = False,
    until_finished: bool = False,
    around: Callable[[Transport], Transport] = lambda transport: transport,
) -> SplitBoardStatus:
    """Run a board until `stop` is set, or until all is done; its last status.

    Raises what `edge.service.run_node` raises. `around` may wrap the transport, for example to
    simulate a bad link.
    """
    state = StateFile(Path(config.state_dir))
    keyring = choose_keyring(state, config.security, config.link, insecure=insecure)
    part = load_part(Path(config.model), config.training.threads)
    package = with_labels(part.package)
    assert config.data.path is not None
    warn_of_shared(config.data, config.evaluate)
    training = open_folder(Path(config.data.path), package, config.data)
    held_out = None
    if config.evaluate.path is not None:
        held_out = open_folder(Path(config.evaluate.path), package, config.evaluate)
    store, relay = SplitStore(state), Relay()
    keys = hop_keys(keyring, config.name, config.link.gateway)
    transport = make_transport(config.link, config.name, state, keys)
    with opened(state, keyring, config.link.fleet), closing(transport):
        wrapped = around(transport)
        pace = pace_of(transport)
        node = SplitNode(
            config, part, training, held_out, store, wrapped, keyring=keyring, pace=pace
        )

        def answer(_request: Mapping[str, Any]) -> dict[str, Any]:
            status = replace(node.status(), transport=transport.status(), security=keyring.status())
            return to_json(status)

        with ControlServer(control_path(config.state_dir, config.control_socket), relay.ask):
            wrapped.open()
            node.start()
            while not stop.is_set() and not (until_finished and node.is_done):
                node.turn()
                relay.serve(answer)
            node.save()
        return node.status()
