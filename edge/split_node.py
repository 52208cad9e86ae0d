"""A board in a split training: its part of the model, its data, its end of the link.

Like a node it lives in one thread. It holds one micro-batch at a time; what is lost is skipped.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import DataError
from edge.report import rss_mib
from edge.session import load_bundle
from edge.sources import FolderData, input_specs
from edge.split_config import SplitBoardConfig
from edge.split_part import Part
from edge.trainer import round_rng
from ternmesh.bundle import Bundle, TensorSpec
from ternmesh.errors import CodecError
from ternmesh.split.board import SplitBoard
from ternmesh.split.events import Answered, BoardEvent, Lost, Welcomed
from ternmesh.split.plan import SplitPlan, model_hash
from ternmesh.swarm.events import FIRST_CONTACT, CountersReserved, Refused, refusals
from ternmesh.swarm.pace import NETWORK, Pace
from ternmesh.wire import activation, control
from ternmesh.wire.activation import Activation
from ternmesh_store.database import StoreError
from ternmesh_store.keyring import Keyring, NoKeyring
from ternmesh_store.split_store import Checkpoint, SplitStore
from transports.base import HOST, Transport
from transports.driver import Driver, PeerTraffic

FIRST, HEAD, LABEL = "first", "head", "label"
KEPT = ("learned", "lost", "diverged")  # counts that outlive the process
ADVICE = {"wrong model": ": copy the bundle anew that the host's `ternmesh split export` wrote"}
POLL_S = 0.25
LOSSES = 20  # micro-batches over which the mean loss is told

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """The micro-batch whose answer is waited for."""

    indexes: NDArray[np.int64]
    is_question: bool = False


def load_parts(folder: Path, threads: int = 1) -> tuple[Part, Part | None, bytes]:
    """The board's parts in a folder and the hash that names the model; ModelError."""
    first = load_bundle(folder / FIRST)
    if not (folder / HEAD).is_dir():
        return Part(first, threads), None, model_hash(first.bundle.model_hash())
    head = load_bundle(folder / HEAD)
    name = model_hash(first.bundle.model_hash(), head.bundle.model_hash())
    return Part(first, threads), Part(head, threads), name


def with_labels(bundle: Bundle) -> Bundle:
    """The bundle as the data is read for it: its inputs, and a class of each sample."""
    label = TensorSpec(LABEL, "int64", (bundle.batch,))
    return replace(bundle, batch_inputs=(*input_specs(bundle), label))


