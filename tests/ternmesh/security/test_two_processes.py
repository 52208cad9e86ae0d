"""Two processes with one identity, a copied card or a thief: one goes on when the other is gone."""

import pytest

from tests.ternmesh.security.trust_ends import DOWN, UP, End, met

HELLO = b"\x01hello"
START_S, STEP_S = 1e7, 2.0


def copy_of(end: End, counter: int) -> End:
    return End(end.name, end.identity, end.member_list, 1, counter, 77, dict(end.disk))


class Air:
    """The ends that are on the air now; frames under a name reach all ends of that name."""

    def __init__(self, host: End, node: End) -> None:
        self.host, self.node = host, node
        self.on_air = [host, node]
        self.now = START_S

    def pass_on(self, sender: End, peer: str, address: int, body: bytes) -> list[bytes | str]:
        frame = sender.say(peer, address, body)
        return [end.hear(sender.name, frame) for end in self.on_air if end.name == peer]

    def live(self, seconds: float) -> None:
        """Syncs pass, as they fall due; a second end hears what the first has said."""
        for _ in range(int(seconds / STEP_S)):
            self.now += STEP_S
            for end in self.on_air:
                for peer, address, body in end.sealing.due(self.now):
                    self.pass_on(end, peer, address, body)

    def talk(self, node: End, host: End) -> bool:
        """Whether an update and its receipt arrive."""
        up = self.pass_on(node, "host", UP, b"update")
        return up == [b"update"] and self.pass_on(host, node.name, DOWN, b"receipt") == [b"receipt"]


@pytest.mark.parametrize("counter", [1, 1 << 20], ids=["low", "ahead"])
def test_a_board_goes_on_when_its_copy_is_gone(counter: int) -> None:  # R9.3-3, R9.3-5
    host, node = met()
    air = Air(host, node)
    copy = copy_of(node, counter)
    air.on_air = [host, copy]  # for a moment only the copy hears the host
    for _ in range(3):
        air.pass_on(copy, "host", 0, HELLO)
        air.live(10)
    assert air.talk(copy, host)
    air.on_air = [host, node]
    for _ in range(5):  # the board knows nothing of it, and sends its updates
        air.pass_on(node, "host", UP, b"update")
        air.pass_on(host, "theo", DOWN, b"receipt")
        air.live(30)
    assert air.talk(node, host)
    assert host.sealing.clones["theo"] >= 1
    assert node.sealing.clones == {"theo": 1}, "both ends see it, and name the board"
    clones = host.sealing.clones["theo"]
    assert all(air.talk(node, host) for _ in range(20))
    assert host.sealing.clones["theo"] == clones


def test_two_that_stay_take_turns_at_longer_and_longer_pauses() -> None:  # R9.3-3
    host, node = met()
    air = Air(host, node)
    copy = copy_of(node, 1 << 20)
    air.on_air = [host, node, copy]
    air.pass_on(copy, "host", 0, HELLO)
    counters = []
    for _ in range(40):
        for board in (node, copy):
            air.pass_on(board, "host", UP, b"update")
        air.pass_on(host, "theo", DOWN, b"receipt")
        air.live(30)
        counters.append(host.counter + node.counter + copy.counter)
    assert counters[39] - counters[29] < 60, "30 of these are its own"
    assert node.sealing.clones == copy.sealing.clones == {"theo": 1}
