import pytest

from transports.base import ALL, HOST, Arrival, FrameTooLarge, Inbox, NotConnected
from transports.loopback import LoopbackHub, LoopbackTransport


@pytest.fixture
def ends() -> tuple[LoopbackHub, LoopbackTransport, LoopbackTransport, LoopbackTransport]:
    hub = LoopbackHub(mtu=10, message_max=24)
    host, ada, bob = hub.host(), hub.node("ada"), hub.node("bob")
    for end in (host, ada, bob):
        end.open()
    return hub, host, ada, bob


def test_nodes_reach_the_host_and_the_host_one_or_all(ends) -> None:
    _, host, ada, bob = ends
    ada.send(HOST, [b"1", b"22"])
    arrival = host.receive(0)
    assert arrival == Arrival("ada", (b"1", b"22"), 7)
    host.send("bob", [b"x"])
    assert (ada.receive(0), bob.receive(0)) == (None, Arrival(HOST, (b"x",), 3))
    host.send(ALL, [b"y"])
    assert ada.receive(0) == bob.receive(0) == Arrival(HOST, (b"y",), 3)
    assert host.receive(0) is None


def test_many_frames_go_in_few_messages_and_are_counted_as_on_mqtt(ends) -> None:
    _, host, ada, _ = ends
    assert ada.send(HOST, [b"x" * 10] * 5) == 60
    sizes = [arrival.wire_bytes for arrival in iter(lambda: host.receive(0), None)]
    assert sizes == [24, 24, 12]


def test_a_frame_beyond_the_mtu_is_refused_with_the_whole_call(ends) -> None:
    _, host, ada, _ = ends
    with pytest.raises(FrameTooLarge, match="11 bytes exceeds the mtu 10"):
        ada.send(HOST, [b"x", b"x" * 11])
    assert host.receive(0) is None


def test_a_hub_that_is_down_and_an_end_that_is_closed_refuse(ends) -> None:
    hub, host, ada, bob = ends
    hub.up = False
    assert not ada.connected
    with pytest.raises(NotConnected):
        ada.send(HOST, [b"x"])
    hub.up = True
    bob.close()
    bob.close()
    assert (ada.connected, bob.connected) == (True, False)
    host.send("bob", [b"lost"])
    bob.open()
    assert bob.receive(0) is None


def test_nobody_sends_where_the_fleet_has_no_path(ends) -> None:
    _, host, ada, _ = ends
    for end, peer in ((ada, "bob"), (ada, ALL), (host, HOST), (host, "a/b"), (host, "")):
        with pytest.raises(ValueError, match=r"node|name"):
            end.send(peer, [b"x"])
    with pytest.raises(ValueError, match="may not be called 'host'"):
        LoopbackHub().node("host")


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
