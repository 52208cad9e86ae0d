"""One board: it follows the run, trains, and sends what it has learned.

It runs in one thread and serves traffic between two batches of training.
"""

import logging
import math
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.config import NodeConfig, TrainingConfig
from edge.data.node_data import NodeData
from edge.errors import BoardFault, ModelError, OutOfMemory
from edge.evaluation import Evaluator
from edge.event_log import EventLog
from edge.global_evaluation import GlobalEvaluation, Probe
from edge.onnx.session import Arrays, Inference, LoadedModel, TrainStep, trim_memory, write_adapter
from edge.resources import SHORT_OF_MEMORY, Throttle
from edge.trainer import AdamSettings, Trainer, round_rng
from ternmesh.codec.scale import to_float
from ternmesh.errors import CodecError
from ternmesh.federated.events import (
    Advanced,
    FellSilent,
    Joined,
    NodeEvent,
    SettingsTaken,
    WorkReady,
)
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.management import BoardManagement, readable, settings_text
from ternmesh.federated.news import News
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.refusals import DIVERGED
from ternmesh.federated.state import NodeState
from ternmesh.model_package import ModelPackage
from ternmesh.timers import NETWORK_TIMERS, TimerSettings
from ternmesh.types import ModelQ24, Vector
from ternmesh.wire.update import SAMPLES_MAX
from ternmesh_service.keyring import Keyring, NoKeyring
from ternmesh_service.notify import no_beat
from ternmesh_store.node_store import NodeStore
from transports.base import Transport
from transports.driver import Driver
from transports.factory import frame_max

POLL_S = 0.25  # longest wait of an idle node
RELEASE_AFTER_S = 20.0  # an idle node keeps its onnxruntime sessions for this time
UNANSWERED = 15  # usual waits for an answer, after which a node that has none says so
INSTANCE_SIZE = 8  # bytes
NEWS = "news"  # the key of its value in the store

_NONE = np.empty(0, np.int64)

_log = logging.getLogger(__name__)


