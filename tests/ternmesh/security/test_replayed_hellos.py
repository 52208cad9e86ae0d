"""A recorded first word, played again and again, makes nobody talk."""

from trust_ends import DOWN, End, met

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
    session = host.sealing._sessions["theo"].ephemeral
    verdicts, spoken = play(host, node, recorded)
    assert set(verdicts) == {"replay"}
    assert spoken <= 4
    assert host.sealing._sessions["theo"].ephemeral == session
    assert node.hear("host", host.say("theo", DOWN, b"x")) == b"x"
    assert host.sealing.clones == {}
    restart(host, node)


def test_a_copied_card_is_seen_when_both_boards_have_spoken() -> None:
    host, node = met()
    copy = End("theo", node.identity, node.member_list, 1, node.counter, 77, dict(node.disk))
    now = 0.0
    for board in (node, copy, node, copy):
        for _ in range(3):
            now += 1e6
            host.hear("theo", board.say("host", 0, HELLO))
            for peer, address, body in host.sealing.due(now):
                board.hear("host", host.say(peer, address, body))
            for peer, address, body in board.sealing.due(now):
                host.hear("theo", board.say(peer, address, body))
    assert host.sealing.clones["theo"] >= 2
