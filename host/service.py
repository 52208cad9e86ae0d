"""The host program: a run with its transport, its store and its control socket."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from host import membership
from host.config import HostConfig, plan_of, settings_of
from host.council import Council
from host.enrolment import EnrolmentService
from host.knowledge import Teaching
from host.releases import FOLDER, Publisher, active_model, signed_here
from host.report import HISTORY_MAX, RoundCosts, answer_boards, describe, status, summary
from host.runs import can_carry, continue_or_begin
from host.upstream import Upstream, opened_upstream, settings_below
from host.voting import TERM_COUNTERS, Voting, as_leader, read_own
from ternmesh.config import ConfigError
from ternmesh.errors import SecurityError
from ternmesh.federated.agreement.voters import BFT
from ternmesh.federated.events import (
    OLD_MEMBERS,
    AddedUp,
    GlobalUpdateMade,
    HostEvent,
    LiarCaught,
    Proposed,
    Refused,
    RoundOpened,
)
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.refusals import RefusalLog
from ternmesh.federated.state import HostSettings
from ternmesh.model_package import ModelPackage
from ternmesh.timers import NETWORK_TIMERS, TimerSettings
from ternmesh.wire.control import FINISHED, GATHERING, OPEN
from ternmesh.wire.global_update import COUNTED_MAX
from ternmesh_service.backup import answer_backup
from ternmesh_service.config_file import control_path, load_model_package, package_folder
from ternmesh_service.control_socket import BACKUP, BOARDS, PUBLISHED, RETURN, ControlServer, Relay
from ternmesh_service.keyring import Keyring, NoKeyring, choose_keyring, hop_keys, opened
from ternmesh_service.machine import Machine
from ternmesh_service.mqtt_health import served_health
from ternmesh_service.notify import ServiceManager
from ternmesh_service.servers import Servers, servers_of
from ternmesh_service.status import WITHDRAWN, HostStatus, to_json
from ternmesh_store.database import StoreError
from ternmesh_store.host_store import HostStore, StoredRound, StoredRun
from ternmesh_store.state_file import HOST as HOST_TABLES
from ternmesh_store.state_file import StateFile
from transports.base import HOST, StatusTransport, Transport
from transports.driver import Driver
from transports.factory import make_transport, pace_of, profile_of

FOLLOW_S = 0.02  # between two looks at what other voters say
POLL_S = 0.1  # the longest wait of a status request or a stop
NOT_ALONE = (
    "in the mode bft no single voter may mute boards or go back: revoke a board, or write "
    "run.muted into the settings of all voters and start them again"
)
NO_CODE = "in the mode bft a code enrols at one voter alone: use the board's line (`enrol add`)"
GATHERING_S = 15.0  # after which a host that waits for its first round says so

_log = logging.getLogger(__name__)


class HostService:
    """One run while it is hosted. The store is open, and all calls come from one thread."""

    def __init__(
        self,
        stored: StoredRun,
        settings: HostSettings,
        model_hash: bytes,
        store: HostStore,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        keyring: Keyring | NoKeyring | None = None,
        pace: TimerSettings = NETWORK_TIMERS,
        releases: Publisher | None = None,
        teaching: Teaching | None = None,
        council: Council | None = None,
        upstream: Upstream | None = None,
    ) -> None:
        self._keyring = keyring or NoKeyring()
        name = HOST if upstream is None else upstream.node.settings.name
        security = self._keyring.security(
            name, model_hash, stored.state.counter, is_aggregator=upstream is not None
        )
        listed = settings.listed_max if pace is NETWORK_TIMERS else COUNTED_MAX
        self.protocol = HostProtocol(
            plan=stored.plan,
            settings=replace(settings, listed_max=listed),
            model_hash=model_hash,
            run=stored.run,
            state=stored.state,
            security=security,
            pace=pace,
        )
        self.protocol.session.management.restore(store.boards(clock()))
        self.protocol.combiner.mute(store.muted)
        self.enrolment: EnrolmentService | None = None
        if isinstance(self._keyring, Keyring) and upstream is None:
            self.enrolment = EnrolmentService(self._keyring, self.protocol.channel)
            self.enrolment.register(self.protocol.handlers)
        self.driver: Driver[HostEvent] = Driver(self.protocol, transport, clock)
        self.releases = releases
        self.teaching = teaching
        self._council = council
        self._upstream = upstream
        self._store = store
        standings = self.protocol.combiner.aggregation.reputations.standings
        # The addresses of nodes that are trusted little
        self._low = {address for address, known in standings.items() if known.low_since}
        self._clock = clock
        self._costs = RoundCosts(self.driver.traffic, clock())
        self._history: deque[StoredRound] = deque(store.history(HISTORY_MAX), maxlen=HISTORY_MAX)
        if teaching is not None:
            teaching.version = stored.state.version
            known = [one.accuracy for one in self._history if one.accuracy is not None]
            teaching.quality = known[-1] if known else None
        self._lines: list[tuple[int, str]] = []  # level and text, logged once the disk has it
        self._made: list[int] = []  # versions of this poll's global updates, rarely more than one
        self._has_closed = False  # a round, since the start
        self._finished_at: float | None = None
        self._refusals = RefusalLog()
        self.caught: dict[str, str] = {}  # aggregators that have lied since the start, and how
        self._remark = ""  # what failed in the aggregation
        self._gathering_at = clock() + GATHERING_S  # when it says what it waits for, once

    def start(self) -> None:
        """Begin the run, or continue it."""
        if isinstance(self._keyring, Keyring):
            named = self.protocol.settings.aggregation.fixed
            for name in sorted(named.keys() - set(self._keyring.member_list.boards())):
                _log.warning("run.pinned or run.muted names %s: no such board is enrolled", name)
        if self._upstream is not None:
            self._upstream.resume(self.protocol)
        self.protocol.start(self._clock())

    def poll(self, wait_s: float) -> bool:
        """Handle what arrives within `wait_s` seconds; True if anything happened."""
        moved = self.driver.poll(wait_s, self._handle, self._commit)
        if self._made:
            # The global update was sent after its commit: its bytes still belong to its round. The
            # next commit makes that durable; after the last round there may be none.
            self._charge(self._made[-1], 0.0)
            if self.protocol.phase == FINISHED:
                self._store.commit()
            self._history.extend(self._store.history(len(self._made)))
            self._made.clear()
        now = self._clock()
        if self._council is not None:
            self._council.turn(now)
        if self._upstream is not None:
            self._upstream.turn(self.protocol, now)
        if self.releases is not None:
            known = (node.name for node in self.protocol.nodes.values())
            boards = (name for name in known if not self.protocol.is_excluded(name))
            bodies = self.releases.bodies(now, self.driver.spare(), boards)
            self.protocol.session.release = self.releases.sender
            self.protocol.session.broadcast(bodies)
        if self.teaching is not None:
            self.protocol.session.broadcast(self.teaching.turn(self.protocol))
            self.protocol.hold(self.teaching.is_ahead(self.protocol), now)
        if now >= self._gathering_at:
            self._gathering_at = math.inf
            here, needed = len(self.protocol.awaited(now)), self.protocol.settings.min_peers
            if self.protocol.phase == GATHERING:
                _log.info("the run waits for boards: %d of run.min_peers = %d here", here, needed)
        if self._finished_at is None and self.protocol.phase == FINISHED:
            self._finished_at = now
        return moved

    @property
    def is_deposed(self) -> bool:
        """Whether another voter leads now, or this one is cut off from the others."""
        return self._council is not None and self._council.is_deposed(self._clock())

    def manage(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request about the fleet's members, or the boards of the run."""
        if self._council is not None and self._council.bears_liars:
            if RETURN in request or "mute" in request:
                return {"error": NOT_ALONE}
            if request.get(membership.ASK) == "code":
                return {"error": NO_CODE}
        if BOARDS in request:
            answer = answer_boards(self.protocol, request, self._clock())
            if "mute" in request and "error" not in answer:
                self._mute({row["name"] for row in answer["boards"]}, bool(request["mute"]))
            return answer
        if RETURN in request:
            refusal = self.protocol.return_to(int(request[RETURN]), self._clock())
            return {"error": refusal} if refusal else {"said": self.protocol.combiner.returned}
        if PUBLISHED in request and self.releases is not None:
            if request[PUBLISHED] == "withdraw":
                self.releases.withdraw(WITHDRAWN)
            said = self.releases.take_new()
            release = self.releases.status()
            return {"said": said, "release": release and to_json(release)}
        before = self._excluded()
        answer = membership.answer(self._keyring, request, self.enrolment, self._clock())
        for name in sorted(self._excluded() - before):
            assert self.enrolment is not None  # else there are no members
            self.enrolment.tell(name, self._clock())
            self.protocol.exclude(name, self._clock())
        return answer

    def _excluded(self) -> set[str]:
        """The boards of the run whose keys were revoked."""
        return {n.name for n in self.protocol.nodes.values() if self.protocol.is_excluded(n.name)}

    def _mute(self, names: set[str], mute: bool) -> None:
        muted = self.protocol.combiner.muted
        self.protocol.combiner.mute(muted | names if mute else muted - names)
        self._store.keep_muted(self.protocol.combiner.muted)
        self._store.commit()

    def status(self, since: int = 0) -> HostStatus:
        """The state of the run; its history begins after version `since`."""
        tallies, history = self._store.tallies(), list(self._history)
        return replace(
            status(self.protocol, tallies, history, self._clock(), since),
            carried_from=self._store.carried_from or None,
            teaching=None if self.teaching is None else self.teaching.status(),
            security=self._keyring.status(),
            caught=self.caught,
        )

    def may_leave(self) -> bool:
        """Whether the run is over, and nodes that missed its end had time to ask for it.

        A node that missed the last global update learns of it from the next announcement.
        """
        linger_s = self.protocol.plan.announce_s + 2 * NETWORK_TIMERS.catch_up_s
        return self._finished_at is not None and self._clock() >= self._finished_at + linger_s

    def _handle(self, event: HostEvent) -> None:
        now = self._clock()
        self._store.record(event)
        self._keyring.record(event)
        match event:
            case GlobalUpdateMade():
                self._has_closed = True
                if self.teaching is not None and event.evaluation.accuracy is not None:
                    self.teaching.quality = event.evaluation.accuracy
                self._lines += self._changed_trust()
                self._charge(event.version, self._costs.take_seconds(now))
                self._made.append(event.version)
                remark = self.protocol.combiner.aggregation.remark
                if remark and remark != self._remark:
                    self._lines.append((logging.WARNING, remark))
                self._remark = remark
            case Proposed() if self._council is not None:
                self._council.propose(event, now)
            case LiarCaught():
                self._store.keep_muted(self.protocol.combiner.muted)
                if event.name not in self.caught:
                    self._lines.append((logging.ERROR, f"{event.name} has lied: {event.why}"))
                self.caught[event.name] = event.why
            case AddedUp() if self._upstream is not None:
                self._upstream.take(event)
            case RoundOpened():
                self._costs.take_seconds(now)  # the time before belongs to no round
        line = describe(event, self.protocol, now)
        if line is not None:
            self._lines.append((self._level(event), line))

    def _changed_trust(self) -> Iterator[tuple[int, str]]:
        """A line for each node that is trusted little from now on, or no longer."""
        reputations, nodes = self.protocol.combiner.aggregation.reputations, self.protocol.nodes
        low = {address for address, known in reputations.standings.items() if known.low_since}
        for address in low - self._low:
            weight, reason = reputations.weight(address), reputations.reason(address)
            yield (
                logging.WARNING,
                f"{nodes[address].name} counts {weight:.0%} from now on: {reason}",
            )
        for address in self._low - low:
            yield logging.INFO, f"{nodes[address].name} counts in full again"
        self._low = low

    def _commit(self) -> None:
        if self._store.changed:  # refusals alone must not wear the disk
            is_open = self.protocol.phase == OPEN
            seconds = self._costs.take_seconds(self._clock()) if is_open else 0.0
            self._charge(self.protocol.version + 1, seconds)
            self._store.commit()
        for level, line in self._lines:
            _log.log(level, "%s", line)
        self._lines.clear()

    def _charge(self, version: int, seconds: float) -> None:
        self._store.charge(version, self._costs.take_bytes(), seconds)

    def _level(self, event: HostEvent) -> int:
        """The log level of an event; a round gets one line, when it ends."""
        match event:
            case Refused():
                if not self._refusals.is_news(event.peer, event.reason):
                    return logging.DEBUG
                return logging.ERROR if event.reason in ("ahead", OLD_MEMBERS) else logging.WARNING
            case RoundOpened() if self._has_closed:
                return logging.DEBUG
            case _:
                return logging.INFO


