"""A frame belongs to one run; what was seen of copies is not forgotten."""

from ternmesh.security.session import CloneCount
from tests.ternmesh.security.trust_ends import ALL, DOWN, UP, hail, met

RUN, NEXT = b"run-id-1", b"run-id-2"


def test_a_frame_of_another_run_opens_nothing() -> None:  # R3-10
    host, node = met()
    for end in (host, node):
        end.sealing.bind(RUN)
    up, late = (node.say("host", UP, b"share") for _ in range(2))
    down = host.say("theo", DOWN, b"piece")
    assert len(up) == 14 + 5
    assert host.hear("theo", up) == b"share"
    host.sealing.bind(NEXT)
    assert host.hear("theo", late) == "seal"
    assert host.sealing.due(1e9) == [], "a late frame makes nobody talk"
    assert node.hear("host", down) == b"piece"
    assert node.hear("host", host.say("theo", DOWN, b"piece")) == "seal"
    node.sealing.bind(NEXT)
    assert host.hear("theo", node.say("host", UP, b"share")) == b"share"


def test_who_knows_of_no_run_yet_is_told_of_it() -> None:
    """A hello, a welcome and an announce lead from one run to the next: they belong to none."""
    host, node = met()
    host.sealing.bind(NEXT)
    node.sealing.bind(RUN)
    hail(node, host)
    assert node.hear("host", host.say("all", ALL, b"announce")) == b"announce"


def test_clones_are_counted_over_restarts() -> None:  # R9.4-3
    host, node = met()
    twin = node.sealing
    node.boot()
    hail(node, host)
    for lead in (5, 6):
        assert host.hear("theo", twin.seal("host", UP, node.counter + lead, b"x")) == "clone"
    host.save()
    assert host.disk["clones theo"] == CloneCount("theo", 2)
    assert host.sealing.changes() == (), "a count is told once"
    host.boot()
    assert host.sealing.clones == {"theo": 2}
    hail(node, host)
    host.save()
    assert host.sealing.clones == {"theo": 2}
