"""A fleet of hosts that are voters, with real aggregation and stores, over a bus that loses.

Councils, voters, host protocols and stores are the product's; boards are their updates alone, and
keys are stubs. Voters are killed in the middle of what they do, and all at once.
"""

import hashlib
import heapq
import random
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import cbor2
import numpy as np

from host.council import KEPT, Council
from host.voter_bus import Matter
from host.voting import as_leader
from ternmesh.federated import events
from ternmesh.federated.aggregation import encode_update
from ternmesh.federated.agreement.terms import VoterSettings
from ternmesh.federated.agreement.voter import Voter
from ternmesh.federated.agreement.voters import BFT, CRASH, Voters, make_voters
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.replica import ProposedUpdate, check_copy, reproduce, stored_hash
from ternmesh.federated.state import HostSettings, RunState
from ternmesh.plan import Plan, make_plan
from ternmesh.security.authenticator import OPEN
from ternmesh.security.identity import Role, make_identity
from ternmesh.security.membership import HOST, found_fleet
from ternmesh.wire.global_update import Certificate, read_object, split_certificate
from ternmesh.wire.update import MODEL_SIZE, Manifest, update_hash, write_manifest
from ternmesh_store.database import MEMORY, Database
from ternmesh_store.host_store import HostStore, StoredRun
from ternmesh_store.state_file import SCHEMA
from tests.sim.simagreement import stub_signature, verify
from tests.sim.simledger import Violation

MODEL, RUN = bytes(range(32)), b"run-id-8"
BOARDS, DIMENSION, GOAL = 4, 300, 6
TURN_S, TIMEOUT_S, HEAL_S, PROGRESS_S = 0.1, 1.0, 12.0, 60.0
TURN = 3  # versions of a leader where voters may lie
WAITING_MAX = 4  # proposals that a voter needs at once
OWN = make_identity(HOST, Role.HOST, bytes(range(64)))
FLEET = found_fleet("sim", OWN.public)


class Stub:
    """Signs and checks rows of certificates as voters do, without keys."""

    def __init__(self, index: int) -> None:
        self._index = index

    def certify(self, _run: bytes, content: bytes) -> Certificate:
        return ((self._index, stub_signature(self._index, content)),)

    def valid_rows(
        self, _run: bytes, content: bytes, rows: Iterable[tuple[int, bytes]]
    ) -> dict[int, bytes]:
        return {index: row for index, row in rows if stub_signature(index, content) == row}


