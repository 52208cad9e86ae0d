"""Bugs planted into the voters: the simulation must find each within a hundred seeds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ternmesh.federated.agreement import messages, start
from ternmesh.federated.agreement.ballot import Ballot
from ternmesh.federated.agreement.messages import Commit, Prepare, Propose
from ternmesh.federated.agreement.terms import Terms
from ternmesh.federated.agreement.voter import Voter
from ternmesh.federated.agreement.voters import Voters
from tests.sim.planted import Bug, instead, plant
from tests.sim.simagreement import run_seed
from tests.sim.simledger import Violation

pytestmark = pytest.mark.no_cover

SEEDS = 250  # the budget; most are found by the first ten
FIRST = (16, 22, 40, 206, 260)  # they find most of those that need more

Method = Callable[..., Any]


def storing_without(**lost: Any) -> Callable[[Method], Method]:
    """The state is stored with these attributes as they were at the start."""

    def spoil(store: Method) -> Method:
        def method(self: Voter) -> Any:
            kept = {name: getattr(self, name) for name in lost}
            for name, value in lost.items():
                setattr(self, name, value)
            try:
                return store(self)
            finally:
                for name, value in kept.items():
                    setattr(self, name, value)

        return method

    return spoil


def of_any_term(planted: type) -> Callable[[Method], Method]:
    """Votes of this kind count whatever their term."""

    def spoil(get: Method) -> Method:
        def method(self: Ballot, kind: type, index: int, term: int) -> Any:
            votes = self._votes[kind, index]
            if kind is planted and votes:
                return get(self, kind, index, term) or votes[max(votes)]
            return get(self, kind, index, term)

        return method

    return spoil


def free_of_locks(is_acceptable: Method) -> Method:
    def method(self: Voter, proposal: Propose) -> Any:
        kept, self.lock = self.lock, None
        try:
            return is_acceptable(self, proposal)
        finally:
            self.lock = kept

    return method


def unless(kind: type) -> Callable[[Method], Method]:
    """Certificates of this kind are not checked."""
    return lambda check: lambda voters, of, *rest: None if of is kind else check(voters, of, *rest)


def again(count: Method) -> Method:
    def method(self: Voter, signed: Any, now: float) -> None:
        vote = signed.message
        kept = self.ballot.get(type(vote), vote.voter, vote.term)
        if isinstance(vote, Propose) and kept is not None:
            self.ballot._votes[Propose, vote.voter][vote.term] = signed
            self._sent.pop(Prepare, None)
        count(self, signed, now)

    return method


def also_for_the_next(keep: Method) -> Method:
    def method(self: Voter, signed: Any) -> None:
        keep(self, signed)
        if isinstance(signed.message, Commit):
            other = (self.index + 1) % self.voters.count
            copied = replace(signed, message=replace(signed.message, voter=other))
            self.ballot.add(copied)

    return method


def also_for_another(add: Method) -> Method:
    def method(self: Ballot, vote: Any) -> Any:
        message = vote.message
        here = self.get(type(message), message.voter, message.term)
        other = (message.voter + 1) % self._voters.count
        if here is not None and here.message == message and not isinstance(message, Propose):
            add(self, replace(vote, message=replace(message, voter=other)))
        return add(self, vote)

    return method


def always_valid(judged: Method) -> Method:
    def method(self: Voter, version: int, digest: bytes, is_valid: bool, now: float) -> Any:
        return judged(self, version, digest, True, now)

    return method


def of_anybody(self: Ballot, term: int) -> Any:
    votes = [self.get(Propose, index, term) for index in range(self._voters.count)]
    return next((vote.message for vote in votes if vote is not None), None)


def forgetting_the_term(restored: Any) -> Any:
    def method(cls: type[Voter], *rest: Any, **parts: Any) -> Voter:
        restarted: Voter = restored.__func__(cls, *rest, **parts)
        restarted.terms.term = 0
        return restarted

    return classmethod(method)


def by_one(right: Method) -> Method:
    def method(self: Terms) -> int:
        return max(self.term, *self._wanted.values(), *self._reached.values(), 0)

    return method


MUTANTS: dict[str, tuple[Bug, ...]] = {
    "a majority of the others is a quorum": (
        (Voters, "quorum", instead(property(lambda self: (self.count - 1) // 2 + 1))),
    ),
    "votes are not on disk": ((Voter, "_stored", storing_without(_sent={}, _place=(0, 0))),),
    "a leader keeps its turn": ((Terms, "is_turn_over", instead(lambda *_: False)),),
    "the lock is not on disk": ((Voter, "_stored", storing_without(lock=None)),),
    "the term is not on disk": ((Voter, "restored", forgetting_the_term),),
    "commits of different terms count together": ((Ballot, "get", of_any_term(Commit)),),
    "prepares of different terms count together": ((Ballot, "get", of_any_term(Prepare)),),
    "the lock is ignored": ((Voter, "_is_acceptable", free_of_locks),),
    "the proof of a proposal is not checked": ((messages, "check_certificate", unless(Prepare)),),
    "the proof of a decision is not checked": ((messages, "check_certificate", unless(Commit)),),
    "an old disk is not asked for": (
        (Voters, "answers_needed", instead(property(lambda self: 0))),
    ),
    "an old disk asks, and does not listen": (
        (start.Start, "newest", instead(lambda self: (0, 0))),
    ),
    "a second proposal of a term is prepared as well": ((Voter, "_count", again),),
    "an own vote counts twice": ((Voter, "_keep_own", also_for_the_next),),
    "a duplicate counts again": (
        (Voter, "_is_known", instead(lambda self, vote: False)),
        (Ballot, "add", also_for_another),
    ),
    "the judgement is ignored": ((Voter, "judged", always_valid),),
    "anybody may propose": (
        (Voter, "_check_proposal", instead(lambda self, vote: None)),
        (Ballot, "proposal", instead(of_anybody)),
    ),
    "a new leader does not look at locks": ((Terms, "proof", instead(lambda self, version: None)),),
    "signatures are not checked": ((messages, "check_message", instead(lambda *_: None)),),
    "one voter moves the others to a new term": ((Terms, "next_term", by_one),),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_bug_is_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *MUTANTS[mutant])
    with pytest.raises(Violation, match="seed"):
        run_seeds()


def run_seeds() -> None:
    for seed in dict.fromkeys((*range(10), *FIRST, *range(SEEDS))):
        run_seed(seed)
