"""Voters under faults, in virtual time from one seed: delays, losses, partitions, kills, old copies
of disks, slow and silent voters, floods and liars.

Digests are opaque: a value is good unless its digest begins with `BAD`. Signatures are stubs, so
that a seed takes milliseconds. The sim sees all and checks after every event.
"""

import hashlib
import heapq
import random
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import count
from typing import Any

from ternmesh.errors import WireError
from ternmesh.federated.agreement import events, messages, voter
from ternmesh.federated.agreement.messages import (
    Alive,
    Commit,
    Decision,
    DecisionWanted,
    NewTerm,
    Prepare,
    Propose,
    QuorumCertificate,
    StartAnswer,
    StartQuestion,
    Suspect,
    sign_message,
)
from ternmesh.federated.agreement.terms import VoterSettings
from ternmesh.federated.agreement.voter import Voter
from ternmesh.federated.agreement.voters import BFT, CRASH, Voters, make_voters
from tests.sim.simledger import Violation

BAD = b"\xff"
TIMEOUT_S, LONGEST_S, IDLE_S = 1.0, 4.0, 2.0
PROGRESS_S = 6 * LONGEST_S  # after faults end, until all have decided two versions more
MORE = 2  # versions that are decided after the faults

Place = tuple[type, int, int, int]  # a vote: its kind, voter, term and version


@dataclass(frozen=True, slots=True)
class Options:
    """What goes wrong in a seed, until `heal_s`."""

    count: int
    mode: str
    heal_s: float
    loss: float
    delay_s: float
    duplicates: float
    partitions: int
    kills: int
    kill_in_mid: float  # that a voter dies between two things that it does
    mute: float  # that a voter is no longer heard just when it commits: it decides alone
    garbage: float
    slow: bool  # one voter judges slowly
    dead: int = 0  # voters that stop for good
    liars: int = 0
    old: int = 0  # voters that come back with an old copy of their disk
    trusts_disk: bool = False
    has_ambush: bool = False  # liars wait until one voter alone has decided


def draw_any(seed: int) -> Options:
    """Faults of a seed: no more than the fleet bears, of voters that stop, lie or forget."""
    rng = random.Random(f"options {seed}")
    size, mode = rng.choice([(3, CRASH)] * 9 + [(4, BFT)] * 10 + [(7, BFT)] * 2 + [(1, CRASH)])
    bears = (size - 1) // (2 if mode == CRASH else 3)
    kinds = ["dead", "old", "none"] if mode == CRASH else ["dead", "old", "liar", "liar", "liar"]
    drawn = [rng.choice(kinds) for _ in range(bears)]
    rough = 1.0 if size < 7 else 0.6
    return Options(
        size,
        mode,
        heal_s=rng.uniform(4.0, 14.0) * rough,
        loss=rng.choice((0.0, 0.1, 0.3, 0.5)),
        delay_s=rng.choice((0.02, 0.1, 0.4)),
        duplicates=rng.choice((0.0, 0.2)),
        partitions=rng.randint(0, 3),
        kills=rng.randint(0, 4),
        kill_in_mid=rng.choice((0.0, 0.01, 0.05)),
        mute=rng.choice((0.0, 0.1, 0.3)),
        garbage=rng.choice((0.0, 0.05)),
        slow=rng.random() < 0.3,
        dead=drawn.count("dead"),
        liars=drawn.count("liar"),
        old=drawn.count("old"),
        trusts_disk="dead" in drawn and mode == CRASH and "old" not in drawn,
    )


def draw(seed: int) -> Options:
    """The faults of a seed: half of the seeds have any, the others aim at one weakness."""
    rng, options = random.Random(f"family {seed}"), draw_any(seed)
    three: dict[str, Any] = {"count": 3, "mode": CRASH, "liars": 0, "dead": 0, "old": 0}
    mute = rng.choice((0.3, 0.6))
    calm: dict[str, Any] = {"loss": rng.choice((0.0, 0.1)), "partitions": 0}
    match seed % 6:
        case 3:
            return replace(options, **three | {"old": 1} | calm, trusts_disk=False, slow=True)
        case 4:
            four: dict[str, Any] = {"count": 4, "mode": BFT, "liars": 1, "dead": 0, "old": 0}
            options = replace(options, **four | calm, mute=mute, kills=rng.randint(0, 1))
            return replace(options, has_ambush=True, heal_s=rng.uniform(8.0, 14.0))
        case 5:
            return replace(options, **three, trusts_disk=True, mute=mute)
    return options


