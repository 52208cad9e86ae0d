from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from tests import faulty as module
from tests.faulty import FaultModel, Faults, FaultyTransport
from transports.base import HOST, Arrival, Busy, FrameTooLarge, NotConnected
from transports.driver import BUSY_WAIT_S, Driver
from transports.loopback import LoopbackHub


class Below:
    """A transport whose moods the test sets; waiting moves the test's clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.mtu = 50
        self.connected = True
        self.closed = 0
        self.sent: list[tuple[float, str, tuple[bytes, ...]]] = []
        self.moods: deque[Exception] = deque()
        self.arrivals: deque[tuple[float, Arrival]] = deque()
        self.waits: list[float] = []

    def clock(self) -> float:
        return self.now

    def open(self) -> None: ...

    def close(self) -> None:
        self.closed += 1

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        if self.moods:
            raise self.moods.popleft()
        self.sent.append((self.now, peer, tuple(frames)))
        return 0

    def receive(self, timeout_s: float) -> Arrival | None:
        self.waits.append(timeout_s)
        if self.arrivals and self.arrivals[0][0] <= self.now + timeout_s:
            at, arrival = self.arrivals.popleft()
            self.now = max(self.now, at)
            return arrival
        self.now += timeout_s
        return None


def around(below: Below, seed: int = 1, **faults) -> FaultyTransport:
    return FaultyTransport(below, Faults(**faults), np.random.default_rng(seed), below.clock)


def numbered(count: int) -> list[bytes]:
    return [number.to_bytes(4, "big") for number in range(count)]


def test_without_faults_it_is_the_transport_below() -> None:
    below = Below()
    end = around(below)
    assert end.send("ada", [b"1", b"22"]) == 7
    assert end.send("ada", []) == 0
    assert below.sent == [(100.0, "ada", (b"1", b"22"))]
    below.arrivals.append((100.5, Arrival("ada", (b"x", b"yy"), 9)))
    assert end.receive(2.0) == Arrival("ada", (b"x", b"yy"), 9)
    assert end.receive(2.0) is None
    assert below.now == 102.5
    assert (end.mtu, end.connected) == (50, True)


def test_drops_hit_frames_and_not_whole_messages() -> None:
    below = Below()
    end = around(below, drop=0.5)
    frames = numbered(60)
    assert end.send("ada", frames) == 60 * 6
    [(_, _, arrived)] = below.sent
    assert 15 < len(arrived) < 45
    assert set(arrived) < set(frames)
    below.arrivals.append((100.0, Arrival("ada", tuple(frames), 60 * 6)))
    arrival = end.receive(0.0)
    assert arrival is not None
    assert 15 < len(arrival.frames) < 45
    assert arrival.wire_bytes == 6 * len(arrival.frames)


@pytest.mark.parametrize(
    ("direction", "out", "back"), [("send", 0, 1), ("receive", 1, 0), ("both", 0, 0)]
)
def test_the_direction_is_chosen(direction: str, out: int, back: int) -> None:
    below = Below()
    end = around(below, drop=1.0, direction=direction)
    end.send("ada", [b"x"])
    below.arrivals.append((100.0, Arrival("ada", (b"y",), 3)))
    assert (len(below.sent), end.receive(0.0) is not None) == (out, bool(back))


def test_delayed_frames_leave_and_arrive_when_they_are_due() -> None:
    below = Below()
    end = around(below, delay_s=0.5)
    end.send("ada", [b"1"])
    assert below.sent == []
    below.arrivals.append((100.2, Arrival("bob", (b"2",), 3)))
    assert end.receive(5.0) == Arrival("bob", (b"2",), 3)
    assert below.now == pytest.approx(100.7)
    assert below.sent == [(100.5, "ada", (b"1",))]
    assert below.waits[0] == pytest.approx(0.5)


def test_a_wait_ends_in_time_whatever_is_dropped() -> None:
    below = Below()
    end = around(below, drop=1.0)
    below.arrivals.extend((100.1 + 0.1 * n, Arrival("ada", (b"x",), 3)) for n in range(5))
    assert end.receive(1.0) is None
    assert below.now == pytest.approx(101.0)
    assert not below.arrivals


def test_a_clock_that_stands_still_does_not_hang_it() -> None:
    below = Below()
    end = FaultyTransport(below, Faults(delay_s=1.0), np.random.default_rng(1), lambda: 7.0)
    end.send("ada", [b"x"])
    assert end.receive(3.0) is None


def test_frames_for_one_peer_go_together_and_in_the_order_they_are_due() -> None:
    below = Below()
    end = around(below, delay_s=0.5)
    for peer, frame in (("ada", b"1"), ("ada", b"2"), ("bob", b"3"), ("ada", b"4")):
        end.send(peer, [frame])
    end.receive(1.0)
    assert [sent[1:] for sent in below.sent] == [
        ("ada", (b"1", b"2")), ("bob", (b"3",)), ("ada", (b"4",)),
    ]  # fmt: skip
    end.send("ada", numbered(150))
    end.receive(1.0)
    assert [len(frames) for _, _, frames in below.sent[3:]] == [64, 64, 22]


def test_what_a_busy_transport_refuses_stays_and_keeps_its_order() -> None:
    below = Below()
    end = around(below)
    below.moods.extend([Busy("later")] * 3)
    end.send("ada", [b"1", b"2"])
    end.send("bob", [b"3"])
    assert below.sent == []
    assert end.receive(1.0) is None
    assert [sent[1:] for sent in below.sent] == [("ada", (b"1", b"2")), ("bob", (b"3",))]
    assert below.sent[0][0] == pytest.approx(100.0 + BUSY_WAIT_S)
    assert end.unsent == 0


def test_frames_that_come_due_while_the_link_is_down_are_lost_and_counted() -> None:
    below = Below()
    end = around(below, delay_s=0.5)
    end.send("ada", [b"1", b"2"])
    below.moods.append(NotConnected("gone"))
    end.receive(1.0)
    assert (below.sent, end.unsent) == ([], 2)
    below.connected = False
    with pytest.raises(NotConnected):
        end.send("ada", [b"3"])


def test_a_frame_beyond_the_mtu_is_refused_with_the_whole_call() -> None:
    below = Below()
    end = around(below)
    with pytest.raises(FrameTooLarge, match="51 bytes exceeds the mtu 50"):
        end.send("ada", [b"x", bytes(51)])
    assert below.sent == []


def test_what_is_on_its_way_is_bounded_by_count_and_by_bytes(monkeypatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 3)
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 40)
    below = Below()
    end = around(below, delay_s=60.0)
    end.send("ada", [b"1", b"2", b"3"])
    with pytest.raises(Busy, match="offer these again"):
        end.send("ada", [b"4"])
    below.arrivals.append((100.0, Arrival("ada", (bytes(40), b"5"), 45)))
    assert end.receive(0.0) is None
    assert end.overflowed == 1
    end.receive(61.0)
    end.send("ada", [bytes(39)])
    end.receive(61.0)
    end.send("ada", [bytes(39)])
    end.close()
    end.receive(100.0)
    assert [frames for _, _, frames in below.sent] == [(b"1", b"2", b"3"), (bytes(39),)]
    assert below.closed == 1


def test_frames_leave_as_the_model_says_whatever_arrives() -> None:
    faults = Faults(drop=0.2, duplicate=0.2, reorder=0.5, reorder_s=3.0)
    model = FaultModel(faults, np.random.default_rng(5).spawn(2)[0])
    expected = sorted(copy for frame in numbered(50) for copy in model.apply(frame, 100.0))
    for arrivals in (0, 7):
        below = Below()
        end = FaultyTransport(below, faults, np.random.default_rng(5), below.clock)
        below.arrivals.extend([(100.0, Arrival("ada", (b"x",), 3))] * arrivals)
        while below.arrivals:
            end.receive(0.0)
        end.send("ada", numbered(50))
        end.receive(0.0)
        while end.receive(5.0) is not None:
            pass
        left = [(at, frame) for at, _, frames in below.sent for frame in frames]
        assert [frame for _, frame in left] == [frame for _, frame in expected]
        assert [at for at, _ in left] == pytest.approx([at for at, _ in expected], abs=1e-6)


def exchange(seed: int) -> tuple[list[bytes], list[bytes]]:
    """What two ends of a hub hear of 300 frames each way through a very bad link."""
    now = [0.0]
    hub = LoopbackHub()
    faults = Faults(drop=0.1, duplicate=0.1, reorder=0.3, reorder_s=0.2, delay_s=0.1)
    host = FaultyTransport(hub.host(), faults, np.random.default_rng(seed), lambda: now[0])
    node = hub.node("ada")
    host.open()
    node.open()
    heard: tuple[list[bytes], list[bytes]] = ([], [])
    for step in range(200):
        if step < 100:
            host.send("ada", numbered(300)[3 * step : 3 * step + 3])
            node.send(HOST, numbered(300)[3 * step : 3 * step + 3])
        now[0] += 0.01
        for end, frames in ((host, heard[0]), (node, heard[1])):
            for arrival in iter(partial(end.receive, 0.0), None):
                frames.extend(arrival.frames)
    return heard


def test_over_a_real_transport_one_seed_is_one_history_and_nothing_is_invented() -> None:
    heard = exchange(1)
    for frames in heard:
        assert 230 < len(set(frames)) < 300
        assert set(frames) < set(numbered(300))
        assert max(map(frames.count, frames)) == 2
        assert frames != sorted(frames)
    assert heard[0] != heard[1]
    assert exchange(1) == heard
    assert exchange(2) != heard


class Echo:
    """An endpoint that sends back what it hears."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.outgoing: list[tuple[str, list[bytes]]] = []

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        self.heard.extend(frames)
        self.outgoing.append((peer, list(frames)))

    def next_timeout(self) -> float | None:
        return None

    def handle_timeout(self, now: float) -> None: ...

    def next_event(self) -> str | None:
        return None

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:
        outgoing, self.outgoing = self.outgoing, []
        return outgoing


def test_a_driver_runs_over_it() -> None:
    below = Below()
    end = around(below, delay_s=0.25)
    driver: Driver[str] = Driver(Echo(), end, below.clock)
    below.arrivals.append((100.1, Arrival("ada", (b"ping",), 6)))
    for _ in range(4):
        driver.poll(0.5, lambda event: None, lambda: None)
    assert [sent[1:] for sent in below.sent] == [("ada", (b"ping",))]
    assert below.sent[0][0] == pytest.approx(100.6)