def run_host(
    config: HostConfig,
    stop: threading.Event,
    *,
    until_finished: bool = False,
    new_run: bool = False,
    after_end: bool = False,
    insecure: bool = False,
    make_teaching: Callable[[Path], Teaching | None] | None = None,
    manager: ServiceManager | None = None,
) -> None:
    """Host a fleet until `stop` is set, or until the run is over and all nodes had time to see it.

    It begins anew with the model of each release that becomes active. `make_teaching`
    makes what this fleet has to do with others, of the folder of its model, and `manager` hears
    what this fleet does (`host.groups`).

    ConfigError, SecurityError or ModelPackageError before anything is changed; later StoreError,
    TransportError or ControlError. `continue_or_begin` explains `new_run` and `after_end`.

    >>> from tempfile import TemporaryDirectory
    >>> import host
    >>> stop = threading.Event()
    >>> stop.set()  # so that this example ends at once
    >>> with TemporaryDirectory() as folder:
    ...     link = host.LinkConfig(url="mqtt://127.0.0.1:1", fleet="attic")
    ...     config = host.HostConfig(str(Path(folder, "state")), "keyword", link)
    ...     host.run_host(config, stop, insecure=True)
    """
    options: dict[str, Any] = {"insecure": insecure, "make_teaching": make_teaching}
    options["manager"] = manager or ServiceManager()
    host_model = partial(_host_model, config, stop, until_finished, **options)
    while host_model(new_run=new_run, after_end=after_end):
        new_run = after_end = False


