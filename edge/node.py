"""One board: it follows the run, trains, and hands over what it has learned.

It lives in one thread; while it trains, traffic is served between two batches.
"""

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edge.config import NodeConfig, adam_settings
from edge.errors import ModelError
from edge.evaluation import Evaluator, spread
from edge.feed import Feed
from edge.history import Entry, History
from edge.session import Inference, LoadedBundle, trim_memory, write_adapter
from edge.trainer import Dataset, Trainer, round_rng
from edge.zeroth_order import make_step
from ternmesh.errors import CodecError
from ternmesh.hypervector.scale import to_float
from ternmesh.swarm.events import (
    FIRST_CONTACT,
    Advanced,
    FellSilent,
    Joined,
    NodeEvent,
    PacketMade,
    PacketReceived,
    Refused,
    Vector,
    WorkReady,
)
from ternmesh.swarm.member import Member
from ternmesh.swarm.pace import NETWORK, Pace
from ternmesh.swarm.records import MemberState
from ternmesh.wire.manifest import SAMPLES_MAX
from ternmesh_store.keyring import Keyring, NoKeyring
from ternmesh_store.node_store import NodeStore
from transports.base import Transport
from transports.driver import Driver

POLL_S = 0.25  # how long an idle node sleeps at most
RELEASE_AFTER_S = 20.0  # how long an idle node keeps its sessions
INSTANCE_SIZE = 8  # bytes
REFUSALS_TOLD_MAX = 256

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeData:
    """What a node learns from, what it is judged on if not on that, and its feed if it has one."""

    training: Dataset
    held_out: Dataset | None = None
    feed: Feed | None = None


