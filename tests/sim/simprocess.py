"""A node or the host as a process: its endpoint, its disk, its timer, and power cuts."""

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from host.enrolment import EnrolmentService
from ternmesh.codec.scale import UNIT
from ternmesh.errors import CodecError
from ternmesh.federated.events import Advanced, BodyAccepted, Joined, WorkReady
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.management import LIMITS, BoardManagement
from ternmesh.federated.news import News
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.rules import AggregationSettings
from ternmesh.federated.state import HostSettings
from ternmesh.security.authenticator import OPEN, SecurityLayer
from ternmesh.security.enrolment import LIST_REQUEST
from ternmesh.security.keyed_sealing import SYNC_OVERHEAD
from ternmesh.security.membership import HOST
from ternmesh.security.notices import is_notice
from ternmesh.wire import control
from ternmesh.wire.control import Receipt
from ternmesh.wire.frame import FRAME_OVERHEAD, HEAD_SIZE, UNASSIGNED, Header, open_seal, seal_open
from ternmesh_service.keyring import Keyring
from tests.sim.simdisks import HostDisk, NodeDisk
from tests.sim.simkeys import RecordingSealing, SealDisk, SimKeyring, header_of
from tests.sim.simledger import MODEL, Ledger, Violation, expect

if TYPE_CHECKING:
    from tests.sim.simfleet import Fleet

DIMENSION = 1500
SYNC_ROOM = SYNC_OVERHEAD - FRAME_OVERHEAD  # a sealed hello is longer than other frames
EVENTS_MAX = 2048  # of an endpoint at once, whatever arrives
NEWS_MIN = 10  # samples
TOLERANCE = 2e-4  # float32 sums of a few dozen terms


# How the frames begin with which a node asks whether its host knows it, and the answer
IN_CLEAR = tuple(
    seal_open(Header(UNASSIGNED, 0), bytes((kind,)))[: HEAD_SIZE + 1]
    for kind in (LIST_REQUEST, control.KIND)
)


def is_in_clear(frame: bytes) -> bool:
    return is_notice(frame) or frame.startswith(IN_CLEAR)


class Process:
    """A node or the host: an endpoint, its disk, and crashes. It dies as a power cut kills."""

    DOWN_S = 8.0  # on average

    def __init__(self, fleet: "Fleet", name: str) -> None:
        self.fleet, self.name = fleet, name
        self.disk: Any  # the one that fits the endpoint
        self.endpoint: Any = None  # NodeProtocol or HostProtocol while it lives
        self.seals, self.security = SealDisk(), OPEN
        self.gone = False
        self.counters: set[int] = set()
        self.incarnation = 0
        self.was_set_back = False  # its disk, to an old copy
        self._timer: float | None = None

    def boot(self) -> None:
        if self.gone or self.endpoint is not None:
            return
        self.incarnation += 1
        self.endpoint = self.load()
        self._timer = None
        self.endpoint.start(self.fleet.now)
        self.settle()

    def load(self) -> NodeProtocol | HostProtocol:
        raise NotImplementedError

    def crash(self) -> None:
        if self.endpoint is None:
            return
        self.endpoint = None
        self.disk.forget()
        self.seals.forget()
        self.fleet.after(self.fleet.rng.expovariate(1 / self.DOWN_S), self.boot)

    def receive(self, peer: str, frames: list[bytes]) -> None:
        if self.endpoint is not None:
            self.endpoint.receive_frames(peer, frames, self.fleet.now)
            self.settle()

    def settle(self) -> None:
        """Events, commit, send: with a power cut between any two of them."""
        events = self.record()
        if events and self._cut():
            return
        self.commit()
        if events and self._cut():
            return
        self.after_commit(events)
        self.send()
        self._arm()

    def record(self) -> list[object]:
        events = []
        while (event := self.endpoint.next_event()) is not None:
            self.disk.record(event)
            self.seals.record(event)
            events.append(event)
        expect(len(events) <= EVENTS_MAX, f"{self.name}: {len(events)} events pile up")
        return events

    def commit(self) -> None:
        self.seals.commit()
        self.disk.commit()

    def new_security(self) -> SecurityLayer:
        """What the next life of this process is given."""
        counter = self.disk.committed.counter
        keys = self.fleet.keys
        self.security = (
            OPEN
            if keys is None
            else keys.security(self.name, counter, self.seals.state, self.seals.hosts)
        )
        return self.security

    def after_commit(self, events: list[object]) -> None:
        pass

    def send(self) -> None:
        for peer, frames in self.frames_to_send():
            self.check_frames(frames)
            self.note_sent(peer, frames)
            self.fleet.carry(self.name, peer, frames)

    def frames_to_send(self) -> list[tuple[str, list[bytes]]]:
        found: list[tuple[str, list[bytes]]] = self.endpoint.frames_to_send(self.fleet.now)
        return found

    def check_frames(self, frames: list[bytes]) -> None:
        for frame in frames:
            if is_in_clear(frame):
                continue  # it has no counter
            header = header_of(frame)
            counter = header.counter
            is_new = counter not in self.counters or self.was_set_back
            expect(is_new, f"{self.name} used counter {counter} again")
            self.counters.add(counter)
            first_contact = 0 if header.address or not header.suite else SYNC_ROOM
            longest = self.fleet.plan.frame_mtu + first_contact
            expect(len(frame) <= longest, "a frame is longer than the mtu")

    def note_sent(self, peer: str, frames: list[bytes]) -> None:
        pass

    def crash_chance(self) -> float:
        raise NotImplementedError

    def _cut(self) -> bool:
        chance = 0.0 if self.fleet.healed else self.crash_chance() / 2
        if self.fleet.rng.random() < chance:
            self.crash()
            return True
        return False

    def _arm(self) -> None:
        due = self.endpoint.next_timeout()
        if due is not None and (self._timer is None or due < self._timer):
            self._timer = due
            incarnation = self.incarnation
            self.fleet.at(due, lambda: self._fire(incarnation, due))

    def _fire(self, incarnation: int, due: float) -> None:
        if self.endpoint is None or incarnation != self.incarnation or self._timer != due:
            return
        self._timer = None
        self.endpoint.handle_timeout(self.fleet.now)
        self.settle()