def _model_folder(config: HostConfig, releases: Path) -> Path:
    """The model of the release that is active, or the configured one."""
    model, released = package_folder(config.model), active_model(releases)
    names = [load_model_package(str(folder)).name for folder in (model, released) if folder]
    return released if released is not None and len(set(names)) == 1 else model


def _settings(config: HostConfig) -> HostSettings:
    settings = replace(
        settings_of(config.run),
        has_voters=bool(config.agreement.voters),
        bears_liars=bool(config.agreement.voters) and config.agreement.mode == BFT,
    )
    return settings_below(settings) if config.upstream.url else settings


def _publisher(
    config: HostConfig, model: Path, name: str, keyring: Keyring | NoKeyring, longest_s: float
) -> Publisher:
    folder = Path(config.state_dir, FOLDER)
    made = Publisher(folder, model, name, signed_here(keyring), config.releases, longest_s)
    if config.publishes:
        made.open()
    return made


def _keyring(config: HostConfig, state: StateFile, *, insecure: bool) -> Keyring | NoKeyring:
    """The keys of this host, not opened yet; ConfigError."""
    keyring = choose_keyring(state, config.security, config.link, insecure=insecure)
    if config.agreement.voters:
        if isinstance(keyring, NoKeyring):
            raise ConfigError("[agreement] needs keys: start this host without --insecure")
        read_own(config)  # before a run begins
        keyring.has_voters = True
    return keyring