class Node:
    """One board: `start`, then `turn` for ever. `state` is what `store` has loaded.

    Raises StoreError, ModelError or DataError where it cannot go on.
    """

    def __init__(
        self,
        config: NodeConfig,
        loaded: LoadedBundle,
        data: NodeData,
        store: NodeStore,
        state: MemberState,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        *,
        pace: Pace = NETWORK,
        keyring: Keyring | NoKeyring | None = None,
    ) -> None:
        bundle, training = loaded.bundle, config.training
        self.config, self.bundle, self.data = config, bundle, data
        self._keyring = keyring or NoKeyring()
        self.member = Member(
            config.name,
            bundle.model_hash(),
            _weight(data),
            os.urandom(INSTANCE_SIZE),
            state,
            np.random.default_rng(),
            pace,
            self._keyring.trust(config.name, bundle.model_hash(), state.counter),
        )
        self.driver: Driver[NodeEvent] = Driver(self.member, transport, clock)
        self.history = History(store)
        self.diverged = 0  # rounds that gave nothing to send: NaN, or samples that break the graph
        self.silent_rounds = 0  # rounds that gave too little for a packet
        self.wanted: int | None = None  # the round to begin as soon as there is enough data
        self._initial = loaded.initial
        self._store, self._clock = store, clock
        self._inference = Inference(loaded.folder, bundle, training.threads)
        self._step = make_step(config, loaded)
        self._evaluator = Evaluator(self._inference, bundle)
        self.trainer = Trainer(
            self._step,
            data.training,
            bundle.batch,
            adam_settings(training),
            keep_moments=training.keep_moments,
        )
        self._run = (state.run, state.plan)
        self._loss: float | None = None  # of the round that was trained last
        self._events: list[NodeEvent] = []
        self._told: set[str] = set()  # refusals are logged once each, and counted always
        self._marked_bytes, self._marked_at = (0, 0), clock()
        self._busy_at = clock()

    # The verbs

    def start(self) -> None:
        """Begin: the adapter file holds the reference that the store knows."""
        self.history.load()
        self._use_reference()
        self._marked_at = self._clock()
        self.member.start(self._clock())

    def turn(self, wait_s: float = POLL_S) -> bool:
        """Serve traffic, then train one batch if there is work; True if anything happened.

        It waits at most `wait_s`, and not at all while there is work.
        """
        now = self._clock()
        if self.trainer.round is not None:
            wait_s = 0.0
        elif self.data.feed is not None:
            wait_s = min(wait_s, self.data.feed.wait_s(now))
        moved = self.driver.poll(wait_s, self._note, self._commit)
        self._react()
        self._feed()
        self._begin()
        if self.trainer.round is None:
            self._rest()
            return moved
        self._train()
        return True

    @property
    def reference(self) -> Vector:
        """The adapter that all nodes agree on (float32, D)."""
        return self._initial + to_float(self.member.fixed)

    # What the run asks for

    def _note(self, event: NodeEvent) -> None:
        """Keep what must survive; what takes time waits until everything is sent."""
        self._store.record(event)
        self._keyring.record(event)
        self._events.append(event)
        line = describe(event, self.config.name)
        if line is not None and line not in self._told:
            _log.info("%s", line)
            if isinstance(event, Refused) and len(self._told) < REFUSALS_TOLD_MAX:
                self._told.add(line)

    def _commit(self) -> None:
        """Windows first: what came of a frame may be lost and sent anew, but not taken twice."""
        self._keyring.commit()
        self._store.commit()

    def _react(self) -> None:
        events, self._events = self._events, []
        is_changed = False
        for event in events:
            match event:
                case Joined() if (event.run, event.plan) != self._run:
                    self._begin_run(event)
                    is_changed = True
                case Advanced():
                    is_changed = True
                case FellSilent():
                    self.silent_rounds += 1
                case WorkReady():
                    self.wanted = event.round
        if is_changed:
            self._fold_stale_work()
            self._use_reference()
        if self._is_news():
            self._judge()

    def _begin_run(self, event: Joined) -> None:
        self._run = (event.run, event.plan)
        self.trainer.stop(forget=True)
        self.wanted, self._loss = None, None
        self.history.clear()

    def _is_news(self) -> bool:
        """Whether the history lacks the current reference of a run."""
        last = self.history.last
        known = -1 if last is None else last.version
        return self.member.plan is not None and known != self.member.version

    def _fold_stale_work(self) -> None:
        """What was trained for a round that is over rides in a later packet."""
        if self.trainer.round not in (None, self.member.version):
            self._submit()

    def _use_reference(self) -> None:
        path = self.config.adapter_path
        write_adapter(path, self.bundle, self.reference, self.member.version)
        self._inference.use_adapter(path)

    def _judge(self) -> None:
        held_out = self.data.held_out
        if held_out is not None:
            chosen = spread(len(held_out), self.config.evaluate.samples_max)
            self._evaluator.judge(held_out, chosen)
        self._busy_at = now = self._clock()
        traffic = list(self.driver.traffic.values())
        moved = (sum(t.bytes_out for t in traffic), sum(t.bytes_in for t in traffic))
        entry = Entry(
            version=self.member.version,
            metric=self._evaluator.take(),
            loss=self._loss,
            bytes_up=moved[0] - self._marked_bytes[0],
            bytes_down=moved[1] - self._marked_bytes[1],
            seconds=round(now - self._marked_at, 3),
        )
        self._marked_bytes, self._marked_at, self._loss = moved, now, None
        self.history.append(entry)
        self._store.commit()
        _log.info("reference %d: %s %s", entry.version, self.bundle.metric, _shown(entry.metric))

    # Learning

    def _feed(self) -> None:
        if self.data.feed is None:
            return
        labelled = self.data.feed.poll(self._clock())
        if labelled.size and self.data.held_out is None:
            self._evaluator.judge(self.data.training, labelled)

    def _begin(self) -> None:
        """Begin the round that is wanted, unless it is over or there is too little data."""
        member, settings = self.member, self.config.training
        if self.wanted is None or len(self.data.training) < settings.samples_min:
            return
        wanted, self.wanted = self.wanted, None
        if wanted == member.version and member.pending is None and member.plan is not None:
            rng = round_rng(settings.seed, self.config.name, wanted)
            # From what it has learned itself: what no packet could carry yet need not be learned
            # again, and is what the next one carries.
            start = self.reference + member.residual
            self.trainer.begin(wanted, start, member.plan, rng)

    def _train(self) -> None:
        self._busy_at = self._clock()
        try:
            is_done = not self.trainer.step()
        except ModelError as error:
            if self.data.feed is None:
                raise  # Files do not change: their owner must.
            self._lose_round(error)  # A label out of range, say; a restart would find it again.
            return
        if is_done:
            self._submit()

    def _submit(self) -> None:
        """Hand the round's delta to the member; one that is not finite is lost."""
        round_number, steps_done = self.trainer.round, self.trainer.progress[0]
        assert round_number is not None
        if steps_done == 0:
            self.trainer.stop()
            return
        delta, self._loss = self.trainer.delta(), self.trainer.loss
        self.member.samples = _weight(self.data)
        try:
            self.member.submit(round_number, delta, self._clock())
        except CodecError as error:
            self._lose_round(error)
        else:
            self.trainer.stop()

    def _lose_round(self, error: Exception) -> None:
        """Count a round that gives nothing.

        Its packet carries what earlier ones could not: nobody has to wait for this node.
        """
        round_number = self.trainer.round
        assert round_number is not None
        self.diverged += 1
        self._loss = None
        self.trainer.stop(forget=True)
        _log.warning("round %d gives nothing: %s", round_number + 1, error)
        zeros = np.zeros(self.bundle.dimension, np.float32)
        self.member.submit(round_number, zeros, self._clock())

    def _rest(self) -> None:
        """A node that has nothing to do for long gives its sessions' memory back."""
        if self._clock() >= self._busy_at + RELEASE_AFTER_S:
            self._step.release()
            self._inference.release()
            trim_memory()
            self._busy_at = math.inf


def _weight(data: NodeData) -> int:
    """The sample count that this node's packets weigh."""
    return min(max(1, len(data.training)), SAMPLES_MAX)


def _shown(metric: float | None) -> str:
    return "unknown" if metric is None else f"{metric:.4f}"


def describe(event: NodeEvent, name: str) -> str | None:
    """The log line for an event, or None where it is not worth one."""
    match event:
        case Joined():
            return f"{name} has joined run {event.run.hex()} of {event.plan.rounds} rounds"
        case PacketMade():
            size = sum(map(len, event.pending.bodies))
            return f"the packet of round {event.pending.round + 1} is ready: {size} bytes"
        case FellSilent():
            return f"silent in round {event.round + 1}: what was learned waits for a later packet"
        case PacketReceived():
            return f"the host has the packet of round {event.round + 1}"
        case Refused() if event.reason == FIRST_CONTACT:
            return None
        case Refused():
            who = f"refused from {event.peer}" if event.peer else "the host refused a frame"
            return f"{who}: {event.reason}"
        case _:
            return None
