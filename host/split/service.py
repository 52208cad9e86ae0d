"""The host's service for split training.

The boards train the first part of a model and the host the rest; they exchange activations and
gradients.
"""

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from host import membership
from host.enrolment import EnrolmentService
from host.split.config import SplitHostConfig, plan_of, read_first
from ternmesh.errors import CodecError
from ternmesh.federated.events import CountersReserved, Refused, refusals
from ternmesh.federated.refusals import RefusalLog, why
from ternmesh.split.host import SplitHost, SplitSettings
from ternmesh.split.messages import Arrived, BoardJoined, HostEvent
from ternmesh.split.plan import SplitPlan
from ternmesh.timers import NETWORK_TIMERS, TimerSettings
from ternmesh.wire import activation, control
from ternmesh.wire.activation import Activation, Values
from ternmesh_service.config_file import control_path
from ternmesh_service.control_socket import ControlServer, Relay
from ternmesh_service.keyring import Keyring, NoKeyring, choose_keyring, hop_keys, opened
from ternmesh_service.status import SplitHostStatus, SplitPeer, to_json
from ternmesh_store.split_store import RUN_SIZE, Checkpoint, SplitStore
from ternmesh_store.state_file import StateFile
from transports.base import HOST, Transport
from transports.driver import Driver
from transports.factory import make_transport, pace_of

POLL_S = 0.1
WEIGHTS = "weights"
COUNTED = ("learned", "answered", "diverged")  # micro-batches
RECENT = 50  # the status shows mean loss and accuracy of so many micro-batches

_log = logging.getLogger(__name__)


class SplitStage(Protocol):
    """The host's part of the model and its optimiser.

    `host.split.stage.TorchStage`, which needs torch, implements and documents the methods.
    """

    steps: int

    def predict(self, values: Values) -> Values: ...
    def learn(self, values: Values, labels: bytes) -> tuple[Values, float, int]: ...
    def step(self, rate: float) -> None: ...
    def state(self) -> bytes: ...
    def restore(self, state: bytes) -> None: ...


