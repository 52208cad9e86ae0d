"""The host's program in a split training: later stages of the model for any number of boards."""

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from host import membership
from host.desk import Desk
from host.split_config import SplitHostConfig, plan_of, read_parts, settings_of
from ternmesh.errors import CodecError
from ternmesh.split.events import Arrived, BoardJoined, HostEvent
from ternmesh.split.host import Settings, SplitHost
from ternmesh.split.plan import SplitPlan, model_hash
from ternmesh.swarm.events import FIRST_CONTACT, CountersReserved, Refused, refusals
from ternmesh.swarm.pace import NETWORK, Pace
from ternmesh.wire import activation, control
from ternmesh.wire.activation import Activation, Values
from ternmesh_store.keyring import Keyring, NoKeyring, choose_keyring, hop_keys
from ternmesh_store.radio_stores import RadioStores
from ternmesh_store.split_store import RUN_SIZE, Checkpoint, SplitStore
from transports.base import HOST, Transport
from transports.bearer import make_transport, pace_of
from transports.control_socket import ControlServer, Relay
from transports.driver import Driver

POLL_S = 0.1
WEIGHTS = "weights"
COUNTED = ("learned", "answered", "diverged")  # micro-batches
REFUSALS_TOLD_MAX = 1024  # pairs of peer and reason that get a line in the log
RECENT = 50  # micro-batches over which loss and accuracy are told

_log = logging.getLogger(__name__)


class Stage(Protocol):
    """What computes, with torch: `host.split_stage.Stage` says what each method does."""

    gathered: int
    steps: int

    def predict(self, values: Values) -> Values:
        """See there."""

    def learn(self, values: Values, labels: bytes) -> tuple[Values, float, int]:
        """See there."""

    def back(self, values: Values, gradient: Values) -> Values:
        """See there."""

    def step(self, rate: float) -> None:
        """See there."""

    def state(self) -> bytes:
        """See there."""

    def restore(self, state: bytes) -> None:
        """See there."""


