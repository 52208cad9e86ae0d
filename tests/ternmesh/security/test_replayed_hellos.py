"""A recorded first word, played again and again, makes nobody talk."""

import pytest

from ternmesh.security.session import EPOCH_MAX
from tests.ternmesh.security.trust_ends import End, met

HELLO = b"\x01hello"


def play(host: End, node: End, frame: bytes) -> tuple[list[bytes | str], int]:
    """The host's verdicts on 50 copies in half a second, and how often both ends spoke of it."""
    verdicts, spoken, now = [], 0, 1e7
    for _ in range(50):
        now += 0.01
        verdicts.append(host.hear("theo", frame))
        for peer, address, body in host.sealing.due(now):
            spoken += 1
            node.hear("host", host.say(peer, address, body))
            for to, at, answer in node.sealing.due(now):
                spoken += 1
                host.hear("theo", node.say(to, at, answer))
    return verdicts, spoken


def restart(host: End, node: End) -> None:
    node.boot()
    assert host.hear("theo", node.say("host", 0, HELLO)) == HELLO


def test_a_short_life_raises_the_floor_once() -> None:
    host, node = met()
    node.boot()
    recorded = node.say("host", 0, HELLO)  # it never arrives
    restart(host, node)
    epoch = node.sealing._sessions["host"].epoch
    verdicts, spoken = play(host, node, recorded)
    assert set(verdicts) == {"replay"}
    assert spoken <= 4
    assert node.sealing._sessions["host"].epoch <= epoch + 2
    assert host.sealing.clones == {}
    restart(host, node)


def test_a_copied_card_is_counted_once_for_a_frame_of_it() -> None:
    host, node = met()
    copy = End("theo", node.identity, node.member_list, 1, node.counter + 5000, 77, dict(node.disk))
    restart(host, node)
    for peer, address, body in host.sealing.due(1e6):
        node.hear("host", host.say(peer, address, body))
    recorded = copy.say("host", 0, HELLO)
    verdicts, spoken = play(host, node, recorded)
    assert (verdicts[0], set(verdicts[1:])) == ("clone", {"replay"})
    assert spoken <= 4
    assert host.sealing.clones == {"theo": 1}


@pytest.mark.parametrize("floor", [EPOCH_MAX, 0xFFFFFFFE])
def test_no_floor_is_above_the_highest_epoch(floor: int) -> None:
    """Who has reached the last epoch has nothing more to say of it."""
    _, node = met()
    pair = node.sealing._sessions["host"]
    pair.begin(floor + 1)
    assert pair.epoch == EPOCH_MAX
    pair.needs_sync = pair.changed = False
    pair.begin(floor + 1)
    assert not pair.needs_sync
    assert not pair.changed
