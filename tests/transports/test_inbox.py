from transports.base import Arrival, Inbox


def test_an_inbox_is_bounded_by_count_and_by_bytes() -> None:
    inbox = Inbox(arrivals_max=10, bytes_max=60)
    small, large = Arrival("a", (b"x",), 3), Arrival("a", (b"x",), 17)
    for arrival in (small, large, small, small):
        inbox.put(arrival)
    assert inbox.dropped == 2
    assert [inbox.get(0), inbox.get(0), inbox.get(0)] == [small, small, None]
    inbox.put(large)
    assert inbox.get(0) == large


def test_a_flood_of_one_peer_leaves_room_and_turns_for_the_others() -> None:
    inbox = Inbox(arrivals_max=16, bytes_max=8 << 10)
    floods = [Arrival("eve", (bytes([i]),), 3) for i in range(10)]
    for flood in floods:
        inbox.put(flood)
    others = [Arrival(name, (b"x",), 3) for name in ("ada", "bob")]
    for other in others:
        inbox.put(other)
    assert inbox.dropped == 6
    taken = [inbox.get(0) for _ in range(7)]
    assert taken == [floods[0], *others, *floods[1:4], None]
