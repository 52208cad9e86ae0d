"""The term of a voter: when it doubts the leader, when it moves on, and when a leader may begin."""

import math
from dataclasses import dataclass

from ternmesh.federated.agreement.messages import NewTerm, QuorumCertificate
from ternmesh.federated.agreement.voters import Voters, nth_highest
from ternmesh.timers import Random, backoff_s


@dataclass(frozen=True, slots=True)
class VoterSettings:
    """Times of a voter in seconds; the time-out is for a whole decision, judging included."""

    timeout_s: float = 2.0
    timeout_max_s: float = 32.0
    trusts_disk: bool = False  # nobody ever puts back an old copy: a start asks nobody
    idle_s: float = math.inf  # a leader that decides nothing for so long is doubted, alive or not
    turn: int | None = None  # after each so many versions another one leads; None: never for that

    @property
    def repeat_s(self) -> float:
        """After this time without a decision, a voter says again what it has said."""
        return self.timeout_s / 4

    @property
    def grace_s(self) -> float:
        """So long a new leader with a quorum waits for the others."""
        return self.timeout_s / 8


class Terms:
    """Suspects and new terms, the newest of each voter, and the time-out of this voter."""

    def __init__(self, voters: Voters, settings: VoterSettings, rng: Random) -> None:
        self.term = 0
        self.deadline: float | None = None
        self.idle_until = math.inf  # the leader is trusted no longer without a decision
        self.opens_at: float | None = None  # a quorum has entered the term, the rest may follow
        self.is_open = True  # the leader of the term has heard enough to propose
        self.is_led = False  # the leader was heard in this term
        self._failures = 0  # terms since the last decision
        self._voters, self._settings, self._rng = voters, settings, rng
        self._wanted: dict[int, int] = {}  # by voter: the term for which it would leave its own
        self._reached: dict[int, int] = {}  # by voter: the highest term in which it has signed
        self._entered: dict[int, NewTerm] = {}

    def heard(self, voter: int, term: int) -> None:
        """A voter has signed in this term."""
        self._reached[voter] = max(term, self._reached.get(voter, 0))

    def suspect(self, voter: int, term: int) -> None:
        self._wanted[voter] = max(term + 1, self._wanted.get(voter, 0))

    def is_turn_over(self, decided: QuorumCertificate | None) -> bool:
        """Whether another one must lead: a leader that lies could leave boards out for ever."""
        turn = self._settings.turn
        if turn is None or decided is None:
            return False
        return decided.term == self.term and decided.version % turn == 0

    def is_suspecting(self, voter: int) -> bool:
        return self._wanted.get(voter, 0) > self.term

    def add(self, message: NewTerm, now: float) -> None:
        """A voter has entered a term."""
        kept = self._entered.get(message.voter)
        if kept is None or kept.term < message.term:
            self._entered[message.voter] = message
        self._look(now)

    def next_term(self) -> int:
        """The term for which a quorum leaves its own, or in which an honest voter is."""
        leaving = [
            max(self._wanted.get(voter, 0), self._reached.get(voter, 0))
            for voter in range(self._voters.count)
        ]
        by_quorum = nth_highest(leaving, self._voters.quorum)
        return max(self.term, by_quorum, self._voters.backed(self._reached.values()))

    def enter(self, term: int, now: float) -> None:
        self.term, self.opens_at, self.is_open, self.is_led = term, None, False, False
        self._failures += 1
        self.begin(now)
        self._look(now)

    def decided(self, now: float) -> None:
        self._failures = 0
        self._wanted.clear()
        self.begin(now)

    def trust(self, now: float) -> None:
        """The leader is there, and has nothing to propose: so it may go on, but not for ever."""
        if now < self.idle_until:
            self._wanted.clear()
            self.arm(now)

    def begin(self, now: float) -> None:
        """Wait for the leader of the term from now on."""
        self.arm(now)
        grown = min(2**self._failures, self._settings.timeout_max_s / self._settings.timeout_s)
        self.idle_until = now + self._settings.idle_s * grown

    def arm(self, now: float) -> None:
        """Begin the time-out of the leader anew; it doubles with each term without a decision."""
        first_s, longest_s = self._settings.timeout_s, self._settings.timeout_max_s
        self.deadline = now + backoff_s(self._failures, first_s, longest_s, self._rng)

    def tick(self, now: float) -> None:
        """The grace of a leader with a quorum may be over."""
        if self.opens_at is not None and now >= self.opens_at:
            self.opens_at, self.is_open = None, True

    def claimed(self) -> int:
        """The version that the leader must know to be decided before it proposes."""
        return self._voters.backed(message.decided for message in self._present())

    def proof(self, version: int) -> QuorumCertificate | None:
        """The lock of the latest term on this version that a voter has brought into the term."""
        locks = (message.lock for message in self._present())
        fitting = [lock for lock in locks if lock is not None and lock.version == version]
        return max(fitting, key=lambda lock: lock.term, default=None)

    def _present(self) -> list[NewTerm]:
        return [message for message in self._entered.values() if message.term == self.term]

    def _look(self, now: float) -> None:
        present = len(self._present())
        if present == self._voters.count:
            self.opens_at, self.is_open = None, True
        elif present >= self._voters.quorum and not self.is_open and self.opens_at is None:
            self.opens_at = now + self._settings.grace_s