def _host_model(
    config: HostConfig,
    stop: threading.Event,
    until_finished: bool,
    *,
    new_run: bool,
    after_end: bool,
    insecure: bool,
    make_teaching: Callable[[Path], Teaching | None] | None,
    manager: ServiceManager,
) -> bool:
    """Host a fleet with one model; True where a release has replaced it."""
    folder = Path(config.state_dir, FOLDER)
    model = _model_folder(config, folder)
    package = load_model_package(str(model))
    plan = plan_of(config.run, package.dimension, profile_of(config.link))
    settings = _settings(config)
    teaching = make_teaching(model) if make_teaching else None
    state = StateFile(Path(config.state_dir))
    keyring = _keyring(config, state, insecure=insecure)
    store = HostStore(state, settings.chain_max)
    needed = () if new_run else (HOST_TABLES,)  # all nodes would follow another run
    with opened(state, keyring, config.link.fleet, *needed), ExitStack() as stack:
        keyring.security(config.link.aggregator or HOST, package.model_hash(), 0)  # or refuses
        # A release may bring a model that cannot take along what was learned.
        new_run |= model.parent == folder and not can_carry(store.learned(), package)
        upstream = stack.enter_context(opened_upstream(config, package, keyring, stop, manager))
        if upstream is None and config.upstream.url:
            return False  # it was stopped before it had heard of a run
        run = upstream.run if upstream else None
        stored = continue_or_begin(store, plan, package, run, new_run=new_run, after_end=after_end)
        council = None
        if isinstance(keyring, Keyring) and keyring.has_voters:
            voting = Voting(keyring, settings, package.model_hash(), store)
            council = stack.enter_context(voting.seated(config, stored))
        releases = _publisher(config, model, package.name, keyring, float(plan.announce_s))
        path, relay = control_path(config.state_dir, config.control_socket), Relay()
        servers = servers_of(config.page, config.metrics, config.alarms, path, state.folder)
        stack.enter_context(servers)
        stack.enter_context(served_health(config.health, path, config.link.fleet, HOST))
        stack.enter_context(ControlServer(path, relay.ask))
        program = Program(
            config=config,
            model=package,
            settings=settings,
            state=state,
            keyring=keyring,
            store=store,
            releases=releases,
            teaching=teaching,
            council=council,
            upstream=upstream,
            servers=servers,
            machine=Machine(state, config.page, config.link, servers),
            relay=relay,
            manager=manager,
            stop=stop,
            until_finished=until_finished,
        )
        return program.run()


