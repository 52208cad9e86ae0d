"""A voter: agrees with the others on one value after the other. SPEC.md section 13.

Tendermint's rules (Buchman, Kwon, Milosevic, arXiv 1807.04938), with a leader that stays. The host
gives digests and judges them; each input returns events, `VoterChanged` first. Time and randomness
are arguments.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, Self

import cbor2

from ternmesh.errors import StateError, WireError
from ternmesh.federated.agreement import events, messages
from ternmesh.federated.agreement.ballot import Ballot
from ternmesh.federated.agreement.messages import (
    VOTES,
    Commit,
    Prepare,
    Propose,
    QuorumCertificate,
    Signed,
    Vote,
)
from ternmesh.federated.agreement.start import Place, Start
from ternmesh.federated.agreement.terms import Terms, VoterSettings
from ternmesh.federated.agreement.voters import Voters
from ternmesh.timers import Random, RateLimiter, earliest
from ternmesh.wire.control import read_cbor

HISTORY_MAX = 256  # decisions that a voter can give to others
FORMAT = 1
Kind = type[messages.Message]
Decisions = Iterable[QuorumCertificate]
NOTHING_DECIDED = bytes(messages.DIGEST_SIZE)


class Voter:
    """Joins the ballot of the open version, the term, and the question of the start."""

    def __init__(
        self,
        *,
        voters: Voters,
        index: int,
        settings: VoterSettings,
        sign: messages.Sign,
        verify: messages.Verify,
        rng: Random,
    ) -> None:
        self.voters, self.index, self.settings = voters, index, settings
        self.decided: QuorumCertificate | None = None
        self.lock: QuorumCertificate | None = None  # on the open version
        self.evidence: dict[int, events.Evidence] = {}  # by voter
        self.terms = Terms(voters, settings, rng)
        self.ballot = Ballot(voters, 1)
        needed = 0 if settings.trusts_disk else voters.answers_needed
        self.start_question = Start(voters, index, struct.pack("<d", rng.random()), needed)
        self._sign, self.verify = sign, verify
        self._place: Place = (0, 0)  # the newest in which this voter has signed
        self._floor: Place = (0, 0)  # it votes only above it
        self._sent: dict[Kind, Signed[Any]] = {}  # what holds in this term and version
        self._history: dict[int, QuorumCertificate] = {}
        self._ahead: dict[tuple[Kind, int], Signed[Vote]] = {}  # of the next version
        self._seen: dict[int, Signed[Vote]] = {}  # the newest vote of each voter
        self._judged: dict[bytes, bool | None] = {}  # None while the host judges
        self._claimed = 0  # the newest version that somebody calls decided
        self._answers = RateLimiter(settings.repeat_s / 2, askers_max=2 * voters.count)
        self._repeat_at: float | None = None
        self._is_changed = False
        self._events: list[events.Event] = []

    @classmethod
    def restored(cls, stored: bytes, history: Decisions = (), **parts: Any) -> Self:
        """The voter of an earlier process, whose last `VoterChanged` this is. Raises StateError.

        `history` are decisions that the program has kept, for voters that are behind.
        """
        voter = cls(**parts)
        try:
            head, term, decided, lock, *rest = read_cbor(stored)
            voter.decided = messages.parse_certificate(decided)
            voter.lock = messages.parse_certificate(lock)
            place, floor, sent = rest
            kept = [messages.read_message(data) for data in sent]
            voter._place, voter._floor = (place[0], place[1]), (floor[0], floor[1])
        except (WireError, ValueError, TypeError, IndexError) as error:
            raise StateError(f"the stored state of this voter is damaged: {error}") from error
        if head != (FORMAT, voter.voters.statement_start):
            raise StateError("the stored state is of another run, other voters or another format")
        voter.terms.term = term
        voter._history = {proof.version: proof for proof in history}
        if voter.decided is not None:
            voter._history[voter.decided.version] = voter.decided
        voter.ballot = Ballot(voter.voters, voter.version + 1)
        voter.terms.is_open = term == 0
        for signed in kept:
            voter._keep_own(signed)
            if isinstance(signed.message, messages.NewTerm):
                voter.terms.add(signed.message, 0.0)
        return voter

    @property
    def term(self) -> int:
        return self.terms.term

    @property
    def version(self) -> int:
        """The newest version that is decided; the next one is open."""
        return 0 if self.decided is None else self.decided.version

    @property
    def is_started(self) -> bool:
        return self.start_question.is_over

    @property
    def is_leader(self) -> bool:
        return self.voters.leader(self.term) == self.index

    @property
    def can_propose(self) -> bool:
        """Whether this voter leads, and the next version may be any value of its own."""
        return self._may_propose() and self.terms.proof(self.version + 1) is None

    def start(self, now: float) -> list[events.Event]:
        """Begin; a voter with others asks them first what it has signed."""
        self._repeat_at = now
        return self._finish(now)

    def receive(self, data: bytes, now: float) -> list[events.Event]:
        """Take a message of another voter. Raises WireError, and then nothing has changed."""
        signed = messages.read_message(data)
        message = signed.message
        if message.voter == self.index:
            raise WireError("replay", "this voter has signed this message itself")
        is_vote = isinstance(message, VOTES)
        if is_vote and self._is_known(message):
            return []
        messages.check_message(self.voters, signed, self.verify)
        _RECEIVERS[type(message)](self, signed if is_vote else message, now)
        return self._finish(now)

    def propose(self, term: int, version: int, digest: bytes, now: float) -> list[events.Event]:
        """Propose a value of this host; one that comes too late is passed over (`can_propose`)."""
        if self.can_propose and (term, version) == (self.term, self.version + 1):
            self._judged[digest] = True
            self._propose(digest, None, now)
        return self._finish(now)

    def judged(self, version: int, digest: bytes, is_valid: bool, now: float) -> list[events.Event]:
        """Answer `Judge`; an answer that is too late is passed over."""
        if version == self.version + 1 and digest in self._judged:
            self._judged[digest] = is_valid
        return self._finish(now)

    def tick(self, now: float) -> list[events.Event]:
        """Do what is due."""
        if self.voters.count == 1:
            return self._finish(now)
        self.terms.tick(now)
        deadline = self.terms.deadline
        if deadline is not None and now >= deadline and self.is_started:
            self.terms.deadline = None
            self.terms.suspect(self.index, self.term)
            self._send(messages.Suspect(self.index, self.term))
        if self._repeat_at is not None and now >= self._repeat_at:
            self._repeat(now)
        return self._finish(now)

    def next_tick(self) -> float | None:
        """When `tick` is due next."""
        if self.voters.count == 1:
            return None
        deadline = self.terms.deadline if self.is_started else None
        return earliest(deadline, self._repeat_at, self.terms.opens_at)

    # What others say

    def _is_known(self, vote: Any) -> bool:
        """Whether a vote is here already, or for a version that is over."""
        kept = self.ballot.get(type(vote), vote.voter, vote.term)
        is_here = kept is not None and kept.message == vote
        return vote.version <= self.version or (vote.version == self.version + 1 and is_here)

    def _receive_vote(self, signed: Signed[Vote], now: float) -> None:
        vote = signed.message
        if isinstance(vote, Propose):
            self._check_proposal(vote)
        self._claimed = max(self._claimed, vote.version - 1)
        self.terms.heard(vote.voter, vote.term)
        seen = self._seen.get(vote.voter)
        if seen is None or (seen.message.term, seen.message.version) <= (vote.term, vote.version):
            self._seen[vote.voter] = signed
        if vote.version == self.version + 1:
            self._count(signed, now)
        elif vote.version == self.version + 2:
            self._ahead[type(vote), vote.voter] = signed

    def _check_proposal(self, vote: Propose) -> None:
        if vote.voter != self.voters.leader(vote.term):
            raise WireError("agreement", f"voter {vote.voter} does not lead the term {vote.term}")
        proof = vote.proof
        if proof is not None:
            if (proof.version, proof.digest) != (vote.version, vote.digest):
                raise WireError("agreement", "a proposal has the proof of another one")
            if proof.term >= vote.term:
                raise WireError("agreement", "the proof of a proposal is of no earlier term")
            messages.check_certificate(self.voters, Prepare, proof, self.verify)

    def _count(self, signed: Signed[Vote], now: float) -> None:
        vote = signed.message
        first = self.ballot.add(signed)
        if first is not None:
            if vote.voter not in self.evidence:
                shown = events.Evidence(vote.voter, first.data, signed.data)
                self.evidence[vote.voter] = shown
                self._events.append(shown)
        elif isinstance(vote, Commit):
            decision = self.ballot.certificate(Commit, vote.term)
            if decision is not None:
                self._decide(decision, now)

    def _receive_suspect(self, message: messages.Suspect, _now: float) -> None:
        self.terms.heard(message.voter, message.term)  # it is in the term that it would leave
        self.terms.suspect(message.voter, message.term)

    def _receive_new_term(self, message: messages.NewTerm, now: float) -> None:
        lock = message.lock
        if lock is not None:
            if lock.version != message.decided + 1 or lock.term >= message.term:
                raise WireError("agreement", "the lock of a new term is of another version or term")
            messages.check_certificate(self.voters, Prepare, lock, self.verify)
        self._claimed = max(self._claimed, message.decided)
        self.terms.heard(message.voter, message.term)
        self.terms.add(message, now)

    def _receive_alive(self, message: messages.Alive, now: float) -> None:
        self._claimed = max(self._claimed, message.decided)
        self.terms.heard(message.voter, message.term)
        if (message.term, message.voter) == (self.term, self.voters.leader(self.term)):
            self.terms.is_led = True
            if not (self._is_waiting or self.terms.is_turn_over(self.decided)):
                self.terms.trust(now)

    def _receive_ask(self, message: messages.DecisionWanted, now: float) -> None:
        kept = [version for version in self._history if version >= message.version]
        if kept and self._answers.allow(f"decision {message.voter}", now):
            self._send(messages.Decision(self.index, self._history[min(kept)]))

    def _receive_decision(self, message: messages.Decision, now: float) -> None:
        if message.proof.version > self.version:
            messages.check_certificate(self.voters, Commit, message.proof, self.verify)
            self._decide(message.proof, now)

    def _receive_question(self, message: messages.StartQuestion, now: float) -> None:
        if self._answers.allow(f"question {message.voter}", now):
            seen = self._seen.get(message.voter)
            known = self.decided, self.lock, seen.data if seen is not None else b""
            place = message.voter, message.nonce, *self._place
            self._send(messages.StartAnswer(self.index, *place, *known))

    def _receive_answer(self, message: messages.StartAnswer, _now: float) -> None:
        if not self.is_started:
            self.start_question.add(message, self.verify)
            if message.decided is not None:
                self._claimed = max(self._claimed, message.decided.version)

    # What follows

    def _finish(self, now: float) -> list[events.Event]:
        if self._repeat_at is not None:
            while self._step(now):
                pass
        done, self._events = self._events, []
        if self._is_changed:
            self._is_changed = False
            done.insert(0, events.VoterChanged(self._stored()))
        return done

    def _step(self, now: float) -> bool:
        """Take one step that is possible now, if there is one."""
        if not self.is_started:
            return self._begin(now)
        if self.terms.next_term() > self.term:
            self._enter(self.terms.next_term(), now)
            return True
        prepared = self.ballot.certificate(Prepare, self.term)
        if prepared is not None and (self.lock is None or self.lock.term < self.term):
            self.lock, self._is_changed = prepared, True
            return True
        lock = self.lock
        if lock is not None and lock.term == self.term and self._may_vote(Commit):
            self._keep_and_send(Commit(self.index, self.term, lock.version, lock.digest), now)
            return True
        return self._lead(now) or self._prepare(now)

    def _begin(self, now: float) -> bool:
        if not self.start_question.is_done(self.version):
            return False
        self.start_question.is_over = True
        newest, lock = self.start_question.newest(), self.start_question.lock(self.version + 1)
        if lock is not None and (self.lock is None or self.lock.term < lock.term):
            self.lock, self._is_changed = lock, True
        # An old copy lacks a vote that others have seen, or has another one from before a restore.
        if newest > max(self._place, self._floor) or self._has_voted_otherwise():
            self._floor = max(newest, self._place)
            self._enter(max(self.term, newest[0]), now)
        else:
            self.terms.heard(self.index, self.term)
            self.terms.begin(now)
            self._events.append(events.Led(self.term, self.voters.leader(self.term)))
        return True

    def _has_voted_otherwise(self) -> bool:
        """Whether others show a vote, or prove a value, that excludes a vote on this disk."""
        own = {s.message.digest for kind, s in self._sent.items() if kind in VOTES}
        return bool(own and self.start_question.digests(self._place) - own)

    def _enter(self, term: int, now: float) -> None:
        self._sent.clear()
        # What was refused is judged again: by now a copy or a list of members may be here.
        self._judged = {digest: True for digest, is_valid in self._judged.items() if is_valid}
        self.terms.enter(term, now)
        self.terms.heard(self.index, term)
        lock = self.lock if self.lock is not None and self.lock.term < term else None
        self._events.append(events.Led(term, self.voters.leader(term)))
        self._keep_and_send(messages.NewTerm(self.index, term, self.version, lock), now)

    def _lead(self, now: float) -> bool:
        proof = self.terms.proof(self.version + 1)
        if proof is None or not self._may_propose():
            return False
        self._propose(proof.digest, proof, now)
        return True

    def _may_propose(self) -> bool:
        leads = self.is_leader and self._is_open and self._may_vote(Propose)
        return leads and self.version >= self.terms.claimed()

    @property
    def _is_open(self) -> bool:
        has_decided = self.decided is not None and self.decided.term == self.term
        return has_decided or self.terms.is_open

    def _propose(self, digest: bytes, proof: QuorumCertificate | None, now: float) -> None:
        place = self.term, self.version + 1
        self._keep_and_send(Propose(self.index, *place, digest, self._previous, proof), now)

    def _prepare(self, now: float) -> bool:
        proposal = self.ballot.proposal(self.term)
        if proposal is None or not self._may_vote(Prepare) or not self._is_acceptable(proposal):
            return False
        self.terms.is_led = True
        place, digest = (self.term, self.version + 1), proposal.digest
        if digest not in self._judged:
            self.terms.arm(now)
            self._judged[digest] = None
            self._events.append(events.Judge(*place, digest))
        if not self._judged[digest]:
            return False
        self._keep_and_send(Prepare(self.index, *place, digest), now)
        return True

    def _is_acceptable(self, proposal: Propose) -> bool:
        lock, proof = self.lock, proposal.proof
        is_free = lock is None or lock.digest == proposal.digest
        if lock is not None and proof is not None:
            is_free = is_free or proof.term > lock.term
        return is_free and proposal.previous == self._previous

    @property
    def _previous(self) -> bytes:
        return NOTHING_DECIDED if self.decided is None else self.decided.digest

    def _may_vote(self, kind: type[Vote]) -> bool:
        is_above = (self.term, self.version + 1) > self._floor
        may = self.is_started and is_above and not self.terms.is_turn_over(self.decided)
        return may and kind not in self._sent

    def _decide(self, proof: QuorumCertificate, now: float) -> None:
        self.decided, self.lock = proof, None
        self._history[proof.version] = proof
        while len(self._history) > HISTORY_MAX:
            del self._history[next(iter(self._history))]
        self.ballot = Ballot(self.voters, proof.version + 1)
        for kind in VOTES:
            self._sent.pop(kind, None)
        self._judged.clear()
        self._is_changed = True
        self._events.append(events.Decided(proof.version, proof.digest, proof))
        self.terms.decided(now)
        if self.terms.is_turn_over(self.decided) and self.is_started:
            self.terms.suspect(self.index, self.term)
            self._send(messages.Suspect(self.index, self.term))
        ahead, self._ahead = self._ahead, {}
        for signed in ahead.values():
            if signed.message.version == self.version + 1:
                self._count(signed, now)

    def _repeat(self, now: float) -> None:
        """Say again what may have been lost: nothing, while there is nothing to decide."""
        self._repeat_at = now + self.settings.repeat_s
        if not self.is_started:
            self._send(messages.StartQuestion(self.index, self.start_question.nonce))
        is_suspecting = self.terms.is_suspecting(self.index)
        if is_suspecting:
            self._send(messages.Suspect(self.index, self.term))
        if self.is_started and (self._is_waiting or is_suspecting or not self.terms.is_led):
            for kind, signed in self._sent.items():
                if kind is not messages.NewTerm or not self.terms.is_led:
                    self._broadcast(signed)
        if self._is_waiting or self._claimed > self.version:
            self._claimed = 0
            self._send(messages.DecisionWanted(self.index, self.version + 1))
        if self.is_leader and self._is_open and self._may_vote(Propose):
            self._send(messages.Alive(self.index, self.term, self.version))
            self.terms.is_led = True
            if not self._is_waiting:
                self.terms.trust(now)

    @property
    def _is_waiting(self) -> bool:
        """Whether the leader has to decide something; that it is alive is not enough."""
        has_proposed = self.ballot.proposal(self.term) is not None
        return self.lock is not None or has_proposed

    # What this voter says

    def _keep_and_send(self, message: Vote | messages.NewTerm, now: float) -> None:
        signed = messages.sign_message(self.voters, message, self._sign)
        version = 0 if isinstance(message, messages.NewTerm) else message.version
        self._place = max(self._place, (message.term, version))
        self._is_changed = True
        self._repeat_at = now + self.settings.repeat_s
        self._broadcast(signed)
        self._keep_own(signed)
        if isinstance(message, Commit):
            decision = self.ballot.certificate(Commit, message.term)
            if decision is not None:
                self._decide(decision, now)
        elif isinstance(message, messages.NewTerm):
            self.terms.add(message, now)

    def _keep_own(self, signed: Any) -> None:
        message = signed.message
        self._sent[type(message)] = signed
        if isinstance(message, VOTES):
            self.ballot.add(signed)

    def _send(self, message: messages.Message) -> None:
        self._broadcast(messages.sign_message(self.voters, message, self._sign))

    def _broadcast(self, signed: Signed[Any]) -> None:
        if self.voters.count > 1:
            self._events.append(events.Broadcast(signed.data))

    def _stored(self) -> bytes:
        return cbor2.dumps(
            [
                [FORMAT, self.voters.statement_start],
                self.term,
                messages.plain_certificate(self.decided),
                messages.plain_certificate(self.lock),
                self._place,
                self._floor,
                [signed.data for signed in self._sent.values()],
            ],
            canonical=True,
        )


_RECEIVERS: Final[dict[Kind, Callable[[Voter, Any, float], None]]] = {
    **dict.fromkeys(VOTES, Voter._receive_vote),
    messages.Suspect: Voter._receive_suspect,
    messages.NewTerm: Voter._receive_new_term,
    messages.DecisionWanted: Voter._receive_ask,
    messages.Decision: Voter._receive_decision,
    messages.Alive: Voter._receive_alive,
    messages.StartQuestion: Voter._receive_question,
    messages.StartAnswer: Voter._receive_answer,
}