@lru_cache(1 << 16)
def stub_signature(key: int, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=bytes([key + 1]), digest_size=64).digest()


def verify(key: int, data: bytes, signature: bytes) -> bool:
    return stub_signature(key, data) == signature


class Process:
    """The program around one honest voter: its disk, its values, its clock."""

    def __init__(self, sim: "Simulation", index: int) -> None:
        self.sim, self.index = sim, index
        self.voter: Voter | None = None
        self.disk: tuple[bytes, tuple[QuorumCertificate, ...]] | None = None
        self.copies: deque[tuple[bytes, tuple[QuorumCertificate, ...]] | None] = deque([None], 8)
        self.is_dead = False
        self.is_old = False  # has had an old copy
        self.highest = 0  # version that was decided here
        self.term = 0  # highest in which it has signed
        self.offered = -1, 0  # the term and version for which it has a value
        self.not_before = 0.0
        self.started_at = 0.0
        self.heard: dict[bytes, float] = {}  # since this start, of voters with old copies
        self._life = 0
        self._armed = -1.0

    def start(self) -> None:
        sim = self.sim
        if self.voter is not None or self.is_dead:
            return
        if sim.now < self.not_before:
            sim.after(self.not_before - sim.now, self.start)
            return
        index = self.index
        parts: dict[str, Any] = dict(
            voters=sim.voters,
            index=index,
            settings=sim.settings,
            sign=lambda data: stub_signature(index, data),
            verify=verify,
            rng=random.Random(sim.rng.random()),
        )
        self._life += 1
        self.started_at, self.heard, self.offered = sim.now, {}, (-1, 0)
        if self.disk is None:
            self.voter = Voter(**parts)
        else:
            self.voter = Voter.restored(self.disk[0], self.disk[1], **parts)
        sim.expect(self.voter.version >= self.highest, "a decided version was lost")
        self.handle(self.voter.start(sim.now))

    def kill(self) -> None:
        self.voter = None

    def give_old_copy(self) -> None:
        self.kill()
        self.is_old = True
        # Nobody puts a copy back while messages of the process before are still on their way.
        self.not_before = self.sim.now + self.sim.options.delay_s
        recent = list(self.copies)[-2:]  # the newest may well be from before the last vote
        self.disk = self.sim.rng.choice(self.sim.rng.choice((recent[:1], self.copies)))
        self.highest, self.term = (self.disk[1][-1].version if self.disk and self.disk[1] else 0), 0
        for place in [p for p in self.sim.signed if p[1] == self.index]:
            if place not in self.sim.certified:
                del self.sim.signed[place]

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do it unless the process has ended by then."""
        life = self._life

        def unless_over() -> None:
            if self.voter is not None and self._life == life:
                action()

        self.sim.after(delay_s, unless_over)

    def receive(self, data: bytes) -> None:
        if self.voter is None:
            return
        if self.sim.forgetful:
            self.heard.setdefault(data, self.sim.now)
        try:
            self.handle(self.voter.receive(data, self.sim.now))
        except WireError as error:
            self.sim.refused[error.reason] = self.sim.refused.get(error.reason, 0) + 1

    def handle(self, done: list[events.Event]) -> None:
        """Store first, with what was decided; then the rest, if nobody pulls the plug."""
        sim, rng = self.sim, self.sim.rng
        assert self.voter is not None
        for event in done:
            if isinstance(event, events.VoterChanged):
                history = self.disk[1] if self.disk else ()
                decided = [each.proof for each in done if isinstance(each, events.Decided)]
                self.disk = event.data, (*history, *decided)
                self.copies.append(self.disk)
            elif isinstance(event, events.Decided):
                sim.check_decision(self, event)
        for event in done:
            if sim.now < sim.options.heal_s and rng.random() < sim.options.kill_in_mid:
                self.kill()
                sim.after(rng.uniform(0.2, 3.0), self.start)
                return
            self._do(event)
        self._offer()
        self._arm()

    def _do(self, event: events.Event) -> None:
        sim, rng = self.sim, self.sim.rng
        if isinstance(event, events.Broadcast):
            kind = sim.check_sent(self, event.data)
            if kind is Commit and rng.random() < sim.options.mute:
                sim.mute(self.index, self.term)
            sim.broadcast(self.index, event.data)
            if self.index in sim.forgetful and rng.random() < (0.4 if kind is Propose else 0.03):
                sim.after(0.0, lambda: sim.forget(self.index))
        elif isinstance(event, events.Judge):
            is_slow = sim.options.slow and self.index == 0 and sim.healed_at is None
            slow = 1.5 if is_slow else 0.1
            answer = event.version, event.digest, event.digest[:1] != BAD
            self.later(rng.uniform(0.0, slow), lambda: self._say("judged", *answer))
        elif isinstance(event, events.Evidence):
            sim.check_evidence(self, event)

    def _say(self, name: str, *what: Any) -> None:
        self.handle(getattr(self.voter, name)(*what, self.sim.now))

    def _offer(self) -> None:
        """Propose a value soon, where that is possible now."""
        place = self.voter.term, self.voter.version + 1
        if self.voter.can_propose and self.sim.wants_more(self) and self.offered != place:
            self.offered, what = place, (*place, self.sim.new_value())
            self.later(self.sim.rng.uniform(0.0, 0.3), lambda: self._say("propose", *what))

    def _arm(self) -> None:
        at = self.voter.next_tick()
        if at is not None and not self.sim.now < self._armed <= at:
            self._armed = max(at, self.sim.now)
            self.later(self._armed - self.sim.now, self._tick)

    def _tick(self) -> None:
        self._armed = -1.0
        self._say("tick")


class Liar:
    """A voter that signs whatever may hurt, other things to other voters, and sees everything."""

    def __init__(self, sim: "Simulation", index: int) -> None:
        self.sim, self.index = sim, index
        self.rng = random.Random(sim.rng.random())
        self.is_cunning = sim.options.has_ambush
        self.is_silent = self.rng.random() < 0.2 and not self.is_cunning
        self.is_idle = self.rng.random() < 0.5
        self.helps = self.rng.choice((0.3, 0.9))  # how often it votes for what it hears
        self.lured: set[tuple[int, int]] = set()
        self.log: list[bytes] = []
        self.proofs: list[QuorumCertificate] = []
        self.voter = None
        self.is_dead = False

    def start(self) -> None:
        if not self.is_silent:
            self.sim.after(self.rng.uniform(0.1, 0.4), self._act)

    def receive(self, data: bytes) -> None:
        rng = self.rng
        try:
            message = messages.read_message(data).message
        except WireError:
            return
        if len(self.log) < 200:
            self.log.append(data)
        for name in ("proof", "lock"):
            proof = getattr(message, name, None)
            if proof is not None and proof not in self.proofs:
                self.proofs.append(proof)
        if self.is_silent or (rng.random() > self.helps and not self.is_cunning):
            return
        if isinstance(message, Propose | Prepare | Commit):
            self._vote(message.term, message.version, message.digest)
        elif isinstance(message, NewTerm | Suspect):
            term = message.term + rng.choice((0, 0, 1))
            self.say(Suspect(self.index, term))
            self.say(NewTerm(self.index, term, rng.choice((0, 5, 1 << 20)), None))
        elif isinstance(message, StartQuestion):
            known = rng.choice((0, 1 << 30)), 1, None, None, b""
            self.say(StartAnswer(self.index, message.voter, message.nonce, *known))
        elif isinstance(message, DecisionWanted):
            rows = rng.choice(self.proofs) if self.proofs else None
            if rows is not None:
                wrong = replace(rows, digest=self.sim.new_value(), version=message.version)
                self.say(Decision(self.index, wrong))

    def _vote(self, term: int, version: int, digest: bytes) -> None:
        prepare, commit = (kind(self.index, term, version, digest) for kind in (Prepare, Commit))
        if not self.is_cunning:
            self.say(prepare)
            self.say(commit)
            return
        self.say(prepare, 1.0)
        first = self.sim.decided.get(version)
        if first is not None and first != digest:
            self.say(commit, 1.0)

    def _tell(self, message: Any, other: int) -> None:
        signed = sign_message(
            self.sim.voters, message, lambda data: stub_signature(self.index, data)
        )
        self.sim.after(0.01, lambda: self.sim.ends[other].receive(signed.data))

    def say(self, message: Any, share: float = 0.7) -> None:
        """Tell some of the others."""
        self.sim.note_proposal(message)
        for other in range(self.sim.voters.count):
            if other not in self.sim.liars and self.rng.random() < share:
                self._tell(message, other)

    def _send(self, data: bytes, share: float) -> None:
        for other in range(self.sim.voters.count):
            if other not in self.sim.liars and self.rng.random() < share:
                self.sim.deliver(self.index, other, data)

    def _act(self) -> None:
        sim, rng = self.sim, self.rng
        self.sim.after(rng.uniform(0.2, 0.6), self._act)
        voters = [each.voter for each in sim.honest() if each.voter is not None]
        if self.is_cunning:  # those that have not decided yet
            mine = [each for each in voters if sim.voters.leader(each.term) == self.index]
            voters = mine or voters
            lowest = min((each.version for each in voters), default=0)
            voters = [each for each in voters if each.version == lowest]
        honest = rng.choice(voters or [None])
        if honest is None:
            return
        term, version = honest.term, honest.version + 1
        previous = honest.decided.digest if honest.decided else voter.NOTHING_DECIDED
        leads = sim.voters.leader(term) == self.index
        deed = rng.random()
        if leads and self.is_idle:  # it is there, and decides nothing
            self.say(Alive(self.index, term, version - 1))
        elif self.is_cunning:
            self._lure(honest, version, previous)
        elif leads and deed < 0.7:
            for _ in range(2):
                self._propose(term, version, previous)
            self.say(Alive(self.index, term, version - 1))
        elif deed < 0.3:  # another's turn
            self._propose(term + rng.choice((0, 0, 1)), version, previous)
        elif deed < 0.5 and self.log:
            self._send(rng.choice(self.log), 0.7)
        elif deed < 0.6 and self.log:  # in the name of another
            self._forge(version, term)
        elif deed < 0.7:
            for ahead in range(6):
                what = term + ahead, version + rng.randint(0, 2), sim.new_value()
                self.say(rng.choice((Prepare, Commit))(self.index, *what))
        elif deed < 0.85:
            self.say(Suspect(self.index, term + rng.choice((0, 0, 1000))))
            lock = rng.choice(self.proofs) if self.proofs else None
            self.say(NewTerm(self.index, term + 1, version - 1, lock))

    def _propose(self, term: int, version: int, previous: bytes) -> None:
        rng = self.rng
        digest = self.sim.new_value(bad=rng.random() < 0.25)
        proof = None
        if term > 0 and rng.random() < 0.3:
            proof = self._false_proof(rng.choice((0, term - 1)), version, digest)
        elif rng.random() < 0.2 and self.proofs:
            proof = rng.choice(self.proofs)
            digest = proof.digest if rng.random() < 0.5 else digest
        self.say(Propose(self.index, term, version, digest, previous, proof), 0.6)
        if rng.random() < 0.7:
            self.say(Prepare(self.index, term, version, digest), 0.8)
            self.say(Commit(self.index, term, version, digest), 0.5)

    def _lure(self, honest: Voter, version: int, previous: bytes) -> None:
        """Once in an own term, propose another value to those that are locked already."""
        term = honest.term
        self.say(Suspect(self.index, term), 1.0)
        self.say(NewTerm(self.index, term, version - 1, None), 1.0)
        leads = self.sim.voters.leader(term) == self.index
        if leads and (term, version) not in self.lured and version in self.sim.decided:
            self.lured.add((term, version))
            digest = self.sim.new_value()
            is_late = honest.lock is not None and honest.lock.term < term - 1
            proof = self._false_proof(term - 1, version, digest) if is_late else None
            self.say(Propose(self.index, term, version, digest, previous, proof), 1.0)
            self._vote(term, version, digest)

    def _false_proof(self, term: int, version: int, digest: bytes) -> QuorumCertificate:
        """A quorum that has signed nothing of the kind."""
        signers = tuple(range(self.sim.voters.quorum))
        votes = [Prepare(each, term, version, digest) for each in signers]
        data = [messages.statement_of(self.sim.voters, vote) for vote in votes]
        rows = b"".join(stub_signature(self.index, each) for each in data)
        return QuorumCertificate(term, version, digest, signers, rows)

    def _forge(self, version: int, term: int) -> None:
        digest = self.sim.new_value()
        for other in range(self.sim.voters.count):
            for kind in (Prepare, Commit):
                vote = kind(other, term, version, digest)
                signed = sign_message(
                    self.sim.voters, vote, lambda data: stub_signature(self.index, data)
                )
                self._send(signed.data, 0.9)


class Simulation:
    """All voters, the network between them, and what must never happen."""

    def __init__(self, seed: int, options: Options) -> None:
        self.seed, self.options = seed, options
        self.rng = random.Random(f"agreement {seed}")
        self.now = 0.0
        self.settings = VoterSettings(
            TIMEOUT_S, LONGEST_S, options.trusts_disk, IDLE_S, turn=2 if seed % 8 == 1 else None
        )
        names = [f"voter{number}" for number in range(options.count)]
        self.terms: defaultdict[int, set[int]] = defaultdict(set)  # of decisions, by version
        self.voters: Voters = make_voters(bytes(8), names, options.mode)
        order = self.rng.sample(range(options.count), options.count)
        if self.rng.random() < 0.7 or options.has_ambush:
            first = self.rng.choice((1, 2))  # who fails first leads an early term
            order.sort(key=lambda index: index != first)
        faulty = order[: options.liars + options.dead + options.old]
        self.liars = set(faulty[: options.liars])
        self.dead = faulty[options.liars : options.liars + options.dead]
        self.forgetful = faulty[options.liars + options.dead :]
        self.ends: list[Process | Liar] = [
            Liar(self, index) if index in self.liars else Process(self, index)
            for index in range(options.count)
        ]
        self.signed: dict[Place, bytes] = {}
        self.certified: dict[Place, bytes] = {}
        self.proposed: set[tuple[int, int, int, bytes]] = set()  # by whom, term, version, digest
        self.decided: dict[int, bytes] = {}
        self.refused: dict[str, int] = {}
        self.groups = [0] * options.count
        self.muted: int | None = None
        self.trace = hashlib.sha256()
        self.sent = 0
        self.healed_at: float | None = None
        self.goal = 1 << 30
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._values = count()

    # The world

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay_s, next(self._numbers), action))

    def new_value(self, *, bad: bool = False) -> bytes:
        digest = hashlib.sha256(f"{self.seed} {next(self._values)}".encode()).digest()
        return (BAD if bad else b"\x00") + digest[1:]

    def honest(self) -> list[Process]:
        return [e for e in self.ends if isinstance(e, Process) and e.voter is not None]

    def wants_more(self, process: Process) -> bool:
        return process.voter is not None and process.voter.version < self.goal

    def broadcast(self, sender: int, data: bytes) -> None:
        self.sent += 1
        for other in range(self.options.count):
            if other != sender:
                self.deliver(sender, other, data)

    def deliver(self, sender: int, receiver: int, data: bytes) -> None:
        options, rng, end = self.options, self.rng, self.ends[receiver]
        if self.healed_at is not None:
            self.after(rng.uniform(0.0, 0.02), lambda: end.receive(data))
            return
        is_apart = sender == self.muted or self.groups[sender] != self.groups[receiver]
        if is_apart or rng.random() < options.loss:
            return
        if rng.random() < options.garbage:
            at = rng.randrange(len(data))
            data = data[:at] + rng.randbytes(1) + data[at + rng.randint(0, 3) :]
        for _ in range(1 + (rng.random() < options.duplicates)):
            self.after(rng.uniform(0.0, options.delay_s), lambda: end.receive(data))

    def run(self) -> "Simulation":
        options, rng = self.options, self.rng
        for end in self.ends:
            self.after(rng.uniform(0.0, 1.0), end.start)
        for _ in range(options.partitions):
            self.after(rng.uniform(0.0, options.heal_s), self._split)
        for _ in range(options.kills):
            self.after(rng.uniform(0.0, options.heal_s), self._kill_one)
        for index in self.dead:
            self.after(rng.uniform(0.0, options.heal_s), partial(self._end, index))
        for index in self.forgetful:
            for _ in range(2):
                at = rng.uniform(1.0, options.heal_s)
                self.after(at, partial(self.forget, index))
        self.after(options.heal_s, self._heal)
        while self._queue and not self._is_over():
            self.now, _, action = heapq.heappop(self._queue)
            action()
        return self

    def _is_over(self) -> bool:
        if self.healed_at is None:
            return False
        alive = [e for e in self.ends if isinstance(e, Process) and not e.is_dead]
        if all(each.highest >= self.goal for each in alive):
            return True
        self.expect(self.now < self.healed_at + PROGRESS_S, "no progress after the faults")
        return False

    def _split(self) -> None:
        if self.healed_at is None:
            self.groups = [self.rng.randint(0, 1) for _ in self.groups]
            self.after(self.rng.uniform(0.5, 4.0), self._join)

    def _join(self) -> None:
        self.groups = [0] * self.options.count

    def mute(self, index: int, term: int) -> None:
        soon = [self.voters.leader(term + 1), self.voters.leader(term + 2)]
        is_moment = soon[0] in self.liars or (soon[0] == index and soon[1] in self.liars)
        if self.healed_at is None and self.muted is None and is_moment >= self.options.has_ambush:
            self.muted = index
            self.after(self.rng.uniform(2.0, 9.0), self._unmute)
            if self.rng.random() < 0.6:
                self.after(self.rng.uniform(0.0, 0.5), self._kill_one)

    def _unmute(self) -> None:
        self.muted = None

    def _kill_one(self) -> None:
        process = self.rng.choice([e for e in self.ends if isinstance(e, Process)])
        process.kill()
        self.after(self.rng.uniform(0.1, 3.0), process.start)

    def _end(self, index: int) -> None:
        process = self.ends[index]
        assert isinstance(process, Process)
        process.kill()
        process.is_dead = True

    def forget(self, index: int) -> None:
        process = self.ends[index]
        assert isinstance(process, Process)
        if self.healed_at is None:
            process.give_old_copy()
            self.after(self.rng.choice((0.0, 0.05, 1.0)), process.start)

    def _heal(self) -> None:
        self._join()
        self.healed_at = self.now
        self.goal = max([0, *self.decided]) + MORE
        for end in self.ends:
            if isinstance(end, Process):
                end.start()

    # What must never happen

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(f"{what} (seed {self.seed}, at {self.now:.3f} s)")

    def check_sent(self, process: Process, data: bytes) -> type:
        self.trace.update(data)
        message: Any = messages.read_message(data).message
        if isinstance(message, Propose | Prepare | Commit | NewTerm):
            self.expect(message.term >= process.term, "a voter went back to a lower term")
            process.term = message.term
        self.note_proposal(message)
        if isinstance(message, Prepare):
            what = message.term, message.version, message.digest
            leader = self.voters.leader(message.term)  # its own may be on disk and not yet sent
            is_led = leader == message.voter or (leader, *what) in self.proposed
            self.expect(is_led, "a voter prepares what the leader has not proposed")
        if isinstance(message, Propose | Prepare | Commit):
            place = type(message), message.voter, message.term, message.version
            digest = self.signed.setdefault(place, message.digest)
            self.expect(digest == message.digest, "a voter has signed two votes of one place")
            is_good = message.digest[:1] != BAD
            self.expect(is_good, "an honest voter has signed a bad value")
        if isinstance(message, Commit) and process.voter is not None:
            lock = process.voter.lock
            if lock is not None:
                self._certify(Prepare, lock)
        return type(message)

    def note_proposal(self, message: Any) -> None:
        if isinstance(message, Propose):
            place = message.voter, message.term, message.version, message.digest
            self.proposed.add(place)

    def check_decision(self, process: Process, event: events.Decided) -> None:
        first = self.decided.setdefault(event.version, event.digest)
        self.trace.update(event.digest)
        self.expect(first == event.digest, f"two digests were decided as version {event.version}")
        self.expect(event.version > process.highest, "a version was decided again")
        self.expect(event.digest[:1] != BAD, "a bad value was decided")
        process.highest = event.version
        term, turn = event.proof.term, self.settings.turn
        self.terms[event.version].add(term)
        if turn and (event.version - 1) % turn == 0:
            had = term in self.terms[event.version - 1]
            self.expect(not had, "a leader has gone on after its turn")
        self._certify(Commit, event.proof)

    def check_evidence(self, process: Process, event: events.Evidence) -> None:
        end = self.ends[event.voter]
        if isinstance(end, Process):
            self.expect(end.is_old, "there is evidence against an honest voter")
            if self.options.mode == CRASH and self.options.count == 3:  # all others have answered
                was_told = process.heard[event.first] <= end.started_at
                self.expect(not was_told, "a voter has signed against what it was told of itself")
        first, second = (
            messages.read_message(data).message for data in (event.first, event.second)
        )
        self.expect(first != second, "evidence shows one message twice")

    def _certify(self, kind: type, proof: QuorumCertificate) -> None:
        for signer in proof.signers:
            if signer not in self.liars:
                place = kind, signer, proof.term, proof.version
                known = self.signed.get(place, proof.digest)
                self.expect(
                    known == proof.digest or self.ends[signer].is_old,
                    "a certificate has a vote that its voter did not sign",
                )
                # With liars a lock of one voter alone binds no old disk: it is one of the f faults
                if kind is Commit or self.options.mode == CRASH:
                    self.certified[place] = proof.digest


def run_seed(seed: int, options: Options | None = None) -> Simulation:
    return Simulation(seed, options or draw(seed)).run()
