"""A recorded first word, played again and again, makes nobody talk."""

from unittest.mock import Mock

import pytest

from ternmesh.errors import WireError
from ternmesh.security import key_derivation, peer_session
from ternmesh.security.identity import Identity, PublicIdentity
from ternmesh.security.peer_session import PeerSession
from ternmesh.wire.frame import Header, write_header
from tests.ternmesh.security.trust_ends import DOWN, End, entropy, met, someone

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


def test_a_frame_of_an_ended_process_changes_nothing() -> None:
    host, node = met()
    node.boot()
    recorded = node.say("host", 0, HELLO)  # it never arrives
    restart(host, node)
    assert node.hear("host", host.say("theo", 0, b"\x01welcome")) == b"\x01welcome"
    session = host.sealing.process_of("theo")
    verdicts, spoken = play(host, node, recorded)
    assert set(verdicts) == {"replay"}
    assert spoken <= 4
    assert host.sealing.process_of("theo") == session
    assert node.hear("host", host.say("theo", DOWN, b"x")) == b"x"
    assert host.sealing.clones == {}
    restart(host, node)


def forged(node: End, counter: int) -> bytes:
    """A frame of a process that never was: its first tag is right, and its second is not."""
    other = PeerSession(
        node.identity, node.member_list.host, node.member_list.fleet, 1, entropy(counter)[:32], None
    )
    head = write_header(Header(0, counter, 1, 0))
    return other.seal_sync(head, 0, counter, HELLO, 0) + bytes(40)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_flood_of_new_keys_costs_few_key_exchanges(monkeypatch, is_new: bool) -> None:
    # R9.3-15
    host, node = met()
    node.counter = 1000
    assert host.hear("theo", node.say("host", 0, HELLO)) == HELLO
    host.sealing.due(1e7)
    derive = Mock(side_effect=key_derivation.session_secrets)
    monkeypatch.setattr(peer_session, "session_secrets", derive)
    for at in range(100):
        frame = forged(node, 500 + at + 10_000 * is_new)
        assert host.hear("theo", frame) == "sync"
    assert derive.call_count == peer_session.DERIVED_MAX
    assert node.hear("host", host.say("theo", DOWN, b"x")) == b"x"
    node.boot()  # what was sent before does not hold it up; new forged frames do for a second
    assert (host.hear("theo", node.say("host", 0, HELLO)) == HELLO) is not is_new
    for body in host.sealing.due(1e7 + 1):
        node.hear("host", host.say(*body))
    assert host.hear("theo", node.say("host", 0, HELLO)) == HELLO


class Thief(Identity):
    """The host's public keys, and the secret of the two identities: all that the board has."""

    stolen: Identity  # the board's

    def shared(self, other: PublicIdentity) -> bytes:
        return self.stolen.shared(self.public)


def test_who_has_copied_a_boards_identity_does_not_pass_for_the_host() -> None:
    host, node = met()
    identity = Thief(host.identity.public, someone("thief").seeds)
    object.__setattr__(identity, "stolen", node.identity)
    thief = PeerSession(
        identity, node.identity.public, host.member_list.fleet, 1, entropy("thief")[:32], None
    )
    before = node.sealing.process_of("host")
    head = bytes((1 << 5 | 1 << 2, 0, 0, 0, 0, 9))
    assert node.hear("host", thief.seal_sync(head, 0, 9 << 16, b"\x01welcome", 0)) == "sync"
    [(_, _, question)] = node.sealing.due(1e9)
    told = node.say("host", 0, question)
    with pytest.raises(WireError):
        thief.open_sync(told[:6], 0, 0, told[6:], 0, is_hub=False)
    thief._current = thief._session_of(told[6:38])
    assert node.hear("host", thief.seal_sync(head, 0, 9 << 16, b"\x01welcome", 0)) == "sync"
    assert node.sealing.process_of("host") == before
    assert node.hear("host", host.say("theo", DOWN, b"x")) == b"x"
    assert node.sealing.clones == {}
