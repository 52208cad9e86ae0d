"""The loop of every program: the order of its steps, and what a bearer cannot take."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from ternmesh.deliveries import Delivery, DeliveryState
from transports import driver as module
from transports.base import Arrival, Busy, NotConnected
from transports.driver import OTHERS, Driver, PeerTraffic


class Script:
    """An endpoint that writes down what is done to it, and does what the test put in its queues."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.events: deque[str] = deque()
        self.outgoing: list[tuple[str, list[bytes]]] = []
        self.timeout: float | None = None
        self.echo = False

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        self.log.append(("receive", peer, tuple(frames), now))
        if self.echo:
            self.events.append("arrived")
            self.outgoing.append((peer, list(frames)))

    def handle_delivery(self, delivery: Delivery, now: float) -> None:
        self.log.append(("delivery", delivery.peer, delivery.state.name, now))

    def next_timeout(self) -> float | None:
        return self.timeout

    def handle_timeout(self, now: float) -> None:
        self.log.append(("timeout", now))
        self.timeout = None

    def next_event(self) -> str | None:
        return self.events.popleft() if self.events else None

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:
        outgoing, self.outgoing = self.outgoing, []
        return outgoing


class Bearer:
    """A transport whose moods the test sets, that notes sends in the endpoint's log."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.mtu = 10
        self.connected = True
        self.arrivals: deque[Arrival] = deque()
        self.waits: list[float] = []
        self.moods: deque[Exception | None] = deque()

    def open(self) -> None: ...

    def close(self) -> None: ...

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        mood = self.moods.popleft() if self.moods else None
        if mood is not None:
            raise mood
        self.log.append(("send", peer, tuple(frames)))
        return sum(map(len, frames)) + 2 * len(frames)

    def receive(self, timeout_s: float) -> Arrival | None:
        self.waits.append(timeout_s)
        return self.arrivals.popleft() if self.arrivals else None


class Bench:
    def __init__(self, outgoing: Sequence[tuple[str, list[bytes]]] = ()) -> None:
        self.now = 100.0
        self.endpoint = Script()
        self.endpoint.outgoing = list(outgoing)
        self.log = self.endpoint.log
        self.bearer = Bearer(self.log)
        self.driver: Driver[str] = Driver(self.endpoint, self.bearer, lambda: self.now)

    def poll(self, wait_s: float = 1.0) -> bool:
        def handle(event: str) -> None:
            self.log.append(("event", event))
            if event == "first":
                self.endpoint.events.append("second")

        return self.driver.poll(wait_s, handle, lambda: self.log.append("commit"))

    def sends(self) -> list[object]:
        return [entry[1:] for entry in self.log if entry[0] == "send"]


def test_events_are_handled_and_committed_before_anything_is_sent() -> None:
    bench = Bench()
    bench.endpoint.echo = True
    bench.bearer.arrivals.extend([Arrival("ada", (b"1",), 3), Arrival("bob", (b"2",), 3)])
    assert bench.poll()
    assert bench.log == [
        ("receive", "ada", (b"1",), 100.0),
        ("receive", "bob", (b"2",), 100.0),
        ("event", "arrived"),
        ("event", "arrived"),
        "commit",
        ("send", "ada", (b"1",)),
        ("send", "bob", (b"2",)),
    ]


def test_events_that_an_event_causes_are_in_the_same_commit() -> None:
    bench = Bench()
    bench.endpoint.events.append("first")
    bench.poll()
    assert bench.log == [("event", "first"), ("event", "second"), "commit"]


def test_without_events_nothing_is_committed() -> None:
    bench = Bench([("ada", [b"x"])])
    assert bench.poll()
    assert bench.log == [("send", "ada", (b"x",))]
    assert not bench.poll()


def test_it_waits_no_longer_than_the_next_timeout_and_then_fires_it() -> None:
    bench = Bench()
    bench.poll(5.0)
    bench.endpoint.timeout = 102.0
    assert not bench.poll(5.0)
    bench.now = 102.5
    assert bench.poll(5.0)
    assert bench.bearer.waits == [5.0, 2.0, 0.0]
    assert bench.log == [("timeout", 102.5)]


def test_an_endpoint_that_stays_due_does_not_make_it_spin() -> None:
    bench = Bench()
    bench.endpoint.handle_timeout = lambda now: None  # type: ignore[method-assign]
    bench.endpoint.timeout = 99.0
    bench.poll(5.0)
    bench.poll(5.0)
    assert bench.bearer.waits == [0.0, module.BUSY_WAIT_S]


def test_a_flood_is_taken_in_portions_and_nothing_of_it_is_lost() -> None:
    bench = Bench()
    count = module.FRAMES_MAX // 4 + 3
    bench.bearer.arrivals.extend(Arrival("ada", (b"x",) * 4, 12) for _ in range(count))
    bench.poll()
    assert len(bench.log) == module.FRAMES_MAX // 4
    bench.poll()
    assert len(bench.log) == count


def test_frames_that_a_busy_bearer_refused_are_offered_again_in_order_and_soon() -> None:
    bench = Bench([("ada", [b"1"]), ("bob", [b"2"])])
    bench.bearer.moods.extend([None, *[Busy("later")] * 4])
    bench.poll()
    bench.endpoint.outgoing = [("ada", [b"3"])]
    bench.poll(5.0)
    assert bench.bearer.waits[-1] == module.BUSY_WAIT_S
    bench.poll()
    assert bench.sends() == [("ada", (b"1",)), ("bob", (b"2",)), ("ada", (b"3",))]
    assert bench.driver.frames_unsent == 0


def test_offline_nothing_is_asked_for_and_nothing_piles_up() -> None:
    bench = Bench([("ada", [b"1"])])
    bench.bearer.connected = False
    bench.poll()
    assert bench.endpoint.outgoing == [("ada", [b"1"])]
    bench.bearer.connected = True
    bench.bearer.moods.append(NotConnected("gone"))
    bench.endpoint.outgoing.append(("bob", [b"2"]))
    bench.poll()
    assert (bench.sends(), bench.driver.frames_unsent) == ([], 2)
    bench.endpoint.outgoing = [("ada", [b"3"])]
    bench.bearer.moods.extend([Busy("later")] * 2)
    bench.poll()
    bench.bearer.connected = False  # what it held is dropped
    bench.poll()
    bench.bearer.connected = True
    bench.endpoint.outgoing = [("ada", [b"4"])]
    bench.poll()
    assert (bench.sends(), bench.driver.frames_unsent) == ([("ada", (b"4",))], 3)


def test_frames_beyond_the_mtu_are_counted_and_hold_nothing_up() -> None:
    bench = Bench([("ada", [b"x" * 11, b"small"]), ("bob", [b"x" * 12])])
    bench.poll()
    assert (bench.sends(), bench.driver.frames_unsent) == ([("ada", (b"small",))], 2)


def test_bytes_are_counted_for_each_peer_and_strangers_together(monkeypatch) -> None:
    monkeypatch.setattr(module, "PEERS_MAX", 2)
    bench = Bench([("ada", [b"xyz"])])
    names = ("ada", "bob", "cleo", "dan")
    bench.bearer.arrivals.extend(Arrival(name, (b"x", b"y"), 6) for name in names)
    bench.poll()
    assert bench.driver.traffic == {
        "ada": PeerTraffic(frames_in=2, frames_out=1, bytes_in=6, bytes_out=5),
        "bob": PeerTraffic(frames_in=2, bytes_in=6),
        OTHERS: PeerTraffic(frames_in=4, bytes_in=12),
    }


def test_delivery_reports_go_to_the_endpoint_before_its_timers() -> None:
    bench = Bench()
    bench.endpoint.timeout = 99.0
    lost = [Delivery("ada", DeliveryState.LOST)]
    bench.poll()
    assert bench.log == [("timeout", 100.0)], "a plain transport reports nothing"
    reports = iter([lost])
    bench.bearer.deliveries = lambda: next(reports, [])  # type: ignore[attr-defined]
    bench.driver = Driver(bench.endpoint, bench.bearer, lambda: bench.now)
    bench.endpoint.timeout = 99.0
    bench.poll()
    assert bench.log[1:] == [("delivery", "ada", "LOST", 100.0), ("timeout", 100.0)]
