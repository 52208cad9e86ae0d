"""One board: it follows the run, trains, and sends what it has learned.

It runs in one thread and serves traffic between two batches of training.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.config import BEST, NEWEST, NodeConfig
from edge.data.node_data import NodeData
from edge.errors import ModelError, OutOfMemory
from edge.evaluation import (
    SLICE_S,
    BestAdapter,
    Evaluator,
    History,
    HistoryEntry,
    Probe,
    is_better,
    read_best,
    spread,
    write_best,
)
from edge.event_log import EventLog
from edge.onnx.session import Arrays, Inference, LoadedModel, TrainStep, trim_memory, write_adapter
from edge.personal import take_up
from edge.resources import SHORT_OF_MEMORY, Throttle
from edge.trainer import AdamSettings, Trainer, round_rng
from ternmesh.codec.scale import to_float
from ternmesh.errors import CodecError
from ternmesh.federated.evaluation import Evaluation, Values, write_values
from ternmesh.federated.events import (
    Advanced,
    Decommissioned,
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
from ternmesh.federated.refusals import DIVERGED, NO_ANSWER
from ternmesh.federated.state import NodeState
from ternmesh.timers import NETWORK_TIMERS, TimerSettings
from ternmesh.types import ModelQ24, Vector
from ternmesh.wire.update import SAMPLES_MAX
from ternmesh_service.keyring import Keyring, NoKeyring
from ternmesh_service.notify import no_beat
from ternmesh_service.wipe import DecommissionOrdered
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

    Methods raise StoreError, ModelError or DataError if the node cannot continue, and
    DecommissionOrdered if the host ends it.
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
        self.config, self.package, self.data = config, package, data
        self._keyring = keyring or NoKeyring()
        self.personal, state = take_up(package, training.personal, store, state)
        # What the host has set on this board
        self.management = BoardManagement(*store.settings(), allowed=config.remote.allow)
        self.protocol = NodeProtocol(
            NodeSettings(
                name=config.name,
                model_hash=package.model_hash(),
                instance=os.urandom(INSTANCE_SIZE),
                pace=pace,
                frame_max=partial(frame_max, transport),
            ),
            state,
            samples=_weight(data),
            rng=np.random.default_rng(),
            security=self._keyring.security(config.name, package.model_hash(), state.counter),
            management=self.management,
        )
        if data.knowledge is not None:
            self.protocol.take_knowledge = data.knowledge.take
        self.driver: Driver[NodeEvent] = Driver(self.protocol, transport, clock)
        self.history = History(store)
        self.best: BestAdapter | None = None  # of this run, if there are held-out samples
        self.diverged = 0  # rounds without a delta: NaN, or samples that break the graph
        self.silent_rounds = 0  # rounds whose delta was too small for an update
        self.wanted: int | None = None  # the round to begin as soon as there is enough data
        self.news = News(config.training.news_min)  # read in `start`
        self._step = TrainStep(loaded.folder, package, training.threads, training.provider)
        adam = AdamSettings(weight_decay=training.weight_decay, clip_norm=training.clip_norm)
        self.trainer = Trainer(
            self._step, data.samples, package.batch, adam, keep_moments=training.keep_moments
        )
        self._initial, self._store, self._clock, self._beat = loaded.initial, store, clock, beat
        self._inference = Inference(loaded.folder, package, training.threads, training.provider)
        self._evaluator = Evaluator(self._inference, package, beat, clock)
        self._evaluation: Iterator[None] | None = None  # that has begun
        self.throttle = Throttle(config.resources)
        self._run = (state.run, state.plan)
        self._loss: float | None = None  # of the last trained round
        self._probe = Probe()
        self._events: list[NodeEvent] = []
        self._event_log = EventLog(config.name)
        self._unanswered_at = clock() + UNANSWERED * pace.hello_s  # then it says so, once
        self._marked_bytes = (0, 0)  # up and down, at the last entry of the history
        self._began_at = -math.inf  # when it has begun its last round
        self._marked_at = self._busy_at = clock()  # of that entry; when it last had work, or inf

    def start(self) -> None:
        """Write the stored global adapters into the adapter files, and start the protocol."""
        if self.management.settings:
            self._use_settings()
        self.history.load()
        self.news.load(self._store.get(NEWS))
        if self.data.knowledge is not None:
            self.data.knowledge.load()
        # Under the other setting of `use`, this file was what `adapter_path` is now.
        path = Path(self.config.state_dir, f"{self.config.evaluate.use}.onnx_adapter")
        path.unlink(missing_ok=True)
        self._use_global_adapter()
        if self.data.held_out is not None:
            self.best = read_best(self._store, self.package.dimension)
            self._write_best()
        self._marked_at = self._clock()
        self.protocol.start(self._clock())

    def turn(self, wait_s: float = POLL_S) -> bool:
        """Serve traffic, then train on one batch if there is work; True if anything happened.

        Waits at most `wait_s` for traffic, and not at all while work may begin.
        """
        now = self._clock()
        self.throttle.look(now)
        if self._has_work:
            wait_s = min(wait_s, self.throttle.wait_s(now))
        elif self.data.feed is not None:
            wait_s = min(wait_s, self.data.feed.wait_s(now))
        moved = self.driver.poll(wait_s, self._note, self._store.commit)
        self._react()
        if self.protocol.joined or self.protocol.joining.revoked:
            self._unanswered_at = math.inf
        elif now >= self._unanswered_at:
            self._unanswered_at = math.inf
            _log.warning("%s", NO_ANSWER)
        try:
            labelled = self._feed()
            self._begin()
            return self._work(labelled) or moved
        except (OutOfMemory, MemoryError) as error:
            self.throttle.failed(error, self._clock())
            return True

    @property
    def is_training(self) -> bool:
        """Whether a round has more steps to do, and the host has not paused this board."""
        return self.trainer.round is not None and not self.management.paused

    @property
    def _has_work(self) -> bool:
        return not self.throttle.causes and (self.is_training or self._evaluation is not None)

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
        return self.personal.own(self.protocol.adapter_q24)

    def scores(self, inputs: Arrays) -> NDArray[Any]:
        """The first output for inputs by name, with a batch axis, under the global adapter."""
        self._busy_at = self._clock()
        return self._inference.predict(inputs)[self.package.outputs[0].name]

    # Events of the protocol

    def _note(self, event: NodeEvent) -> None:
        """Store and log an event; `_react` handles it after everything is sent."""
        self._store.record(event)
        self.personal.record(event, self._store)
        self._keyring.record(event)
        if isinstance(event, Advanced):
            self.news.advanced(event)
            self._store.put(NEWS, self.news.stored())
        self._events.append(event)
        self._event_log.log(event)

    def _react(self) -> None:
        events = self._events
        self._events = []
        is_changed = False
        for event in events:
            match event:
                case Joined() if (event.run, event.plan) != self._run:
                    self._begin_run(event)
                    is_changed = True
                case Advanced():
                    is_changed = True
                    self._probe = Probe(event.version, event.probe)
                case FellSilent():
                    self.silent_rounds += 1
                case WorkReady():
                    self.wanted = event.round
                    is_changed |= event.round == 0  # this run takes no adapter along
                case Decommissioned():
                    raise DecommissionOrdered("the host has decommissioned this board")
                case SettingsTaken():
                    self._use_settings()
        if is_changed:
            if self._is_too_late():
                self._submit()  # The delta goes into a later update.
            self._use_global_adapter()
        last = self.history.last
        is_known = last is not None and last.version == self.protocol.version
        protocol = self.protocol
        may_evaluate = protocol.plan is not None and protocol.before is None
        if may_evaluate and not is_known and self._evaluation is None:
            self._evaluation = self._evaluate()

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

    def _begin_run(self, event: Joined) -> None:
        self._run = (event.run, event.plan)
        self.trainer.stop(forget=True)
        self.wanted = None
        self.news.begin_run()
        self._store.put(NEWS, self.news.stored())
        self._loss = self._evaluation = None
        self.history.clear()
        if self.data.knowledge is not None:
            self.data.knowledge.begin_run()
        self.best = None
        write_best(self._store, None)
        self._store.commit()

    def _keep_best(self, evaluated: BestAdapter) -> None:
        if is_better(self.package.metric, evaluated.metric, self.best):
            self.best = evaluated
            write_best(self._store, self.best)
            self._write_best()

    def _write_best(self) -> None:
        """Write the best adapter file; before the first evaluation the newest is the best."""
        best = self.best or BestAdapter(self.protocol.version, math.nan, self.model_q24)
        vector = self._initial + to_float(best.model_q24)
        write_adapter(self.config.adapter_file(BEST), self.package, vector, best.version)

    def _use_global_adapter(self) -> None:
        path = self.config.adapter_file(NEWEST)
        write_adapter(path, self.package, self.global_adapter, self.protocol.version)
        self._inference.use_adapter(path)
        if self.data.feed is not None:
            self.data.feed.buffer.rate()

    def _evaluate(self) -> Iterator[None]:
        """Evaluate the global adapter, batch by batch, and add an entry to the history."""
        held_out, loss = self.data.held_out, self._loss
        version, model_q24 = self.protocol.version, self.model_q24
        self._loss = None
        if held_out is not None:
            self._evaluator.take()  # what is left of an evaluation without an end
            adapter = self._initial + to_float(model_q24)  # to the end, whatever comes meanwhile
            chosen = spread(len(held_out), self.config.evaluate.samples_max)
            yield from self._evaluator.evaluate(held_out, chosen, self.package.split(adapter))
        metric, metric_loss = self._evaluator.take()
        probe = self._probe
        is_asked = probe.version == version and self.config.evaluate.report
        if held_out is not None and is_asked and probe.vector is not None:
            vector = self.personal.shared(probe.vector)
            effect = yield from self._evaluator.effect(held_out, chosen, adapter, vector)
            if self._probe is probe:  # the next global update may have brought another
                self._probe = Probe(version, effect=effect)
        now = self._clock()
        self._busy_at = now
        traffic = list(self.driver.traffic.values())
        moved = (sum(t.bytes_out for t in traffic), sum(t.bytes_in for t in traffic))
        entry = HistoryEntry(
            version=version,
            metric=metric,
            loss=loss,
            bytes_up=moved[0] - self._marked_bytes[0],
            bytes_down=moved[1] - self._marked_bytes[1],
            seconds=round(now - self._marked_at, 3),
            metric_loss=metric_loss,
        )
        if held_out is not None and entry.metric is not None:
            self._keep_best(BestAdapter(version, entry.metric, model_q24))
        self._marked_bytes = moved
        self._marked_at = now
        self.history.append(entry)
        self._store.commit()
        shown = "unknown" if entry.metric is None else f"{entry.metric:.4f}"
        _log.info("global adapter %d: %s %s", entry.version, self.package.metric, shown)

    # Training

    def _feed(self) -> NDArray[np.int64]:
        """Take what the source has; the indexes of new labels that are to be evaluated."""
        labelled = _NONE if self.data.feed is None else self.data.feed.poll(self._clock())
        if labelled.size:
            self.news.add(labelled.size)
            self._store.put(NEWS, self.news.stored())
        return labelled if self.data.held_out is None else _NONE

    def _begin(self) -> None:
        """Begin the wanted round, unless it is over or there is too little data."""
        protocol = self.protocol
        settings = self.config.training
        is_enough = len(self.data.training) >= settings.samples_min
        if not is_enough or self.slowed or self.trainer.round is not None:
            return
        wanted = self.news.round_to_train(protocol, self.wanted, self._clock())
        self.wanted = None
        if wanted == protocol.version and protocol.pending is None and protocol.plan is not None:
            rng = round_rng(settings.seed, self.config.name, wanted)
            # The residual is what no update has carried yet. The next update carries it, so the
            # node need not learn it again.
            start = self.global_adapter + self.personal.shared(protocol.residual)
            self._began_at = self._clock()
            self.trainer.begin(wanted, start, protocol.plan, rng, self.news.rounds)

    def _work(self, labelled: NDArray[np.int64]) -> bool:
        """Take a part of an evaluation and a step of training, if it is time for them.

        New labels that come while it is not are left out of the evaluation.
        """
        began = self._clock()
        if self.throttle.causes or not (self._has_work or labelled.size):
            self._rest()
            return False
        if self.throttle.wait_s(began):
            return False
        if labelled.size:
            self._advance(self._evaluator.evaluate(self.data.training, labelled))
        # One that fails is over: it must not look like work that was done.
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None and self._advance(evaluation):
            self._evaluation = evaluation
        if self.is_training:
            self._train()
        self.throttle.worked(began, self._clock())
        return True

    def _advance(self, evaluation: Iterator[None]) -> bool:
        """Evaluate for about `SLICE_S`; True if there may be more to do."""
        stop_at = self._clock() + SLICE_S
        return any(self._clock() >= stop_at for _ in evaluation)

    def _train(self) -> None:
        self._busy_at = self._clock()
        if not len(self.data.training):  # `ternmesh data forget` has deleted all
            self._submit()
            return
        try:
            self._weigh_knowledge()
            is_done = not self.trainer.step()
        except ModelError as error:
            if self.data.feed is None or isinstance(error, OutOfMemory):
                raise  # Files do not change by themselves.
            # For example a label out of range: a restart would find it again.
            self._lose_round(error)
            return
        if is_done:
            self._submit()

    def _weigh_knowledge(self) -> None:
        """Learn what other models have taught since the last round, before its first step.

        With held-out samples it waits for their first evaluation: else a lie would be believed.
        """
        last, can_evaluate = self.history.last, self.data.held_out is not None
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
        self._loss = self.trainer.loss
        self.protocol.joining.samples = _weight(self.data)
        delta = self.trainer.delta()
        try:
            self._submit_delta(round_number, self.personal.shared(delta))
        except CodecError as error:
            self._lose_round(error)
            return
        self.trainer.stop()
        self.personal.learn(delta)
        if self.personal:  # it is in use at once: a silent fleet may stay at this version
            self._use_global_adapter()

    def _evaluated(self, version: int) -> Values:
        """What the host is told of a global adapter; nothing without held-out samples."""
        last = self.history.last
        if self.data.held_out is None or not self.config.evaluate.report:
            return ()
        if last is None or last.version != version:
            return ()
        effect = self._probe.effect if self._probe.version == version else None
        # In place of the accuracy, so that no report is longer than others
        is_told = self.package.metric == "accuracy" and effect is None
        accuracy = last.metric if is_told else None
        return write_values(Evaluation(last.metric_loss, accuracy, probe=effect))

    def _lose_round(self, error: Exception) -> None:
        """Count a round without a delta.

        The node still sends an update, of its residual, so that the round need not wait for it.
        """
        round_number = self.trainer.round
        assert round_number is not None
        self.diverged += 1
        self._loss = None
        self.trainer.stop(forget=True)
        _log.warning("round %d has no delta (%s): %s", round_number + 1, error, DIVERGED)
        zeros = np.zeros(self.package.dimension, np.float32)
        self._submit_delta(round_number, zeros)

    def _submit_delta(self, round_number: int, delta: Vector) -> None:
        self.protocol.evaluation = self._evaluated(self.protocol.version)
        self.protocol.submit(round_number, delta, self._clock())

    def _rest(self) -> None:
        """Free the sessions' memory after a long time without work, or if memory is short."""
        patience_s = 0.0 if SHORT_OF_MEMORY in self.throttle.causes else RELEASE_AFTER_S
        if self._clock() >= self._busy_at + patience_s:
            self._step.release()
            self._inference.release()
            trim_memory()
            self._busy_at = math.inf


def _weight(data: NodeData) -> int:
    """The sample count by which the host weighs this node's updates."""
    return min(max(1, len(data.training)), SAMPLES_MAX)