class SplitService:
    """One split training while it is hosted. The store is open; all calls are from one thread."""

    def __init__(
        self,
        plan: SplitPlan,
        settings: Settings,
        model: bytes,
        stage: Stage,
        store: SplitStore,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        keyring: Keyring | NoKeyring | None = None,
        checkpoint: int = 20,
        wait_s: float = 0.0,
        pace: Pace = NETWORK,
    ) -> None:
        self._keyring = keyring or NoKeyring()
        self._stage, self._store, self._clock = stage, store, clock
        self._model, self._checkpoint, self._wait_s = model, checkpoint, wait_s
        kept, counter = self._continue_or_begin(), store.counter()
        boards = [(c, name, kept.numbers.get(name, 0)) for c, name in store.boards()]
        trust = self._keyring.trust(HOST, model, counter)
        self.host = SplitHost(plan, settings, model, kept.run, boards, counter, trust, pace)
        self.desk: Desk[HostEvent] | None = None
        if isinstance(self._keyring, Keyring):
            self.desk = Desk(self.host, self._keyring, self.host.refused)
        self.driver: Driver[HostEvent] = Driver(self.desk or self.host, transport, clock)
        self.counts = +Counter({name: kept.counts.get(name, 0) for name in COUNTED})
        for board in self.host.boards.values():
            board.learned = kept.counts.get(f"{board.name}.learned", 0)
            board.skipped = kept.counts.get(f"{board.name}.skipped", 0)
        self._waiting: dict[int, Values] = {}  # by context: what a head's gradient is for
        self._held: dict[int, Activation] = {}  # by context: gradients that wait for the step
        self._step_at = 0.0
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)  # loss, share right
        self._saved = stage.steps
        self._told: set[tuple[str, str]] = set()

    def start(self) -> None:
        """Begin, or go on from the last checkpoint."""
        self.host.start(self._clock())

    def poll(self, wait_s: float) -> bool:
        """Take what arrives within `wait_s`; True if anything happened."""
        if self._held:
            wait_s = min(wait_s, max(0.0, self._step_at - self._clock()))
        moved = self.driver.poll(wait_s, self._handle, self._commit)
        if self._held and (self._clock() >= self._step_at or self._is_waiting_for_nobody):
            self._step()
            moved = True
        return moved

    @property
    def _is_waiting_for_nobody(self) -> bool:
        return self._held.keys() >= self.host.waited_for(self._clock())

    def may_leave(self) -> bool:
        """Whether the run is over and no board has anything more to ask."""
        now = self._clock()
        leave_at = self.host.leave_at(now)
        return leave_at is not None and now >= leave_at

    def enrol(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request about the fleet's members."""
        if request[membership.ASK] == "code" and self.desk is not None:
            return membership.code(self.desk, request, self._clock())
        answer = membership.answer(self._keyring, request)
        if request[membership.ASK] == "revoke":  # the run may be over without that board
            self.host.handle_timeout(self._clock())
        return answer

    def save(self) -> None:
        """Put what was learned on disk."""
        numbers = {board.name: board.number for board in self.host.boards.values()}
        learned, counts = {WEIGHTS: self._stage.state()}, {**self.counts}
        for board in self.host.boards.values():
            counts |= {f"{board.name}.learned": board.learned}
            counts |= {f"{board.name}.skipped": board.skipped}
        self._store.save(Checkpoint(self._model, self.host.run, numbers, learned, counts))
        self._store.commit()
        self._saved = self._stage.steps

    # What happened

    def _handle(self, event: HostEvent) -> None:
        self._keyring.record(event)
        match event:
            case CountersReserved():
                self._store.reserve(event.limit)
            case BoardJoined():
                self._store.add_board(event.context, event.name)
                _log.info("%s takes part", event.name)
            case Arrived():
                self._compute(event.context, event.item)
            case Refused():
                self._refused(event)

    def _compute(self, context: int, item: Activation) -> None:
        try:
            match item.leg:
                case activation.LEARN if self.host.plan.labels_stay:
                    self._waiting[context] = item.values
                    self._answer(context, item)
                case activation.LEARN:
                    self._learn(context, item)
                case activation.ASK:
                    self._answer(context, item)
                case activation.GRADIENT_UP:
                    self._back(context, item)
        except CodecError as error:
            if item.leg != activation.ASK:
                self.host.give_up(context)
            self._diverged(item, error)

    def _answer(self, context: int, item: Activation) -> None:
        values = self._stage.predict(item.values)
        self.host.answer(context, Activation(activation.ANSWER, item.number, values))
        self.counts["answered"] += 1

    def _learn(self, context: int, item: Activation) -> None:
        gradient, loss, right = self._stage.learn(item.values, item.labels)
        self._recent.append((loss, right / len(item.labels)))
        self._hold(context, item.number, gradient)

    def _back(self, context: int, item: Activation) -> None:
        values = self._waiting.pop(context)
        self._hold(context, item.number, self._stage.back(values, item.values))

    def _hold(self, context: int, number: int, gradient: Values) -> None:
        """Keep a board's gradient until the step: then it is answered, and goes on."""
        if not self._held:
            self._step_at = self._clock() + self._wait_s
        self._held[context] = Activation(activation.GRADIENT_DOWN, number, gradient)
        self.host.boards[context].learned += 1
        self.counts["learned"] += 1
        if self._is_waiting_for_nobody:
            self._step()

    def _step(self) -> None:
        held, self._held = self._held, {}
        latest = max(item.number for item in held.values())
        self._stage.step(self.host.plan.learning_rate(latest))
        for context, item in held.items():
            try:
                self.host.answer(context, item)
            except CodecError as error:
                self._diverged(item, error)
        if self._stage.steps >= self._saved + self._checkpoint:
            self.save()

    def _diverged(self, item: Activation, error: CodecError) -> None:
        self.counts["diverged"] += 1
        _log.warning("micro-batch %d gives nothing: %s", item.number, error)

    def _refused(self, event: Refused) -> None:
        pair = (event.peer, event.reason)
        is_news = pair not in self._told and event.reason != FIRST_CONTACT
        if is_news and len(self._told) < REFUSALS_TOLD_MAX:
            self._told.add(pair)
            _log.info("refused from %s: %s", event.peer, event.reason)

    def _commit(self) -> None:
        self._keyring.commit()
        self._store.commit()

    def _continue_or_begin(self) -> Checkpoint:
        kept = self._store.load((WEIGHTS,))
        if kept is not None and kept.model == self._model:
            if WEIGHTS in kept.learned:
                self._stage.restore(kept.learned[WEIGHTS])
            _log.info("run %s goes on after %d steps", kept.run.hex(), self._stage.steps)
            return kept
        if kept is not None:
            _log.warning("run %s was of another model: it is given up", kept.run.hex())
            self._store.forget()
        begun = Checkpoint(self._model, os.urandom(RUN_SIZE))
        self._store.save(begun)
        self._store.commit()
        _log.info("run %s begins", begun.run.hex())
        return begun

    def status(self) -> dict[str, Any]:
        """Where the training stands, ready for JSON."""
        host, now = self.host, self._clock()
        losses, right = zip(*self._recent, strict=True) if self._recent else ((), ())
        return {
            "role": "split host",
            "run": host.run.hex(),
            "phase": control.PHASES[host.phase(now)],
            "steps": self._stage.steps,
            "micro_batches": host.plan.micro_batches,
            "plan": asdict(host.plan),
            "counts": dict(self.counts),
            "loss": sum(losses) / len(losses) if losses else None,
            "accuracy": sum(right) / len(right) if right else None,
            "boards": [
                {
                    "name": board.name,
                    "number": board.number,
                    "learned": board.learned,
                    "skipped": board.skipped,
                    "done": board.is_done,
                    "heard_s_ago": None if board.heard_at is None else now - board.heard_at,
                    "refused": refusals(board.refused),
                }
                for board in host.boards.values()
            ],
            "traffic": {peer: asdict(moved) for peer, moved in self.driver.traffic.items()},
            "refused": refusals(host.refused),
        }


def run_split_host(
    config: SplitHostConfig,
    load_stage: Callable[[SplitHostConfig], tuple[Stage, int]],
    stop: threading.Event,
    *,
    insecure: bool = False,
    until_finished: bool = False,
) -> None:
    """Host until `stop` is set, or until the run is over and no board asks any more.

    `load_stage` gives the host's part and the number of classes. Raises what it raises, and what
    `host.service.run_host` does.
    """
    folder = Path(config.state_dir)
    keyring = choose_keyring(
        folder, config.trust, insecure=insecure, is_loopback=config.link.is_loopback
    )
    parts = read_parts(config)
    stage, classes = load_stage(config)
    plan = plan_of(config, parts, classes)
    model = model_hash(*(bundle.model_hash() for bundle in parts.values()))
    store, relay = SplitStore(config.store_path), Relay()
    keys = hop_keys(keyring, HOST)
    transport = make_transport(config.link, HOST, RadioStores(folder), keys)
    keyring.open()
    try:
        keyring.check_fleet(config.link.fleet)
        store.open()
        service = SplitService(
            plan,
            settings_of(config.run),
            model,
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
            about = {"fleet": config.link.fleet, "trust": keyring.status()}
            return {**service.status(), **about, "transport": transport.status()}

        with ControlServer(config.control_path, relay.ask):
            transport.open()
            service.start()
            while not stop.is_set() and not (until_finished and service.may_leave()):
                service.poll(POLL_S)
                relay.serve(answer)
            service.save()
    finally:
        transport.close()
        store.close()
        keyring.close()