class SplitService:
    """One split training. Open the store first, and make all calls from one thread.

    A checkpoint is saved every `checkpoint` optimiser steps. A step waits at most `wait_s` for the
    gradients of the other boards.
    """

    def __init__(
        self,
        plan: SplitPlan,
        settings: SplitSettings,
        model: bytes,
        stage: SplitStage,
        store: SplitStore,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        keyring: Keyring | NoKeyring | None = None,
        checkpoint: int = 20,
        wait_s: float = 0.0,
        pace: TimerSettings = NETWORK_TIMERS,
    ) -> None:
        self._keyring = keyring or NoKeyring()
        self._stage = stage
        self._store = store
        self._clock = clock
        self._model = model
        self._checkpoint = checkpoint
        self._wait_s = wait_s
        kept = self._continue_or_begin()
        counter = store.counter()
        boards = [(address, name, kept.numbers.get(name, 0)) for address, name in store.boards()]
        self.host = SplitHost(
            plan=plan,
            settings=settings,
            model_hash=model,
            run=kept.run,
            boards=boards,
            counter=counter,
            security=self._keyring.security(HOST, model, counter),
            pace=pace,
        )
        self.enrolment: EnrolmentService | None = None
        if isinstance(self._keyring, Keyring):
            self.enrolment = EnrolmentService(self._keyring, self.host.channel)
            self.enrolment.register(self.host.handlers)
        self.driver: Driver[HostEvent] = Driver(self.host, transport, clock)
        self.counts = +Counter({name: kept.counts.get(name, 0) for name in COUNTED})
        for board in self.host.nodes.values():
            board.learned = kept.counts.get(f"{board.name}.learned", 0)
            board.skipped = kept.counts.get(f"{board.name}.skipped", 0)
        self._held: dict[int, Activation] = {}  # by address: gradients to send after the step
        self._step_at = 0.0  # the latest time of the next step
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)  # loss, accuracy
        self._saved = stage.steps  # steps at the last checkpoint
        self._refusals = RefusalLog()

    def start(self) -> None:
        """Begin the training, or continue from the last checkpoint."""
        self.host.start(self._clock())

    def poll(self, wait_s: float) -> bool:
        """Handle the frames that arrive within `wait_s`. Return whether anything happened."""
        if self._held:
            wait_s = min(wait_s, max(0.0, self._step_at - self._clock()))
        moved = self.driver.poll(wait_s, self._handle, self._store.commit)
        if self._held and (self._clock() >= self._step_at or self._all_gradients_held):
            self._step()
            moved = True
        return moved

    @property
    def _all_gradients_held(self) -> bool:
        """Whether every board that will send more has a gradient for the next step."""
        return self._held.keys() >= self.host.waited_for(self._clock())

    def may_leave(self) -> bool:
        """Whether the run is finished and no board will send another question."""
        now = self._clock()
        leave_at = self.host.leave_at(now)
        return leave_at is not None and now >= leave_at

    def enrol(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request about the fleet's members."""
        answer = membership.answer(self._keyring, request, self.enrolment, self._clock())
        if request[membership.ASK] == "revoke":  # without that board the run may be finished
            self.host.handle_timeout(self._clock())
        return answer

    def save(self) -> None:
        numbers = {board.name: board.number for board in self.host.nodes.values()}
        learned = {WEIGHTS: self._stage.state()}
        counts = dict(self.counts)
        for board in self.host.nodes.values():
            counts |= {f"{board.name}.learned": board.learned}
            counts |= {f"{board.name}.skipped": board.skipped}
        self._store.save(Checkpoint(self._model, self.host.run, numbers, learned, counts))
        self._store.commit()
        self._saved = self._stage.steps

    # Events

    def _handle(self, event: HostEvent) -> None:
        self._keyring.record(event)
        match event:
            case CountersReserved():
                self._store.reserve(event.limit)
            case BoardJoined():
                self._store.add_board(event.address, event.name)
                _log.info("%s takes part", event.name)
            case Arrived():
                self._compute(event.address, event.item)
            case Refused():
                if self._refusals.is_news(event.peer, event.reason):
                    advice = why(event.reason, on_host=True)
                    _log.warning("refused from %s: %s: %s", event.peer, event.reason, advice)

    def _compute(self, address: int, item: Activation) -> None:
        try:
            match item.leg:
                case activation.LEARN:
                    self._learn(address, item)
                case activation.ASK:
                    self._answer(address, item)
        except CodecError as error:
            if item.leg != activation.ASK:
                self.host.give_up(address)
            self._diverged(item, error)

    def _answer(self, address: int, item: Activation) -> None:
        values = self._stage.predict(item.values)
        self.host.answer(address, Activation(activation.ANSWER, item.number, values))
        self.counts["answered"] += 1

    def _learn(self, address: int, item: Activation) -> None:
        """Keep a board's gradient until the next step. The board waits for this gradient."""
        gradient, loss, right = self._stage.learn(item.values, item.labels)
        self._recent.append((loss, right / len(item.labels)))
        if not self._held:
            self._step_at = self._clock() + self._wait_s
        self._held[address] = Activation(activation.GRADIENT, item.number, gradient)
        self.host.nodes[address].learned += 1
        self.counts["learned"] += 1
        if self._all_gradients_held:
            self._step()

    def _step(self) -> None:
        held = self._held
        self._held = {}
        latest = max(item.number for item in held.values())
        self._stage.step(self.host.plan.learning_rate(latest))
        for address, item in held.items():
            try:
                self.host.answer(address, item)
            except CodecError as error:
                self._diverged(item, error)
        if self._stage.steps >= self._saved + self._checkpoint:
            self.save()

    def _diverged(self, item: Activation, error: CodecError) -> None:
        self.counts["diverged"] += 1
        _log.warning("micro-batch %d is skipped: %s", item.number, error)

    def _continue_or_begin(self) -> Checkpoint:
        kept = self._store.load((WEIGHTS,))
        if kept is not None and kept.model == self._model:
            if WEIGHTS in kept.learned:
                self._stage.restore(kept.learned[WEIGHTS])
            _log.info("run %s continues after %d steps", kept.run.hex(), self._stage.steps)
            return kept
        if kept is not None:
            _log.warning("run %s has another model: its state is deleted", kept.run.hex())
            self._store.forget()
        begun = Checkpoint(self._model, os.urandom(RUN_SIZE))
        self._store.save(begun)
        self._store.commit()
        _log.info("run %s begins", begun.run.hex())
        return begun

    def status(self) -> SplitHostStatus:
        host, now = self.host, self._clock()
        losses, right = zip(*self._recent, strict=True) if self._recent else ((), ())
        return SplitHostStatus(
            fleet="",
            run=host.run.hex(),
            phase=control.PHASES[host.phase(now)],
            steps=self._stage.steps,
            micro_batches=host.plan.micro_batches,
            plan=asdict(host.plan),
            counts=dict(self.counts),
            loss=sum(losses) / len(losses) if losses else None,
            accuracy=sum(right) / len(right) if right else None,
            boards=tuple(
                SplitPeer(
                    name=board.name,
                    number=board.number,
                    skipped=board.skipped,
                    heard_s_ago=None if board.heard_at is None else now - board.heard_at,
                    refused=refusals(board.refused),
                )
                for board in host.nodes.values()
            ),
            traffic=dict(self.driver.traffic),
            refused=refusals(host.refused),
        )


def run_split_host(
    config: SplitHostConfig,
    load_stage: Callable[[SplitHostConfig], tuple[SplitStage, int]],
    stop: threading.Event,
    *,
    insecure: bool = False,
    until_finished: bool = False,
) -> None:
    """Run the host until `stop` is set.

    With `until_finished`, also return when the run is finished and no board will send another
    question. `load_stage` returns the host's part and the number of classes. Raises the errors of
    `load_stage` and of `host.service.run_host`.
    """
    state = StateFile(Path(config.state_dir))
    keyring = choose_keyring(state, config.security, config.link, insecure=insecure)
    first = read_first(config)
    stage, classes = load_stage(config)
    plan = plan_of(config, first, classes)
    store, relay = SplitStore(state), Relay()
    transport = make_transport(config.link, HOST, state, hop_keys(keyring, HOST))
    with opened(state, keyring, config.link.fleet), closing(transport):
        service = SplitService(
            plan,
            SplitSettings(config.run.min_boards, config.run.silence_s),
            first.model_hash(),
            stage,
            store,
            transport,
            keyring=keyring,
            checkpoint=config.run.checkpoint,
            wait_s=config.run.wait_s,
            pace=pace_of(transport),
        )

        def answer(request: Mapping[str, Any]) -> dict[str, Any]:
            if membership.ASK in request:
                return service.enrol(request)
            found = replace(
                service.status(),
                fleet=config.link.fleet,
                security=keyring.status(),
                transport=transport.status(),
            )
            return to_json(found)

        with ControlServer(control_path(config.state_dir, config.control_socket), relay.ask):
            transport.open()
            service.start()
            while not stop.is_set() and not (until_finished and service.may_leave()):
                service.poll(POLL_S)
                relay.serve(answer)
            service.save()
