"""What a voter says, step by step; tests/sim/test_agreement.py has it under faults."""

import random
from typing import Any

import pytest

from ternmesh.errors import StateError, WireError
from ternmesh.federated.agreement import ballot, events, voter
from ternmesh.federated.agreement.messages import (
    Alive,
    Commit,
    Decision,
    DecisionWanted,
    Message,
    NewTerm,
    Prepare,
    Propose,
    QuorumCertificate,
    StartAnswer,
    StartQuestion,
    Suspect,
    read_message,
    sign_message,
)
from ternmesh.federated.agreement.terms import VoterSettings
from ternmesh.federated.agreement.voter import NOTHING_DECIDED, Voter
from ternmesh.federated.agreement.voters import BFT, CRASH, make_voters
from tests.sim.simagreement import stub_signature, verify

ONE, TWO = bytes(32), bytes([1]) * 32
NAMES = {count: [f"voter{number}" for number in range(count)] for count in (1, 3, 4)}


def parts(count: int = 4, index: int = 1, *, trusts_disk: bool = True) -> dict[str, Any]:
    return dict(
        voters=make_voters(bytes(8), NAMES[count], CRASH if count == 3 else BFT),
        index=index,
        settings=VoterSettings(1.0, 8.0, trusts_disk),
        sign=lambda data: stub_signature(index, data),
        verify=verify,
        rng=random.Random(index),
    )


def started(count: int = 4, index: int = 1) -> Voter:
    made = Voter(**parts(count, index))
    made.start(0.0)
    return made


def signed(to: Voter, message: Message) -> bytes:
    key = message.voter
    return sign_message(to.voters, message, lambda data: stub_signature(key, data)).data


def tell(to: Voter, *messages: Message, now: float = 0.1) -> list[events.Event]:
    done = []
    for message in messages:
        done += to.receive(signed(to, message), now)
    return done


def said(done: list[events.Event]) -> list[Message]:
    return [read_message(each.data).message for each in done if isinstance(each, events.Broadcast)]


def certificate(
    to: Voter, kind: type[Prepare | Commit], term: int, version: int, digest: bytes
) -> QuorumCertificate:
    signers = tuple(range(to.voters.quorum))
    votes = [signed(to, kind(each, term, version, digest))[-64:] for each in signers]
    return QuorumCertificate(term, version, digest, signers, b"".join(votes))


def proposal(digest: bytes = ONE, term: int = 0, proof: QuorumCertificate | None = None) -> Propose:
    return Propose(term % 4, term, 1, digest, NOTHING_DECIDED, proof)


def to_term(made: Voter, term: int) -> list[events.Event]:
    others = [each for each in range(made.voters.count) if each != made.index]
    return tell(made, *(NewTerm(each, term, 0, None) for each in others))


def locked() -> Voter:
    """Voter 1 of four, locked on ONE in term 0."""
    made = started()
    tell(made, proposal(), Prepare(0, 0, 1, ONE), Prepare(2, 0, 1, ONE))
    assert said(made.judged(1, ONE, True, 0.2)) == [Prepare(1, 0, 1, ONE), Commit(1, 0, 1, ONE)]
    return made


def test_a_voter_alone_decides_at_once_and_says_nothing() -> None:  # R13.1-4
    made = Voter(**parts(1, 0))
    assert made.start(0.0) == [events.Led(0, 0)]
    assert made.can_propose
    stored, decided = made.propose(0, 1, ONE, 2.0)
    assert isinstance(stored, events.VoterChanged)
    assert isinstance(decided, events.Decided)
    assert (decided.version, decided.digest, decided.proof.signers) == (1, ONE, (0,))
    assert made.next_tick() is None
    assert made.tick(1e6) == []
    assert made.can_propose


def test_a_version_is_proposed_judged_and_decided() -> None:  # R13.2-4, R13.3-3, R13.3-5
    made = started()
    assert tell(made, proposal()) == [events.Judge(0, 1, ONE)]
    done = made.judged(1, ONE, True, 0.2)
    assert [type(each) for each in done] == [events.VoterChanged, events.Broadcast]
    assert said(done) == [Prepare(1, 0, 1, ONE)]
    assert said(tell(made, Prepare(0, 0, 1, ONE))) == []
    assert said(tell(made, Prepare(2, 0, 1, ONE))) == [Commit(1, 0, 1, ONE)]
    assert tell(made, Commit(0, 0, 1, ONE)) == []
    stored, decided = tell(made, Commit(3, 0, 1, ONE))
    assert isinstance(stored, events.VoterChanged)
    assert isinstance(decided, events.Decided)
    assert decided.proof.signers == (0, 1, 3)
    assert made.version == 1
    assert tell(made, Commit(2, 0, 1, ONE)) == []


