"""The host's program: the coordinator over a transport, kept in a store, seen over a socket."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from host import membership
from host.config import HostConfig, load_bundle, plan_of, settings_of
from host.desk import Desk
from host.ledger import Ledger
from host.report import HISTORY_MAX, describe, status
from ternmesh.config import ConfigError
from ternmesh.plan import Plan
from ternmesh.swarm.coordinator import Coordinator
from ternmesh.swarm.drift import DriftWatch
from ternmesh.swarm.events import (
    BodyAccepted,
    HostEvent,
    PacketForgotten,
    ReferenceMade,
    Refused,
    RoundOpened,
)
from ternmesh.swarm.pace import NETWORK
from ternmesh.swarm.records import NODES_BUNDLED_MAX, Settings
from ternmesh.wire.control import FINISHED, OPEN
from ternmesh_store.host_store import HostStore, Round, StoredRun
from ternmesh_store.keyring import Keyring, NoKeyring, choose_keyring, hop_keys
from ternmesh_store.radio_stores import RadioStores
from transports.base import HOST, Transport
from transports.bearer import make_transport
from transports.control_socket import ControlServer, Relay
from transports.driver import Driver

POLL_S = 0.1  # how long a status request or a stop may have to wait
RUN_SIZE = 8
REFUSALS_TOLD_MAX = 1024  # pairs of peer and reason that get a line in the log

_log = logging.getLogger(__name__)


class HostService:
    """One run while it is hosted. The store is open, and all calls come from one thread.

    ConfigError where the run has more nodes than one that takes bundles can have.
    """

    def __init__(
        self,
        stored: StoredRun,
        settings: Settings,
        model_hash: bytes,
        store: HostStore,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        keyring: Keyring | NoKeyring | None = None,
    ) -> None:
        if settings.bundles and len(stored.state.nodes) > NODES_BUNDLED_MAX:
            raise ConfigError(
                f"run.bundles is for at most {NODES_BUNDLED_MAX} nodes, and this run has "
                f"{len(stored.state.nodes)}: switch it off, or begin another run"
            )
        self._keyring = keyring or NoKeyring()
        trust = self._keyring.trust(HOST, model_hash, stored.state.counter)
        self.coordinator = Coordinator(
            stored.plan, settings, model_hash, stored.run, stored.state, trust
        )
        self.desk: Desk[HostEvent] | None = None
        if isinstance(self._keyring, Keyring):
            self.desk = Desk(self.coordinator, self._keyring, self.coordinator.refused)
        endpoint = self.desk or self.coordinator
        self.driver: Driver[HostEvent] = Driver(endpoint, transport, clock)
        self._store = store
        self._clock = clock
        self._drift = DriftWatch(stored.plan, model_hash)  # begins anew with the process
        self._ledger = Ledger(self.driver.traffic, clock())
        self._history: deque[Round] = deque(store.history(HISTORY_MAX), maxlen=HISTORY_MAX)
        self._made: list[int] = []  # the references of the current poll, rarely more than one
        self._finished_at: float | None = None
        self._told: set[tuple[str, str]] = set()

    def start(self) -> None:
        """Begin the run, or go on with it."""
        self.coordinator.start(self._clock())

    def poll(self, wait_s: float) -> bool:
        """Take what arrives within `wait_s`; True if anything happened."""
        moved = self.driver.poll(wait_s, self._handle, self._commit)
        if self._made:
            # The reference went out after the commit that made it: its bytes belong to its round.
            self._charge(self._made[-1], 0.0)
            self._store.commit()
            self._history.extend(self._store.history(len(self._made)))
            self._made.clear()
        if self._finished_at is None and self.coordinator.phase == FINISHED:
            self._finished_at = self._clock()
        return moved

    def enrol(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request about the fleet's members."""
        if request[membership.ASK] == "code" and self.desk is not None:
            return membership.code(self.desk, request, self._clock())
        answer = membership.answer(self._keyring, request)
        if "error" not in answer:
            match request[membership.ASK]:
                case "revoke":
                    self.coordinator.exclude(str(request["name"]), self._clock())
                case "rotate":  # there is a new broadcast key, which the others must be given
                    self.coordinator.handle_timeout(self._clock())
        return answer

    def status(self) -> dict[str, Any]:
        """Where the run stands, ready for JSON."""
        history = list(self._history)
        tallies, found = self._store.tallies(), self._drift.found
        return status(self.coordinator, tallies, found, history, self._clock())

    def may_leave(self) -> bool:
        """Whether the run is over, and whoever missed its end has had the time to ask for it.

        A node that missed the last reference hears so from the next announcement.
        """
        linger_s = self.coordinator.plan.announce_s + 2 * NETWORK.catch_up_s
        return self._finished_at is not None and self._clock() >= self._finished_at + linger_s

    def _handle(self, event: HostEvent) -> None:
        now = self._clock()
        self._store.record(event)
        self._keyring.record(event)
        match event:
            case BodyAccepted():
                self._drift.accept(event.context, event.body)
            case PacketForgotten():
                self._drift.forget(event.context)
            case ReferenceMade():
                self._drift.close(event.version - 1, [c.context for c in event.counted])
                self._charge(event.version, self._ledger.take_seconds(now))
                self._made.append(event.version)
            case RoundOpened():
                self._ledger.take_seconds(now)  # The time before belongs to no round.
        line = describe(event, self.coordinator, now)
        if line is not None:
            _log.log(self._level(event), "%s", line)

    def _commit(self) -> None:
        self._keyring.commit()
        if not self._store.changed:
            return  # Refusals alone must not wear the disk.
        is_open = self.coordinator.phase == OPEN
        seconds = self._ledger.take_seconds(self._clock()) if is_open else 0.0
        self._charge(self.coordinator.version + 1, seconds)
        self._store.commit()

    def _charge(self, version: int, seconds: float) -> None:
        self._store.charge(version, self._ledger.take_bytes(), seconds)

    def _level(self, event: HostEvent) -> int:
        """How loudly to say it; a peer's refusals of one kind are news only once."""
        if not isinstance(event, Refused):
            return logging.INFO
        pair = (event.peer, event.reason)
        if pair in self._told or len(self._told) >= REFUSALS_TOLD_MAX:
            return logging.DEBUG
        self._told.add(pair)
        return logging.ERROR if event.reason == "ahead" else logging.INFO


