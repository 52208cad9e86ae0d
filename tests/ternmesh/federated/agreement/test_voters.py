import pytest

from ternmesh.config import ConfigError
from ternmesh.federated.agreement.voters import BFT, CRASH, make_voters, nth_highest

RUN = bytes(8)


@pytest.mark.parametrize(
    ("mode", "count", "faults", "quorum", "witnesses", "answers"),
    [
        (CRASH, 1, 0, 1, 1, 0),
        (CRASH, 3, 1, 2, 1, 2),
        (CRASH, 5, 2, 3, 1, 3),
        (BFT, 1, 0, 1, 1, 0),
        (BFT, 4, 1, 3, 2, 2),
        (BFT, 7, 2, 5, 3, 4),
    ],
)
def test_numbers_follow_from_the_mode(
    mode: str, count: int, faults: int, quorum: int, witnesses: int, answers: int
) -> None:  # R13.1-1, R13.1-2
    voters = make_voters(RUN, map(str, range(count)), mode)
    assert (voters.faults, voters.quorum, voters.witnesses) == (faults, quorum, witnesses)
    assert voters.answers_needed == answers
    # Two quorums share a voter that is honest, and a quorum is there without those that fail
    assert 2 * quorum - count >= (1 if mode == CRASH else faults + 1)
    assert count - faults >= quorum


@pytest.mark.parametrize(
    ("mode", "count", "better"),
    [(CRASH, 2, 3), (CRASH, 4, 5), (BFT, 3, 4), (BFT, 5, 4), (BFT, 6, 7)],
)
def test_a_number_that_is_wasted_is_refused_with_one_that_is_not(
    mode: str, count: int, better: int
) -> None:  # R13.1-1
    with pytest.raises(ConfigError, match=f"take {better} "):
        make_voters(RUN, map(str, range(count)), mode)


def test_other_voters_are_refused() -> None:
    with pytest.raises(ConfigError, match="one name"):
        make_voters(RUN, ("ada", "bob", "ada"), CRASH)
    with pytest.raises(ConfigError, match="'raft'"):
        make_voters(RUN, ("ada",), "raft")


def test_the_order_of_leaders_is_of_the_run_and_not_of_the_list() -> None:  # R13.1-3
    names = [f"voter{number}" for number in range(7)]
    voters = make_voters(RUN, names, BFT)
    assert voters == make_voters(RUN, reversed(names), BFT)
    assert voters.names != make_voters(b"another ", names, BFT).names
    assert [voters.leader(term) for term in range(8)] == [0, 1, 2, 3, 4, 5, 6, 0]
    others = make_voters(RUN, names, BFT), make_voters(RUN, names, CRASH)
    assert len({each.statement_start for each in others}) == 2


def test_liars_alone_raise_no_number() -> None:
    voters = make_voters(RUN, map(str, range(7)), BFT)
    assert voters.backed([9, 1 << 30, 1 << 30, 4]) == 9
    assert voters.backed([9, 8]) == 0
    assert nth_highest([3, 1, 2], 3) == 1