def test_a_value_that_is_not_valid_is_not_prepared() -> None:  # R13.3-3
    made = started()
    tell(made, proposal())
    assert made.judged(1, ONE, False, 0.2) == []
    assert made.judged(1, TWO, True, 0.3) == []
    assert made.judged(2, ONE, True, 0.3) == []
    to_term(made, 4)  # by then what it lacked may be here
    assert events.Judge(4, 1, ONE) in tell(made, proposal(term=4))


def test_what_a_voter_may_not_say() -> None:  # R13.2-3, R13.3-2
    made = started()
    with pytest.raises(WireError, match="does not lead"):
        tell(made, Propose(2, 0, 1, ONE, NOTHING_DECIDED, None))
    with pytest.raises(WireError, match="itself"):
        tell(made, Alive(1, 0, 0))
    forged = sign_message(made.voters, proposal(), lambda data: stub_signature(3, data))
    with pytest.raises(WireError, match="not signed by voter 0"):
        made.receive(forged.data, 0.1)
    assert tell(made, Propose(0, 0, 1, ONE, TWO, None)) == []  # after another decision


def test_a_proof_is_checked() -> None:  # R13.2-2, R13.3-2
    made = started()
    good = certificate(made, Prepare, 1, 1, ONE)
    for wrong in (
        proposal(TWO, 4, good),
        proposal(ONE, 0, good),
        proposal(ONE, 4, certificate(made, Commit, 1, 1, ONE)),
    ):
        with pytest.raises(WireError):
            tell(made, wrong)
    with pytest.raises(WireError, match="of another version or term"):
        tell(made, NewTerm(2, 4, 1, good))
    tell(made, NewTerm(2, 4, 0, good), proposal(ONE, 4, good))


def test_a_lock_holds_until_a_later_certificate() -> None:  # R13.3-3, R13.3-4
    made = locked()
    to_term(made, 4)
    assert not [each for each in tell(made, proposal(TWO, 4)) if isinstance(each, events.Judge)]
    to_term(made, 8)
    same = certificate(made, Prepare, 0, 1, TWO)  # of the term of the lock: not later
    done = tell(made, proposal(TWO, 8, same))
    assert not [each for each in done if isinstance(each, events.Judge)]
    to_term(made, 12)
    later = certificate(made, Prepare, 8, 1, TWO)
    assert events.Judge(12, 1, TWO) in tell(made, proposal(TWO, 12, later))
    assert said(made.judged(1, TWO, True, 0.3)) == [Prepare(1, 12, 1, TWO)]


def test_a_lock_goes_into_the_new_term() -> None:  # R13.4-2
    made = locked()
    (entered,) = said(to_term(made, 4))[:1]
    assert isinstance(entered, NewTerm)
    assert (entered.term, entered.decided, entered.lock) == (4, 0, made.lock)


def test_commits_of_different_terms_do_not_count_together() -> None:  # R13.3-5
    made = locked()
    tell(made, Commit(0, 0, 1, ONE), Commit(2, 4, 1, ONE), Commit(3, 4, 1, ONE))
    assert made.version == 0
    tell(made, Commit(3, 0, 1, ONE))
    assert made.version == 1


def test_two_votes_for_one_place_are_evidence_once() -> None:  # R13.1-2, R13.3-6
    made = locked()
    tell(made, Commit(0, 0, 1, TWO))
    shown = tell(made, Commit(0, 0, 1, ONE))
    first, second = signed(made, Commit(0, 0, 1, TWO)), signed(made, Commit(0, 0, 1, ONE))
    assert shown == [events.Evidence(0, first, second)]
    assert tell(made, Commit(0, 0, 1, bytes([7]) * 32)) == []
    tell(made, Commit(2, 0, 1, ONE))
    assert made.version == 0  # the second word does not count
    assert made.evidence == {0: shown[0]}


def test_time_is_out_when_there_is_something_to_decide() -> None:  # R13.4-1
    made = started()
    tell(made, proposal(), now=5.0)
    assert said(made.tick(5.7))[-1:] == [DecisionWanted(1, 1)]
    assert Suspect(1, 0) in said(made.tick(6.3))
    assert made.term == 0
    tell(made, Alive(0, 0, 0), Suspect(2, 0), now=6.4)
    done = tell(made, Suspect(3, 0), now=6.5)
    assert events.Led(1, 1) in done
    assert said(done) == [NewTerm(1, 1, 0, None)]