def continue_or_begin(
    store: HostStore, plan: Plan, model_hash: bytes, *, new_run: bool = False
) -> StoredRun:
    """The run that the store holds if it is of this model and plan, or else a new one.

    ConfigError where that would give up what another run has learned, unless `new_run` says so.
    """
    stored = store.load(model_hash)
    if stored is not None and stored.plan == plan:
        _log.info("run %s goes on at reference %d", stored.run.hex(), stored.state.version)
        if new_run:
            _log.warning(
                "--new-run changes nothing, as model and [run] are those of this run: to begin "
                "anew all the same, stop the host and move %s away",
                store.path,
            )
        return stored
    learned = store.learned_run()
    if learned is not None and not new_run:
        raise ConfigError(
            f"the model or [run] has changed since run {learned[0].hex()}, which stands at "
            f"reference {learned[1]}: restore them, or start once with --new-run to give it up"
        )
    if learned is not None:
        _log.warning("run %s is given up at reference %d", learned[0].hex(), learned[1])
    begun = store.begin(os.urandom(RUN_SIZE), plan, model_hash)
    _log.info("run %s begins: %d rounds", begun.run.hex(), plan.rounds)
    return begun


def run_host(
    config: HostConfig,
    stop: threading.Event,
    *,
    until_finished: bool = False,
    new_run: bool = False,
    insecure: bool = False,
) -> None:
    """Host a fleet until `stop` is set, or until the run is over and all had time to hear of it.

    Raises ConfigError, TrustError or BundleError before anything is changed; then StoreError,
    TransportError or ControlError where the host cannot start or go on. `new_run`: see
    `continue_or_begin`. `insecure`: without keys.
    """
    bundle = load_bundle(config.bundle)
    plan, settings = plan_of(config.run, bundle.dimension), settings_of(config.run)
    folder, is_loopback = Path(config.state_dir), config.link.is_loopback
    keyring = choose_keyring(folder, config.trust, insecure=insecure, is_loopback=is_loopback)
    if config.run.bundles and not insecure:
        raise ConfigError("run.bundles needs --insecure so far: sealed packets cannot be added up")
    store, stores = HostStore(config.store_path, settings.chain_max), RadioStores(folder)
    keys, relay = hop_keys(keyring, HOST), Relay()
    transport = make_transport(config.link, HOST, stores, keys)
    keyring.open()
    try:
        keyring.check_fleet(config.link.fleet)
        store.open(give_up_damaged=new_run)
        stored = continue_or_begin(store, plan, bundle.model_hash(), new_run=new_run)
        service = HostService(
            stored, settings, bundle.model_hash(), store, transport, keyring=keyring
        )

        def answer(request: Mapping[str, Any]) -> dict[str, Any]:
            if membership.ASK in request:
                return service.enrol(request)
            about = {"fleet": config.link.fleet, "model": bundle.name, "trust": keyring.status()}
            return {**service.status(), **about, "transport": transport.status()}

        with ControlServer(config.control_path, relay.ask):
            transport.open()
            service.start()
            while not stop.is_set() and not (until_finished and service.may_leave()):
                service.poll(POLL_S)
                relay.serve(answer)
    finally:
        transport.close()
        store.close()
        keyring.close()