class OldNode(NodeProtocol):
    """A node of a version that forgets each run with the next one."""

    before = property(lambda self: None, lambda self, _: None)


class NodeProcess(Process):
    """A board: it trains for a while when there is work, then submits."""

    def __init__(self, fleet: "Fleet", name: str) -> None:
        super().__init__(fleet, name)
        self.disk: NodeDisk = NodeDisk(DIMENSION)
        self.news = News(NEWS_MIN)  # in a run without an end
        self.late = 0  # updates of work for an older round
        self._news_on_disk = self.news.stored()

    def load(self) -> NodeProtocol:
        instance = self.fleet.rng.randbytes(8)
        numpy_rng = np.random.default_rng(self.fleet.rng.getrandbits(32))
        samples = 10 + sum(self.name.encode())
        state, security = self.disk.committed, self.new_security()
        stored = self.disk.settings
        is_old = self.fleet.options.old_version and self.name == "node0"
        node = (OldNode if is_old else NodeProtocol)(
            NodeSettings(self.name, MODEL, instance),
            state,
            samples=samples,
            rng=numpy_rng,
            security=security,
            management=BoardManagement(stored.number, stored.settings, LIMITS),
        )
        self.news = News(NEWS_MIN)
        self.news.load(self._news_on_disk)
        return node

    def record(self) -> list[object]:
        run = self.disk.working.run
        events = super().record()
        for event in events:
            if isinstance(event, Joined) and event.run != run:
                run = event.run
                self.news.begin_run()
            elif isinstance(event, Advanced):
                self.news.advanced(event)
        return events

    def begin_again(self) -> None:
        """Train in a round in which this node is silent, if it has news or all train."""
        node = self.endpoint
        if node is not None and node.silent and not node.joining.management.paused:
            self._submit(self.incarnation, node.run, None)

    def crash_chance(self) -> float:
        return self.fleet.options.node_crash

    def note_sent(self, peer: str, frames: list[bytes]) -> None:
        sealing = self.security.sealing
        if isinstance(sealing, RecordingSealing):
            said = (sealing.bodies.pop(frame) for frame in frames if not is_in_clear(frame))
            self.fleet.said.update((self.endpoint.run, self.name, body) for body in said)

    def commit(self) -> None:
        super().commit()
        self._news_on_disk = self.news.stored()

    def after_commit(self, events: list[object]) -> None:
        for event in events:
            if isinstance(event, WorkReady):
                work = (self.incarnation, self.disk.committed.run, event.round)
                slow = self.fleet.rng.random() < self.fleet.options.stragglers
                delay = self.fleet.rng.expovariate(1 / (15.0 if slow else 1.5))
                self.fleet.after(delay, partial(self._submit, *work))
            elif isinstance(event, Joined):
                self.fleet.names[event.run, event.address] = self.name

    def delta(self) -> np.ndarray:
        """What the training of a round has changed."""
        generator = np.random.default_rng(self.fleet.rng.getrandbits(32))
        little = self.fleet.plan.silence_rounds > 0 and self.fleet.rng.random() < 0.6
        size = np.float32(0.0005 if little else 0.01)
        return generator.standard_t(3, DIMENSION).astype(np.float32) * size

    def _submit(self, incarnation: int, run: bytes, number: int | None) -> None:
        """Hand in the work, if neither the process nor its run has ended since it began."""
        if self.endpoint is None or incarnation != self.incarnation or self.endpoint.run != run:
            return
        if self.endpoint.plan.rounds == 0 and not self.endpoint.joining.management.paused:
            number = self.news.round_to_train(self.endpoint, number, self.fleet.now)
            self.settle()
            if number is None or self.endpoint is None:
                return
        if self.fleet.rng.random() < 0.02:
            poisoned = np.full(DIMENSION, np.nan, np.float32)
            try:
                self.endpoint.submit(number, poisoned, self.fleet.now)
            except CodecError:
                pass  # The program trains again.
            else:
                raise Violation(f"{self.name} was allowed to submit NaN")
        delta = self.delta()
        if self.endpoint.joining.management.paused:
            self.fleet.after(5.0, partial(self._submit, incarnation, run, number))
            return
        was_pending = self.endpoint.pending is not None
        self.endpoint.submit(number, delta, self.fleet.now)
        is_update = self.endpoint.pending is not None and not was_pending
        self.late += is_update and number < self.endpoint.version
        self.disk.note_submitted(delta)
        self.settle()