def test_a_turn_ends_and_no_sign_of_life_prolongs_it() -> None:  # R13.4-5
    made = Voter(**parts() | {"settings": VoterSettings(1.0, 8.0, trusts_disk=True, turn=2)})
    made.start(0.0)
    digests = NOTHING_DECIDED, ONE, TWO
    for version in (1, 2):
        digest = digests[version]
        votes = [kind(v, 0, version, digest) for v in (0, 2, 3) for kind in (Prepare, Commit)]
        tell(made, Propose(0, 0, version, digests[version], digests[version - 1], None))
        made.judged(version, digests[version], True, 0.2)
        done = tell(made, *votes)
        assert made.version == version
        assert (Suspect(1, 0) in said(done)) == (version == 2)
    tell(made, Alive(0, 0, 2))
    later = Propose(0, 0, 3, ONE, TWO, None)
    assert tell(made, later) == []
    assert not said(made.judged(3, ONE, True, 0.3))
    tell(made, Suspect(2, 0), Suspect(3, 0))
    assert made.term == 1
    assert made.version == 2


def test_an_idle_voter_changes_no_term_while_the_leader_is_there() -> None:  # R13.4-1
    made, now = started(), 0.0
    for step in range(400):
        now = 0.25 * step
        assert not [each for each in said(made.tick(now)) if isinstance(each, Suspect)]
        tell(made, Alive(0, 0, 0), now=now)
    assert Suspect(1, 0) in said(made.tick(now + 1.3))


def test_a_leader_is_alive_until_it_proposes() -> None:  # R13.4-4
    made = started(index=0)
    for now in (0.3, 0.6):
        assert said(made.tick(now)) == [Alive(0, 0, 0)]
    made.propose(0, 1, ONE, 0.7)
    assert not [each for each in said(made.tick(2.0)) if isinstance(each, Alive)]


def test_a_new_leader_waits_for_the_others_and_takes_their_lock() -> None:  # R13.4-3
    made = started()
    lock = certificate(made, Prepare, 0, 1, TWO)
    done = tell(made, NewTerm(2, 1, 0, None), NewTerm(3, 1, 0, None), now=1.0)
    assert not made.can_propose
    assert made.next_tick() == pytest.approx(1.0 + made.settings.grace_s)
    done = tell(made, NewTerm(0, 1, 0, lock), now=1.05)
    assert Propose(1, 1, 1, TWO, NOTHING_DECIDED, lock) in said(done)
    assert not made.can_propose
    assert made.propose(1, 1, ONE, 1.1) == []


def test_a_new_leader_with_a_quorum_goes_on_after_a_moment() -> None:  # R13.4-3
    made = started()
    tell(made, NewTerm(2, 1, 0, None), NewTerm(3, 1, 0, None), now=1.0)
    made.tick(1.0 + made.settings.grace_s)
    assert made.can_propose
    assert said(made.propose(1, 1, ONE, 1.3)) == [
        Propose(1, 1, 1, ONE, NOTHING_DECIDED, None),
        Prepare(1, 1, 1, ONE),
    ]
    assert made.propose(1, 1, TWO, 1.3) == []


def test_a_suspect_shows_the_term_of_a_voter() -> None:  # R13.4-2
    made = started(count=3)
    assert events.Led(1, 1) in tell(made, Suspect(2, 1))  # else both would wait for ever
    made = started()
    tell(made, Suspect(2, 1))
    assert made.term == 0  # it may lie
    tell(made, Suspect(3, 1))
    assert made.term == 1


def test_a_liar_moves_nobody() -> None:  # R13.4-2
    made = started()
    tell(made, NewTerm(2, 900, 0, None), Suspect(2, 900), Alive(2, 900, 70))
    assert made.term == 0
    tell(made, NewTerm(3, 5, 0, None))
    assert made.term == 5


def test_a_voter_that_is_behind_asks_and_takes_decisions_one_by_one() -> None:  # R13.6-1, R13.6-2
    made, ahead = started(), started(index=2)
    for version, digest in ((1, ONE), (2, TWO), (3, ONE)):
        tell(ahead, Decision(0, certificate(ahead, Commit, version, version, digest)))
    tell(made, Alive(0, 0, 3))
    asked = made.tick(0.3)
    assert DecisionWanted(1, 1) in said(asked)
    (answer,) = said(ahead.receive(signed(made, DecisionWanted(1, 1)), 0.4))
    assert answer == Decision(2, certificate(made, Commit, 1, 1, ONE))
    assert ahead.receive(signed(made, DecisionWanted(1, 2)), 0.41) == []  # too soon
    tell(made, answer)
    assert made.version == 1
    tell(made, Decision(0, certificate(made, Commit, 9, 7, TWO)))
    assert made.version == 7
    with pytest.raises(WireError):
        tell(made, Decision(0, certificate(made, Prepare, 9, 8, TWO)))