class Node:
    """One board: call `start`, then `turn` in a loop. `state` is the one that `store` has loaded.

    Methods raise StoreError, ModelError or DataError if the node cannot continue.
    """

    def __init__(
        self,
        config: NodeConfig,
        loaded: LoadedModel,
        data: NodeData,
        store: NodeStore,
        state: NodeState,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        *,
        pace: TimerSettings = NETWORK_TIMERS,
        keyring: Keyring | NoKeyring | None = None,
        beat: Callable[[], None] = no_beat,
    ) -> None:
        package, training = loaded.package, config.training
        self.config = config
        self.package = package
        self.data = data
        self._keyring = keyring or NoKeyring()
        self._store = store
        self._initial = loaded.initial  # the adapter to which global ones are relative
        self._clock = clock
        self._beat = beat
        # What the host has set on this board
        self.management = BoardManagement(*store.settings(), allowed=config.remote.allow)
        self.protocol = NodeProtocol(
            _settings(config, package, transport, pace),
            state,
            samples=_weight(data),
            rng=np.random.default_rng(),
            security=self._keyring.security(
                config.name, package.model_hash(), state.counter, aggregator=config.link.aggregator
            ),
            management=self.management,
        )
        self.driver: Driver[NodeEvent] = Driver(self.protocol, transport, clock)
        self._events: list[NodeEvent] = []  # to act on, once they are on disk and all is sent
        self._event_log = EventLog(config.name, clock() + UNANSWERED * pace.hello_s)
        # Training
        self.news = News(config.training.news_min)  # read in `start`
        self._step = TrainStep(loaded.folder, package, training.threads, training.provider)
        self.trainer = _trainer(training, self._step, data, package)
        self.wanted: int | None = None  # the round to begin as soon as there is enough data
        self.diverged = 0  # rounds without a delta: NaN, or samples that break the graph
        self.silent_rounds = 0  # rounds whose delta was too small for an update
        self._began_at = -math.inf  # when it has begun its last round
        # The use of the global adapter
        self._inference = Inference(loaded.folder, package, training.threads, training.provider)
        self.evaluation = GlobalEvaluation(
            config,
            loaded,
            data.held_out,
            evaluator=Evaluator(self._inference, package.tail(), beat, clock),
            store=store,
            moved_bytes=self._moved_bytes,
            clock=clock,
        )
        # What work costs
        self.throttle = Throttle(config.resources)
        self._busy_at = clock()  # when it last had work; inf: its memory was freed since

    def start(self) -> None:
        """Write the stored global adapters into the adapter files, and start the protocol."""
        if self.management.settings:
            self._use_settings()
        self.news.load(self._store.get(NEWS))
        if self.data.knowledge is not None:
            self.protocol.take_knowledge = self.data.knowledge.take
        self._use_global_adapter()
        self.evaluation.load()
        self.protocol.start(self._clock())

    def turn(self, wait_s: float = POLL_S) -> bool:
        """Serve traffic, then train on one batch if there is work; True if anything happened.

        Waits at most `wait_s` for traffic, and not at all while work may begin.
        """
        now = self._clock()
        self.throttle.look(now)
        moved = self.driver.poll(self._patience_s(wait_s, now), self._note, self._store.commit)
        self._react()
        has_answer = self.protocol.joined or self.protocol.joining.revoked
        self._event_log.note_answer(now, has_answer=has_answer)
        try:
            labelled = self._feed()
            self._begin_round()
            return self._work(labelled) or moved
        except (OutOfMemory, MemoryError) as error:
            self.throttle.failed(error, self._clock())
            return True

    @property
    def is_training(self) -> bool:
        """Whether a round has more steps to do, and the host has not paused this board."""
        return self.trainer.round is not None and not self.management.paused

    @property
    def provider(self) -> str:
        """Where onnxruntime trains, and why there; empty before the first step."""
        return self._step.provider

    @property
    def slowed(self) -> bool:
        """Whether the pace that the host has set keeps the next round from beginning."""
        return self._clock() < self._began_at + self.management.settings.get("pace_s", 0)

    @property
    def global_adapter(self) -> Vector:
        """The global adapter as this board uses it: with what it keeps of its own (float32, D)."""
        return self._initial + to_float(self.model_q24)

    @property
    def model_q24(self) -> ModelQ24:
        """The same without the initial adapter, in units of 2**-24 (int32, D)."""
        return self.protocol.adapter_q24

    def scores(self, inputs: Arrays) -> NDArray[Any]:
        """The first output for the tail's inputs, with a batch axis, under the global adapter."""
        self._busy_at = self._clock()
        return self._inference.predict(inputs)[self.package.outputs[0].name]

    # Traffic

    @property
    def _has_work(self) -> bool:
        return not self.throttle.causes and (self.is_training or self.evaluation.is_running)

    def _patience_s(self, wait_s: float, now: float) -> float:
        """How long to wait for traffic."""
        if self._has_work:
            return 0.0
        return wait_s if self.data.feed is None else min(wait_s, self.data.feed.wait_s(now))

    def _moved_bytes(self) -> tuple[int, int]:
        """Bytes up and down so far, of all peers."""
        traffic = self.driver.traffic.values()
        return sum(peer.bytes_out for peer in traffic), sum(peer.bytes_in for peer in traffic)

    def _note(self, event: NodeEvent) -> None:
        """Store and log an event; `_react` handles it after everything is sent."""
        self._store.record(event)
        self._keyring.record(event)
        if isinstance(event, Advanced):
            self.news.advanced(event)
            self._store.put(NEWS, self.news.stored())
        self._events.append(event)
        self._event_log.log(event)

    def _react(self) -> None:
        events, self._events = self._events, []
        is_changed = False  # the global adapter
        for event in events:
            match event:
                case Joined(is_new=True):
                    self._begin_run()
                    is_changed = True
                case Advanced():
                    is_changed = True
                    self.evaluation.probe = Probe(event.version, event.probe)
                case FellSilent():
                    self.silent_rounds += 1
                case WorkReady():
                    self.wanted = event.round
                    is_changed |= event.round == 0  # this run takes no adapter along
                case SettingsTaken():
                    self._use_settings()
        if is_changed:
            if self._is_too_late():
                self._submit()  # The delta goes into a later update.
            self._use_global_adapter()
        version = self.protocol.version
        has_learned = self.protocol.plan is not None and self.protocol.before is None
        if has_learned and self.evaluation.lacks(version):
            self.evaluation.begin(version, self.model_q24)

    def _begin_run(self) -> None:
        self.trainer.stop(forget=True)
        self.wanted = None
        self.news.begin_run()
        self._store.put(NEWS, self.news.stored())
        self.evaluation.begin_run()
        if self.data.knowledge is not None:
            self.data.knowledge.begin_run()
        self._store.commit()

    def _is_too_late(self) -> bool:
        """Whether the round that is trained was over too long ago for an update of its own."""
        began, plan = self.trainer.round, self.protocol.plan
        if began is None or plan is None:
            return False
        is_late = not 0 <= self.protocol.version - began <= plan.staleness_rounds
        return is_late or self.protocol.finished  # no later round would take it

    def _use_settings(self) -> None:
        settings = self.management.settings
        level = readable(settings).get("log_level", self.config.log_level)
        logging.getLogger().setLevel(str(level).upper())
        _log.warning("set by the host: %s", settings_text(settings) or "nothing")

    def _use_global_adapter(self) -> None:
        path = self.config.adapter_path
        write_adapter(path, self.package, self.global_adapter, self.protocol.version)
        self._inference.use_adapter(path)
        if self.data.feed is not None:
            self.data.feed.buffer.rate()

    # Training

    def _feed(self) -> NDArray[np.int64]:
        """Take what the source has; the indexes of new labels that are to be evaluated."""
        labelled = _NONE if self.data.feed is None else self.data.feed.poll(self._clock())
        if labelled.size:
            self.protocol.joining.samples = _weight(self.data)
            self.news.add(labelled.size)
            self._store.put(NEWS, self.news.stored())
        return labelled if self.data.held_out is None else _NONE

    def _begin_round(self) -> None:
        """Begin the wanted round, unless it is over or there is too little data."""
        protocol = self.protocol
        settings = self.config.training
        is_enough = self.data.count >= settings.samples_min
        if not is_enough or self.slowed or self.trainer.round is not None:
            return
        wanted = self.news.round_to_train(protocol, self.wanted, self._clock())
        self.wanted = None
        if wanted == protocol.version and protocol.pending is None and protocol.plan is not None:
            rng = round_rng(settings.seed, self.config.name, wanted)
            # The residual is what no update has carried yet. The next update carries it, so the
            # node need not learn it again.
            start = self.global_adapter + protocol.residual
            self._began_at = self._clock()
            self.trainer.begin(wanted, start, protocol.plan, rng, self.news.rounds)

    def _work(self, labelled: NDArray[np.int64]) -> bool:
        """Take a part of an evaluation and a step of training, if it is time for them.

        New labels that come while it is not are left out of the evaluation.
        """
        if self.throttle.causes or not (self._has_work or labelled.size):
            self._rest()
            return False
        self._busy_at = self._clock()
        if labelled.size:
            self.evaluation.evaluate_labelled(self.data.training, labelled)
        self.evaluation.advance()
        if self.is_training:
            self._train()
        self.throttle.worked()
        return True

    def _train(self) -> None:
        if not len(self.data.training):  # `ternmesh data forget` has deleted all
            self._submit()
            return
        try:
            self._weigh_knowledge()
            is_done = not self.trainer.step()
        except BoardFault:
            raise
        except ModelError as error:  # no sample of the batch fails alone
            self._lose_round(error)
            return
        if is_done:
            self._submit()

    def _weigh_knowledge(self) -> None:
        """Learn what other models have taught since the last round, before its first step.

        With held-out samples it waits for their first evaluation: else a lie would be believed.
        """
        last, can_evaluate = self.evaluation.last, self.data.held_out is not None
        is_time = not self.trainer.progress[0] and (last is not None or not can_evaluate)
        if is_time and self.data.knowledge is not None:
            quality = last.metric if last is not None and can_evaluate else None
            self.data.knowledge.refresh(self._inference, self.protocol.version, quality, self._beat)

    def _submit(self) -> None:
        """Hand the round's delta to the protocol; a delta that is not finite is lost."""
        round_number = self.trainer.round
        steps_done, _ = self.trainer.progress
        assert round_number is not None
        if steps_done == 0:
            self.trainer.stop()
            return
        self.evaluation.loss = self.trainer.loss
        self.protocol.joining.samples = _weight(self.data)
        delta = self.trainer.delta()
        try:
            self._submit_delta(round_number, delta)
        except CodecError as error:
            self._lose_round(error)
            return
        self.trainer.stop()

    def _lose_round(self, error: Exception) -> None:
        """Count a round without a delta.

        The node still sends an update, of its residual, so that the round need not wait for it.
        """
        round_number = self.trainer.round
        assert round_number is not None
        self.diverged += 1
        self.evaluation.loss = None
        self.trainer.stop(forget=True)
        _log.warning("round %d has no delta (%s): %s", round_number + 1, error, DIVERGED)
        zeros = np.zeros(self.package.dimension, np.float32)
        self._submit_delta(round_number, zeros)

    def _submit_delta(self, round_number: int, delta: Vector) -> None:
        self.protocol.evaluation = self.evaluation.report(self.protocol.version)
        self.protocol.submit(round_number, delta, self._clock())

    def _rest(self) -> None:
        """Free the sessions' memory after a long time without work, or if memory is short."""
        patience_s = 0.0 if SHORT_OF_MEMORY in self.throttle.causes else RELEASE_AFTER_S
        if self._clock() >= self._busy_at + patience_s:
            self._step.release()
            self._inference.release()
            trim_memory()
            self._busy_at = math.inf


def _settings(
    config: NodeConfig, package: ModelPackage, transport: Transport, pace: TimerSettings
) -> NodeSettings:
    return NodeSettings(
        name=config.name,
        model_hash=package.model_hash(),
        instance=os.urandom(INSTANCE_SIZE),
        pace=pace,
        frame_max=partial(frame_max, transport),
        has_aggregator=bool(config.link.aggregator),
    )


def _trainer(
    training: TrainingConfig, step: TrainStep, data: NodeData, package: ModelPackage
) -> Trainer:
    adam = AdamSettings(clip_norm=training.clip_norm)
    return Trainer(step, data.samples, package.batch, adam, keep_moments=training.keep_moments)


def _weight(data: NodeData) -> int:
    """The sample count by which the host weighs this node's updates."""
    return min(max(1, data.count), SAMPLES_MAX)