def drawn(seed: int, name: str, number: int, batch: int, samples: int) -> NDArray[np.int64]:
    """The samples of micro-batch `number`: each once in an epoch, whatever was sent or lost."""
    places = np.arange(number * batch, (number + 1) * batch)
    orders = {
        epoch: round_rng(seed, name, epoch).permutation(samples)
        for epoch in np.unique(places // samples).tolist()
    }
    return np.array([orders[place // samples][place % samples] for place in places.tolist()])


def _largest_label(data: FolderData, config: SplitBoardConfig) -> int:
    labels = data.batch(np.arange(len(data)))[LABEL]
    if labels.min() < 0:
        raise DataError(f"{config.data.path}: a label is {labels.min()}: they count from 0")
    return int(labels.max())


class SplitNode:
    """One board: `start`, then `turn` until `is_done`. The store is open.

    Raises StoreError, ModelError or DataError where it cannot go on.
    """

    def __init__(
        self,
        config: SplitBoardConfig,
        parts: tuple[Part, Part | None, bytes],
        training: FolderData,
        held_out: FolderData | None,
        store: SplitStore,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        keyring: Keyring | NoKeyring | None = None,
        pace: Pace = NETWORK,
    ) -> None:
        self.config, self.training, self.held_out = config, training, held_out
        self.first, self.head, self._model = parts
        self._store, self._clock = store, clock
        self._label_max = _largest_label(training, config)
        self._keyring = keyring or NoKeyring()
        kept, counter = self._restore(), store.counter()
        self.counts: Counter[str] = Counter()  # of KEPT, and samples
        if kept is not None:
            self.counts.update(kept.counts)
        self.board = SplitBoard(
            config.name,
            self._model,
            len(training),
            os.urandom(8),
            np.random.default_rng(),
            run=bytes(8) if kept is None else kept.run,
            number=0 if kept is None else kept.numbers[config.name],
            counter=counter,
            trust=self._keyring.trust(config.name, self._model, counter),
            pace=pace,
            fits=self._fits,
        )
        self.driver: Driver[BoardEvent] = Driver(self.board, transport, clock)
        self.learning_traffic: PeerTraffic | None = None  # when the last micro-batch was done
        self.right: tuple[int, int] | None = None  # of the samples set aside, when all is done
        self.losses: list[float] = []
        self._run = self.board.run
        self._under_way: _UnderWay | None = None
        self._events: list[BoardEvent] = []
        self._asked = self._hits = 0
        self._told: set[str] = set()

    @property
    def is_done(self) -> bool:
        """Whether the run is over and what was set aside is judged."""
        return self.board.phase == control.FINISHED and self._asked >= self._questions

    @property
    def accuracy(self) -> float | None:
        """The share of the samples set aside that the finished model gets right."""
        return None if self.right is None else self.right[0] / max(1, self.right[1])

    def start(self) -> None:
        """Say hello."""
        self.board.start(self._clock())

    def turn(self, wait_s: float = POLL_S) -> bool:
        """Serve traffic, learn from what came back, send the next; True if anything happened."""
        moved = self.driver.poll(wait_s, self._note, self._commit)
        events, self._events = self._events, []
        for event in events:
            self._react(event)
        if self._under_way is None and self.board.ready and self.driver.transport.connected:
            self._send_next()
        return moved

    # What happened

    def _note(self, event: BoardEvent) -> None:
        if isinstance(event, CountersReserved):
            self._store.reserve(event.limit)
        self._keyring.record(event)
        self._events.append(event)
        if isinstance(event, Refused) and event.reason not in {*self._told, FIRST_CONTACT}:
            self._told.add(event.reason)  # as many as there are reasons
            who = f"from {event.peer}" if event.peer else "by the host"
            _log.warning("refused %s: %s%s", who, event.reason, ADVICE.get(event.reason, ""))

    def _commit(self) -> None:
        self._keyring.commit()
        self._store.commit()

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
        down = plan.classes if self.head is None else self.head.bundle.inputs[0].shape[-1]
        mine = (self.first.width, self.first.bundle.batch, self.head is not None, down)
        theirs = (plan.width, plan.batch, bool(plan.labels_stay), plan.width_down)
        return mine == theirs and self._label_max < plan.classes

    def _welcomed(self, event: Welcomed) -> None:
        if event.run != self._run:
            _log.info("run %s: %d micro-batches", event.run.hex(), event.plan.micro_batches)
            for part in self._parts().values():
                part.reset()
            self._run, self._under_way = event.run, None
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
            told = b"" if self.head is not None else labels.astype(np.uint8).tobytes()
            wanted = activation.ANSWER if self.head else activation.GRADIENT_DOWN
            item = Activation(activation.LEARN, number, self.first.forward(inputs), told)
            self._offer(item, wanted)
        elif self.board.phase != control.FINISHED:
            if self.learning_traffic is None:
                self.learning_traffic = replace(self._traffic)
                self.save()
            self.board.finish(self._clock())
        elif self._asked < self._questions:
            self._ask()

    def _offer(self, item: Activation, wanted: int) -> None:
        try:
            self.board.send(item, wanted, self._clock())
        except CodecError as error:
            _log.warning("micro-batch %d gives nothing: %s", item.number, error)
            if item.leg == activation.ASK:
                self._asked, self._under_way = self._asked + 1, None
                return
            self.board.number = item.number + 1
            self._drop("diverged")

    def _take(self, item: Activation, under_way: _UnderWay) -> None:
        if under_way.is_question:
            self._judge(item, under_way)
            return
        inputs, labels = self._batch(self.training, under_way.indexes)
        rate, most = self._plan.learning_rate(item.number), self._plan.clip_norm
        if item.leg == activation.ANSWER:
            assert self.head is not None
            crossed, target = (spec.name for spec in self.head.bundle.batch_inputs)
            loss, back = self.head.learn({crossed: item.values, target: labels}, rate, most)
            self.losses = [*self.losses[1 - LOSSES :], loss]
            up = Activation(activation.GRADIENT_UP, item.number, back.reshape(item.values.shape))
            self._offer(up, activation.GRADIENT_DOWN)
            return
        target = self.first.bundle.batch_inputs[-1].name
        self.first.learn({**inputs, target: item.values}, rate, most)
        self.counts["learned"] += 1
        self._finish_one(item.number)

    def _drop(self, why: str) -> None:
        self.counts[why] += 1
        self._finish_one(self.board.number - 1)

    def _finish_one(self, number: int) -> None:
        self._under_way = None
        self.counts["samples"] += self._plan.batch
        if (number + 1) % self.config.training.checkpoint == 0:
            self.save()

    # Judging

    def _ask(self) -> None:
        assert self.held_out is not None
        plan = self._plan
        count = len(self.held_out)
        start = self._asked * plan.batch
        indexes = np.arange(start, min(start + plan.batch, count))
        inputs, _ = self._batch(self.held_out, indexes)
        self._under_way = _UnderWay(indexes, is_question=True)
        number = (plan.micro_batches + self._asked) & 0xFFFFFFFF
        self._offer(
            Activation(activation.ASK, number, self.first.forward(inputs)), activation.ANSWER
        )

    def _judge(self, item: Activation, under_way: _UnderWay) -> None:
        assert self.held_out is not None
        _, labels = self._batch(self.held_out, under_way.indexes)
        values = item.values
        if self.head is not None:
            values = self.head.forward({self.head.bundle.inputs[0].name: values})
        self._hits += int((np.argmax(values, axis=1)[: len(labels)] == labels).sum())
        self._asked, self._under_way = self._asked + 1, None
        if self._asked == self._questions:
            self.right = self._hits, len(self.held_out)
            _log.info("%d of %d right", *self.right)

    @property
    def _questions(self) -> int:
        return 0 if self.held_out is None else -(-len(self.held_out) // self._plan.batch)

    # Inside

    @property
    def _plan(self) -> SplitPlan:
        assert self.board.plan is not None
        return self.board.plan

    @property
    def _traffic(self) -> PeerTraffic:
        return self.driver.traffic.get(HOST, PeerTraffic())

    def _parts(self) -> dict[str, Part]:
        return {FIRST: self.first} | ({} if self.head is None else {HEAD: self.head})

    def _batch(
        self, data: FolderData, indexes: NDArray[np.int64]
    ) -> tuple[Mapping[str, NDArray[Any]], NDArray[np.int64]]:
        arrays = data.batch(indexes)
        labels = arrays.pop(LABEL)
        return arrays, labels

    def save(self) -> None:
        """Put what was learned on disk; what is under way then is still to be done."""
        counts = {name: self.counts[name] for name in KEPT}
        learned = {
            f"{name}.{key}": content
            for name, part in self._parts().items()
            for key, content in part.state().items()
        }
        is_waiting = self._under_way is not None and not self._under_way.is_question
        numbers = {self.config.name: self.board.number - is_waiting}
        self._store.save(Checkpoint(self._model, self._run, numbers, learned, counts))
        self._store.commit()

    def _restore(self) -> Checkpoint | None:
        names = [f"{part}.{k}" for part, p in self._parts().items() for k in p.state()]
        kept = self._store.load(tuple(names))
        if kept is None or kept.model != self._model or self.config.name not in kept.numbers:
            return None
        try:
            for name, part in self._parts().items():
                own = {k: kept.learned[f"{name}.{k}"] for k in part.state()}
                part.restore(own)
        except (KeyError, ValueError) as error:
            raise StoreError(
                f"{self.config.store_path} holds something that was never written ({error}): move "
                "it away"
            ) from error
        return kept

    def status(self) -> dict[str, Any]:
        """How the board is, ready for JSON."""
        plan = self.board.plan
        traffic = self.learning_traffic or self._traffic
        return {
            "role": "split board",
            "name": self.config.name,
            "fleet": self.config.link.fleet,
            "model": self.first.bundle.name,
            "run": self.board.run.hex(),
            "joined": self.board.joined,
            "phase": control.PHASES[self.board.phase],
            "number": self.board.number,
            "micro_batches": None if plan is None else plan.micro_batches,
            "samples": len(self.training),
            "counts": dict(self.counts),
            "loss": sum(self.losses) / len(self.losses) if self.losses else None,
            "accuracy": self.accuracy,
            "right": self.right,
            "learning_traffic": asdict(traffic),
            "traffic": {peer: asdict(moved) for peer, moved in self.driver.traffic.items()},
            "refused": refusals(self.board.refused),
            "rss_mib": rss_mib(),
        }