@dataclass(frozen=True, slots=True)
class Program:
    """The host's process while it has one model: what serves the boards, and its owner."""

    config: HostConfig
    model: ModelPackage
    settings: HostSettings
    state: StateFile
    keyring: Keyring | NoKeyring
    store: HostStore
    releases: Publisher
    teaching: Teaching | None
    council: Council | None  # with the other voters
    upstream: Upstream | None  # of an aggregator
    servers: Servers
    machine: Machine
    relay: Relay
    manager: ServiceManager
    stop: threading.Event
    until_finished: bool  # end with the run

    def run(self) -> bool:
        """Serve until the end of process or run; True where a release has replaced the model."""
        is_over = False
        while not (is_over or self.stop.is_set()):
            if self.council is not None:  # boards have seen the counters of the voter that led
                self.store.pass_hop_counters(self.council.voter.term * TERM_COUNTERS)
            hops = hop_keys(self.keyring, self.config.link.aggregator or HOST)
            transport = make_transport(self.config.link, HOST, self.state, hops)
            with closing(transport):
                if self.council is not None and not self.council.can_lead(time.monotonic()):
                    self._follow(self.council, transport)
                    continue
                is_over = self._lead(transport) or self.council is None
        if (self.releases.has_switched or self._is_other_run) and not self.stop.is_set():
            return True
        self.manager.stopping()
        return False

    def _lead(self, transport: StatusTransport) -> bool:
        """Serve the boards; True where that is over, False where another voter leads now."""
        service = self._new_service(transport)
        describe_run = partial(summary, service.protocol)
        if self.council is not None:
            self.council.lead(service.protocol)
        transport.open()
        service.start()
        self.servers.turn(time.monotonic())
        self.manager.ready()
        while not (
            self.stop.is_set()
            or self.releases.has_switched
            or service.is_deposed
            or self._is_other_run
        ):
            if self.until_finished and service.may_leave():
                return True
            service.poll(POLL_S)
            self.servers.turn(time.monotonic())
            self.relay.serve(partial(self._answer, service, transport))
            self._answer_others(service)
            self.manager.turn(describe_run, lambda: [transport.status()])
        if self.council is not None:
            self.council.host = None
        return not service.is_deposed

    def _follow(self, council: Council, transport: StatusTransport) -> None:
        """Follow the leader of the voters, until this host is to lead."""
        self.manager.ready()
        while not (self.stop.is_set() or council.can_lead(time.monotonic())):
            council.turn(time.monotonic())
            self.servers.turn(time.monotonic())
            self.relay.serve(partial(self._answer, None, transport))
            self.manager.turn(lambda: f"follows {council.leader}", list)
            self.stop.wait(FOLLOW_S)

    def _new_service(self, transport: StatusTransport) -> HostService:
        model_hash = self.model.model_hash()
        stored = self.store.load(model_hash)
        assert stored is not None
        # Another model would be another run, of which the other voters know nothing.
        is_shared = self.council is not None or self.upstream is not None
        return HostService(
            stored if self.council is None else as_leader(stored, self.council),
            self.settings,
            model_hash,
            self.store,
            transport,
            keyring=self.keyring,
            pace=pace_of(transport),
            releases=self.releases if self.config.publishes and not is_shared else None,
            teaching=self.teaching,
            council=self.council,
            upstream=self.upstream,
        )

    @property
    def _is_other_run(self) -> bool:
        return self.upstream is not None and self.upstream.has_other_run

    def _answer_others(self, service: HostService) -> None:
        """Answer what owners have asked at voters that follow."""
        while self.council is not None and self.council.requests:
            name, request = self.council.requests.popleft()
            try:
                if self.council.bears_liars and membership.ASK in request:
                    raise SecurityError("who is a member no other voter says")
                self.council.answer(name, service.manage(request))
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001  (of one request, as in `Relay.serve`)
                self.council.answer(name, {"error": f"this request cannot be answered: {error!r}"})

    def _answer(
        self, service: HostService | None, transport: StatusTransport, request: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The answer to a request over the control socket; without `service` this host follows."""
        if BACKUP in request:
            path = self.config.security.path(self.state.folder)
            return answer_backup(self.state, path, request)
        if {membership.ASK, BOARDS, PUBLISHED, RETURN} & set(request):
            if self.state.loss:
                return {"error": self.state.loss}
            if service is None:
                assert self.council is not None
                if self.council.bears_liars and membership.ASK in request:
                    if request[membership.ASK] == "code":
                        return {"error": NO_CODE}
                    return membership.answer(self.keyring, request)
                return self.council.pass_on(request, time.monotonic)
            return service.manage(request)
        shown = service or self._new_service(transport)
        follows = self.council if service is None else None
        found = replace(
            shown.status(int(request.get("since", 0))),
            fleet=self.config.link.fleet,
            model=self.model.name,
            transport=follows.bus.status() if follows else transport.status(),
            release=self.releases.status(),
            agreement=self.council.status(time.monotonic()) if self.council else None,
            upstream=self.upstream.status() if self.upstream else None,
            machine=self.machine.status(),
        )
        return to_json(found)