def test_a_start_asks_before_it_says_anything() -> None:  # R13.5-1, R13.5-2
    made = Voter(**parts(trusts_disk=False))
    made.start(0.0)
    (question,) = said(made.tick(0.0))
    assert isinstance(question, StartQuestion)
    tell(made, proposal())
    assert said(made.judged(1, ONE, True, 0.1)) == []
    other = Voter(**parts(index=2, trusts_disk=False))  # not started, and it answers
    other.start(0.0)
    (answer,) = said(other.receive(signed(made, question), 0.2))
    assert answer == StartAnswer(2, 1, question.nonce, 0, 0, None, None, b"")
    tell(made, answer)
    tell(made, StartAnswer(3, 1, b"an older", 0, 0, None, None, b""))
    assert not made.is_started
    assert events.Judge(0, 1, ONE) in tell(
        made, StartAnswer(3, 1, question.nonce, 0, 0, None, None, b"")
    )
    assert made.is_started


def test_an_old_disk_votes_only_above_what_the_others_prove() -> None:  # R13.5-3
    made = Voter(**parts(trusts_disk=False))
    made.start(0.0)
    nonce = made.start_question.nonce
    lock = certificate(made, Prepare, 3, 1, TWO)
    seen = signed(made, Prepare(1, 5, 1, ONE))
    told = StartAnswer(2, 1, nonce, 2, 1, None, lock, seen)
    done = tell(made, told, StartAnswer(3, 1, nonce, 1 << 30, 9, None, None, b""))  # a liar
    assert (made.term, made.lock) == (5, lock)
    (entered,) = said(done)
    assert entered == NewTerm(1, 5, 0, lock)
    tell(made, proposal(TWO, 8, lock), now=0.2)
    to_term(made, 8)
    assert Prepare(1, 8, 1, TWO) in said(made.judged(1, TWO, True, 0.4))
    with pytest.raises(WireError, match="not the asker's"):
        Voter(**parts(trusts_disk=False)).start_question.add(
            StartAnswer(2, 1, nonce, 0, 0, None, None, signed(made, Prepare(3, 5, 1, ONE))), verify
        )


@pytest.mark.parametrize(("seen", "is_old"), [(TWO, True), (ONE, False)])
def test_a_disk_from_before_another_restore_is_old(seen: bytes, *, is_old: bool) -> None:  # R13.5-3
    first = started(index=0)
    stored = first.propose(0, 1, ONE, 0.1)[0]
    assert isinstance(stored, events.VoterChanged)
    made = Voter.restored(stored.data, **parts(index=0, trusts_disk=False))
    made.start(0.0)
    nonce = made.start_question.nonce
    vote = signed(made, Propose(0, 0, 1, seen, NOTHING_DECIDED, None))
    tell(made, *(StartAnswer(each, 0, nonce, 0, 1, None, None, vote) for each in (1, 2)))
    repeated = [each for each in said(made.tick(9.0)) if isinstance(each, Propose)]
    assert made.is_started
    assert (not repeated) == is_old


def test_a_restart_says_the_same_again() -> None:  # R13.2-4, R13.3-1
    made = started()
    tell(made, proposal())
    stored = made.judged(1, ONE, True, 0.2)[0]
    assert isinstance(stored, events.VoterChanged)
    again = Voter.restored(stored.data, **parts())
    again.start(9.0)
    tell(again, proposal(), now=9.0)
    again.judged(1, ONE, True, 9.1)
    repeated = said(again.tick(9.3))
    assert repeated.count(Prepare(1, 0, 1, ONE)) == 1
    copied = Voter.restored(stored.data, **parts(trusts_disk=False))
    copied.start(9.0)
    assert [type(each) for each in said(copied.tick(9.3))] == [StartQuestion]  # it may be old
    for wrong in (b"", stored.data[:-1], stored.data + b"\x00", bytes([0x80])):
        with pytest.raises(StateError, match="damaged"):
            Voter.restored(wrong, **parts())
    with pytest.raises(StateError, match="other voters"):
        Voter.restored(stored.data, **parts(3))


def test_a_flood_takes_no_room() -> None:
    made = started()
    for number in range(200):
        tell(made, Prepare(2, number, 1, ONE), Commit(2, number, 1, TWO), Commit(2, 0, number, TWO))
    assert max(map(len, made.ballot._votes.values())) <= ballot.TERMS_KEPT
    assert len(made._ahead) <= 1
    for version in range(1, voter.HISTORY_MAX + 30):
        tell(made, Decision(0, certificate(made, Commit, 0, version, ONE)))
    assert len(made._history) == voter.HISTORY_MAX