class Seat:
    """One voter: its disk outlives its process."""

    def __init__(self, sim: "Simulation", index: int) -> None:
        self.sim, self.index = sim, index
        self.database = Database(MEMORY, SCHEMA)
        self.database.open()
        self.store = HostStore(self.database)
        self.store.begin(RUN, sim.plan, MODEL)
        self.store.keep_base(0)
        self.store.commit()
        self.votes = self.proposal = b""  # files
        self.inbox: list[tuple[Matter, bytes]] = []
        self.council: Council | None = None
        self.host: HostProtocol | None = None
        self.hashes: dict[int, bytes] = {}
        self.is_spoilt = False

    def start(self) -> None:
        if self.council is not None:
            return
        sim, index = self.sim, self.index
        parts: dict[str, Any] = {
            "voters": sim.voters,
            "index": index,
            "settings": VoterSettings(
                TIMEOUT_S,
                4 * TIMEOUT_S,
                trusts_disk=sim.voters.mode == CRASH,
                idle_s=20.0,
                turn=None if sim.voters.mode == CRASH else TURN,
            ),
            "sign": partial(stub_signature, index),
            "verify": verify,
            "rng": random.Random(sim.rng.random()),
        }
        self.inbox.clear()
        self.council = Council(
            voter=Voter.restored(self.votes, **parts) if self.votes else Voter(**parts),
            base=0,
            bus=SimpleNamespace(send=self._send, receive=self._receive),  # type: ignore[arg-type]
            store=self.store,
            model_hash=MODEL,
            keep=partial(setattr, self, "votes"),
            keep_proposal=partial(setattr, self, "proposal"),
            reproduce=self._reproduce,
            check_copy=self._check_copy,
            authenticator=Stub(index),  # type: ignore[arg-type]
            keyring=SimpleNamespace(  # type: ignore[arg-type]
                member_list=SimpleNamespace(number=0, state=FLEET), own=OWN, learn=lambda _: None
            ),
            threshold=sim.voters.witnesses,
            alive_s=TIMEOUT_S / 5,
        )
        self.council.start(sim.now, self.proposal)

    def kill(self) -> None:
        """Lose what no commit has put on disk."""
        if self.council is not None and self.database.changed:
            self.database._execute("ROLLBACK")
        self.council = self.host = None

    def turn(self) -> None:
        council, now = self.council, self.sim.now
        if council is None:
            return
        if self.host is None and council.can_lead(now):
            stored = self.store.load(MODEL)
            assert stored is not None
            self.host = HostProtocol(
                plan=stored.plan,
                settings=self.sim.settings,
                model_hash=MODEL,
                run=stored.run,
                state=as_leader(stored, council).state,
            )
            self.host.combiner.mute(self.store.muted)
            council.lead(self.host)
            self.host.start(now)
        if self.host is not None:
            self._serve(self.host)
        council.turn(now)
        if self.host is not None and council.is_deposed(now):
            self.host = council.host = None
        self.sim.check(self)

    def _serve(self, host: HostProtocol) -> None:
        """What boards give the leader, and what follows."""
        sim = self.sim
        if self.lies and sim.rng.random() < 0.05:
            host.combiner.mute({"board-0", "board-1"})
        for board in range(BOARDS):
            if sim.rng.random() < 0.1 and not sim.is_cut[self.index]:
                self._take(host, board)
        if host.is_collecting and len(host.round.present()) == BOARDS:
            host.end_round(sim.now)
        host.handle_timeout(sim.now)
        self._pump(host)

    def _take(self, host: HostProtocol, board: int) -> None:
        name = f"board-{board}"
        is_new = host.nodes.named(name) is None
        node = host.nodes.take_in(name, 99)
        node.samples = 10 + board
        if is_new:
            host.channel.events.append(events.NodeJoined(node.address, name, node.samples))
        if host.state is RunState.GATHERING and len(host.nodes) == BOARDS:
            host.begin_run(self.sim.now)
        if host.is_collecting:
            for body in self.sim.update(board, host.version):
                if host.take_body(node, body):
                    taken = events.BodyAccepted(node.address, host.version, body)
                    host.channel.events.append(taken)

    def _pump(self, host: HostProtocol) -> None:
        while (event := host.next_event()) is not None:
            if isinstance(event, events.Proposed):
                self.council.propose(event, self.sim.now)
            elif not isinstance(event, events.Refused):
                self.store.record(event)
        host.frames_to_send(self.sim.now)
        if self.store.changed:
            self.store.commit()

    @property
    def lies(self) -> bool:
        return self.index == self.sim.liar

    def _send(self, matter: Matter, body: bytes) -> None:
        if self.lies and matter is Matter.COPY:
            body = false_copy(body, self.sim.rng.choice(("residual", "muted")))
        self.sim.send(self, matter, body)

    def spoil(self) -> None:
        """The disk has another residual than it was given."""
        self.is_spoilt = True
        self.store._values.put_floats("residual", np.ones(DIMENSION, np.float32))
        self.store.commit()

    def deliver(self, matter: Matter, body: bytes) -> None:
        self.inbox.append((matter, body))
        if self.lies and self.council is not None and matter is Matter.COPY_WANTED:
            self.council._give_copy()  # as often as it likes

    def _receive(self) -> list[tuple[Matter, bytes]]:
        found, self.inbox = self.inbox, []
        return found

    def _reproduce(self, item: ProposedUpdate, stored: StoredRun) -> tuple[HostProtocol, bytes]:
        made, known = reproduce(
            item,
            plan=stored.plan,
            settings=self.sim.settings,
            model_hash=MODEL,
            run=stored.run,
            state=stored.state,
            members=0,
            security=OPEN,
        )
        is_doubt_sown = self.lies and not item.state and self.sim.rng.random() < 0.5
        return made, bytes(32) if is_doubt_sown else known

    def _check_copy(self, found: StoredRun) -> None:
        check_copy(
            found.state,
            plan=found.plan,
            settings=self.sim.settings,
            model_hash=MODEL,
            run=found.run,
            security=OPEN,
        )


def false_copy(body: bytes, part: str) -> bytes:
    """A copy of a run with another residual, or with a muted board, and all else as it is."""
    version, members, fleet, tables, *proof = cbor2.loads(body)
    if not tables:
        return body
    found = cbor2.loads(tables)
    false = {"residual": lambda value: bytes(len(value)), "muted": lambda _: b'["board-0"]'}
    found["host_value"] = [
        [key, false[key](value) if key == part else value, *rest]
        for key, value, *rest in found["host_value"]
    ]
    if part == "muted" and "muted" not in [row[0] for row in found["host_value"]]:
        found["host_value"].append(["muted", false[part](b"")])
    return cbor2.dumps([version, members, fleet, cbor2.dumps(found), *proof])