class HostProcess(Process):
    """The host; what it commits is checked against the ledger."""

    aggregation = AggregationSettings()

    def __init__(self, fleet: "Fleet") -> None:
        super().__init__(fleet, HOST)
        self.disk: HostDisk = HostDisk(fleet.rng.randbytes(8), fleet.plan)
        self.ledger = Ledger(fleet.plan)

    def load(self) -> HostProtocol:
        o, d = self.fleet.options, self.disk
        settings = HostSettings(o.min_peers, o.deadline_s, 8, o.chain_max, self.aggregation)
        made = HostProtocol(
            plan=d.plan,
            settings=settings,
            model_hash=MODEL,
            run=d.run,
            state=d.load(),
            security=self.new_security(),
        )
        made.session.management.restore(d.load_boards(self.fleet.now))
        if self.fleet.keys is not None:
            keyring = cast(Keyring, SimKeyring(self.security))
            EnrolmentService(keyring, made.channel).register(made.handlers)
        return made

    def rotate(self) -> None:
        """The operator stops the host, gives it another key, and starts it."""
        assert self.fleet.keys is not None
        self.endpoint = None
        self.disk.forget()
        self.seals.new_keys()
        self.fleet.keys.rotate_host()
        self.fleet.after(self.fleet.rng.uniform(0, 20), self.boot)

    def set_board(self, name: str, settings: dict[str, int]) -> bool:
        """The owner sets all settings of a board; False where the host does not know it now."""
        if self.endpoint is None or self.endpoint.nodes.named(name) is None:
            return False
        self.endpoint.session.set_board(name, settings, self.fleet.now)
        self.settle()
        return True

    def crash_chance(self) -> float:
        return self.fleet.options.host_crash

    def record(self) -> list[object]:
        events = super().record()
        for event in events:
            if isinstance(event, BodyAccepted) and self.fleet.keys is not None:
                said = self.disk.run, self.endpoint.nodes[event.address].name, event.body
                expect(said in self.fleet.said, "a body was taken that nobody said in this run")
        return events

    def new_run(self, *, carry: bool = False) -> None:
        """The operator wipes the run; only the counter stays, or what was learned, too."""
        self.endpoint = None
        self.seals.forget()
        before, counter = self.disk.committed, self.disk.committed.counter
        boards = self.disk.boards
        self.disk = HostDisk(self.fleet.rng.randbytes(8), self.fleet.plan, counter)
        self.disk.boards = self.disk._boards = boards
        self.ledger = Ledger(self.fleet.plan)
        if carry:
            self.disk.carry(before)
            self.ledger.means = (before.model_q24 * UNIT + before.residual).astype(np.float64)
        self.fleet.cut_wires()
        self.boot()

    def copy_disk(self) -> None:
        """The operator makes a backup."""
        self.disk.copy, self.seals.copy = self.disk.committed, self.seals.kept

    def set_back(self) -> None:
        """The disk dies, and the operator brings the backup back. The ledger is of no use then."""
        self.endpoint = None
        self.disk.set_back()
        self.seals.set_back()
        self.was_set_back = True
        self.fleet.after(self.fleet.rng.uniform(0, 20), self.boot)

    def commit(self) -> None:
        made = self.disk.commit()
        self.seals.commit()
        if self.was_set_back:
            return
        names = {node.address: node.name for node in self.disk.committed.nodes}
        for event, bodies in made:
            self.ledger.note_reference(event, bodies, names)
            self._check_mean()

    def _check_mean(self) -> None:
        state = self.disk.committed
        reached = state.model_q24 * UNIT + state.residual
        if not self.disk.plan.rounds:
            return  # the host goes to the mean of its adapters as well
        error = float(np.abs(reached - self.ledger.means).max())
        expect(error < TOLERANCE, f"the reference is {error} away from what was counted")

    def note_sent(self, peer: str, frames: list[bytes]) -> None:
        for frame in frames:
            sealing = self.security.sealing
            if is_in_clear(frame):
                continue
            if isinstance(sealing, RecordingSealing):
                body = sealing.bodies.pop(frame)
            else:
                body = open_seal(frame)[1]
            if body[0] == control.KIND:
                message = control.read_control(body)
                if isinstance(message, Receipt):
                    self.ledger.note_receipt(peer, message)