class Simulation:
    """All voters, and what must never happen."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng, self.now = seed, random.Random(f"council {seed}"), 0.0
        size, mode = self.rng.choice(((3, CRASH), (4, BFT)))
        names = [f"voter-{number}" for number in range(size)]
        self.voters: Voters = make_voters(bytes(8), names, mode)
        self.plan: Plan = make_plan(
            DIMENSION, rounds=99, local_steps=1, learning_rate=0.1, frame_mtu=164, up_zeros=0.5
        )
        self.settings = HostSettings(2, 2.0, has_voters=True)
        self.loss = self.rng.choice((0.0, 0.1, 0.3))
        self.delay_s = self.rng.choice((0.05, 0.3))
        self.is_cut = [False] * size
        self.is_healed = False
        self.liar = self.rng.randrange(size) if mode == BFT and self.rng.random() < 0.5 else None
        self.hashes: dict[int, bytes] = {}
        self.states: dict[int, bytes] = {}
        self._updates: dict[tuple[int, int], list[bytes]] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.seats = [Seat(self, index) for index in range(size)]

    def update(self, board: int, version: int) -> list[bytes]:
        """A board's update for a round: the same bytes each time."""
        if (board, version) not in self._updates:
            rng = np.random.default_rng((self.seed, board, version))
            delta = rng.normal(0, 0.01, DIMENSION).astype(np.float32)
            chunks = list(encode_update(delta, MODEL, version, self.plan)[0])
            whole = update_hash(chunks)
            head = Manifest(version, MODEL[:MODEL_SIZE], 10 + board, whole[:4], len(chunks))
            self._updates[board, version] = [write_manifest(head), *chunks]
        return self._updates[board, version]

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay_s, next(self._numbers), action))

    def send(self, sender: Seat, matter: Matter, body: bytes) -> None:
        for other in self.seats:
            lost = self.is_cut[sender.index] != self.is_cut[other.index]
            if other is sender or (not self.is_healed and (lost or self.rng.random() < self.loss)):
                continue
            delay_s = self.rng.uniform(0, 0.02 if self.is_healed else self.delay_s)
            self.after(delay_s, partial(other.deliver, matter, body))

    def run(self) -> "Simulation":
        for seat in self.seats:
            self.after(self.rng.uniform(0, 1), seat.start)
        for _ in range(self.rng.randint(1, 4)):
            self.after(self.rng.uniform(1, HEAL_S), self._kill_one)
        if self.rng.random() < 0.4:
            self.after(self.rng.uniform(3, HEAL_S), self._kill_all)
        for _ in range(self.rng.randint(0, 2)):
            self.after(self.rng.uniform(1, HEAL_S), self._cut)
        self.after(HEAL_S, self._heal)
        goal = None
        while self.now < HEAL_S + PROGRESS_S:
            self.turn()
            if self.is_healed:
                versions = [seat.store.version for seat in self.seats]
                goal = goal or max(max(versions) + 2, GOAL)
                if min(versions) >= goal:
                    return self
        raise self.violation("no progress after the faults")

    def turn(self) -> None:
        self.now += TURN_S
        while self._queue and self._queue[0][0] <= self.now:
            heapq.heappop(self._queue)[2]()
        for seat in self.seats:
            seat.turn()

    def check(self, seat: Seat) -> None:
        """A certified version has one hash, counts each update once, and is not taken back."""
        council = seat.council
        if council and max(len(council._made), len(council._proposals) - KEPT) > WAITING_MAX:
            raise self.violation("proposals pile up")
        version = seat.store.version
        if seat.database.changed or version in seat.hashes or not version:
            return
        content = split_certificate(seat.store.certified(version))[0]
        made = hashlib.sha256(content).digest()
        if self.hashes.setdefault(version, made) != made:
            raise self.violation(f"two global updates of version {version}")
        stored = seat.store.load(MODEL)
        known = self.states.setdefault(version, stored_hash(stored.state))
        if known != stored_hash(stored.state) and not seat.is_spoilt:
            raise self.violation("a voter has another state than the others")
        if seat.store.muted and not seat.lies:
            raise self.violation("one voter has muted boards")
        if version < max(seat.hashes, default=0):
            raise self.violation("a global update was taken back")
        seat.hashes[version] = made
        step: Any = read_object(content, DIMENSION)
        given = {update_hash(self.update(b, version - 1)[1:])[:4] for b in range(BOARDS)}
        digests = [row.digest for row in step.counted]
        if len(set(digests)) < len(digests) or not set(digests) <= given:
            raise self.violation("an update counts twice, or was never given")

    def violation(self, what: str) -> Violation:
        return Violation(f"{what} (seed {self.seed}, at {self.now:.1f} s)")

    def _kill_one(self) -> None:
        seat = self.rng.choice(self.seats)
        seat.kill()
        if self.rng.random() < 0.3 and not any(other.is_spoilt for other in self.seats):
            seat.spoil()
        self.after(self.rng.uniform(0.1, 4.0), seat.start)

    def _kill_all(self) -> None:
        for seat in self.seats:
            seat.kill()
            self.after(self.rng.uniform(0.1, 2.0), seat.start)

    def _cut(self) -> None:
        self.is_cut[self.rng.randrange(len(self.seats))] = True
        self.after(self.rng.uniform(0.5, 4.0), self._join)

    def _join(self) -> None:
        self.is_cut = [False] * len(self.seats)

    def _heal(self) -> None:
        self._join()
        self.is_healed = True
        for seat in self.seats:
            seat.start()
