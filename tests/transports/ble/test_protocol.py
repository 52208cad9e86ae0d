import heapq
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports.ble import values
from transports.ble.protocol import FULL_MAX_S, PATIENCE_FIRST_S, SILENCE_S, BleProtocol
from transports.ble.values import WINDOW, Ask, BleHello, BleStatus, Data

DELAY_S = 0.02
VALUE_MAX = 60


@dataclass(frozen=True)
class Faults:
    loss: float = 0.0
    cut: float = 0.0
    doubled: float = 0.0
    delayed: float = 0.0  # by up to ten times the usual, so that values overtake each other
    late: float = 0.0  # how often what flies when a connection breaks arrives in the next one


class SimEnd:
    """One end and what it got."""

    def __init__(self, initiator: bool, rng: random.Random) -> None:
        identity, session = rng.randrange(1, 2**32), rng.randrange(2**16)
        self.protocol = BleProtocol(initiator=initiator, identity=identity, session=session)
        self.got: list[bytes] = []


class SimLink:
    """Two ends and the time: a seeded medium that drops, cuts, doubles, delays and breaks."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.rng = random.Random(seed)
        self.faults = faults
        self.ends = (SimEnd(True, self.rng), SimEnd(False, self.rng))
        self.now = 0.0
        self.values_sent = self.failures = 0
        self._flying: list[tuple[float, int, int, bytes]] = []
        self._count = 0

    def connect(self) -> None:
        if self.rng.random() >= self.faults.late:
            self._flying = []
        for end in self.ends:
            end.protocol.disconnected()
        for end in self.ends:
            end.protocol.connected(self.now)

    def offer(self, which: int, frames: list[bytes]) -> None:
        self.ends[which].protocol.sender.offer(frames)

    def step(self) -> bool:
        """Send what is due, then one event; False where nothing will happen any more."""
        for which, end in enumerate(self.ends):
            for value in end.protocol.values_to_send(VALUE_MAX, self.now):
                self.fly(1 - which, value)
        if any(end.protocol.failed for end in self.ends):
            self.failures += 1
            self.connect()
        timeouts = [end.protocol.next_timeout() for end in self.ends]
        due = min((time for time in timeouts if time is not None), default=None)
        if self._flying and (due is None or self._flying[0][0] <= due):
            self.now, _, which, value = heapq.heappop(self._flying)
            end = self.ends[which]
            end.got += end.protocol.receive_value(value, self.now)
        elif due is not None:
            self.now = due
            for end in self.ends:
                end.protocol.handle_timeout(self.now)
        return bool(self._flying) or due is not None

    def run(self, until_s: float = 10_000.0) -> None:
        while self.step() and self.now < until_s:
            continue

    def fly(self, which: int, value: bytes) -> None:
        self.values_sent += 1
        for _ in range(1 + (self.rng.random() < self.faults.doubled)):
            if self.rng.random() < self.faults.loss:
                continue
            if self.rng.random() < self.faults.cut:
                value = value[: self.rng.randrange(len(value))]
            delay = DELAY_S
            if self.rng.random() < self.faults.delayed:
                delay *= self.rng.uniform(1, 10)
            self._count += 1
            heapq.heappush(self._flying, (self.now + delay, self._count, which, value))


def frames_of(rng: random.Random, count: int, size_max: int = 300) -> list[bytes]:
    return [rng.randbytes(rng.randint(1, size_max)) for _ in range(count)]


FAULTS = {
    "none": Faults(),
    "as on a radio": Faults(loss=0.05, cut=0.02),
    "heavy loss": Faults(loss=0.4),
    "no order": Faults(loss=0.1, doubled=0.2, delayed=0.3),
    "everything": Faults(loss=0.2, cut=0.05, doubled=0.1, delayed=0.2, late=0.5),
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(s, marks=pytest.mark.nightly) for s in range(4, 12))]
)
def test_each_frame_arrives_once_and_in_order_over_breaks(seed: int, faults: Faults) -> None:
    # R7.4-5, R7.4-6
    link = SimLink(seed, faults)
    link.connect()
    sent = [frames_of(link.rng, 120), frames_of(link.rng, 40)]
    for part in range(4):
        for which, frames in enumerate(sent):
            size = len(frames) // 4
            link.offer(which, frames[part * size : (part + 1) * size])
        link.run(until_s=link.now + link.rng.uniform(0.0, 1.0))
        if part < 3:
            link.connect()
    link.faults = replace(faults, loss=min(faults.loss, 0.2), late=0.0)
    link.run()
    assert [end.got for end in link.ends] == [sent[1], sent[0]]
    assert [len(end.protocol.sender) for end in link.ends] == [0, 0]


def test_only_what_was_lost_is_sent_again() -> None:  # R7.4-13
    link = SimLink(0, Faults())
    link.connect()
    link.run()
    fly, seen = link.fly, []

    def lose_two(which: int, value: bytes) -> None:
        seen.append(value)
        if len(seen) not in (3, 9):
            fly(which, value)

    link.fly = lose_two  # type: ignore[method-assign]
    begun = link.now
    link.offer(0, [b"x" * 4000])
    link.run()
    assert (link.ends[1].got, link.ends[0].protocol.sender.resent) == ([b"x" * 4000], 2)
    assert link.now - begun < PATIENCE_FIRST_S  # No timer was needed.


def test_a_reader_that_pauses_gets_no_more_than_it_granted_and_loses_nothing() -> None:
    # R7.4-8, R7.4-9
    link = SimLink(3, Faults(loss=0.1))
    link.connect()
    link.run()
    frames = frames_of(link.rng, 400, 40)
    link.ends[1].protocol.set_reading(False)
    link.offer(0, frames)
    link.run(until_s=60.0)
    assert sum(map(len, link.ends[1].got)) <= WINDOW * VALUE_MAX
    assert not link.failures  # Patience with a reader is not mistaken for silence.
    reader = link.ends[1].protocol
    reader.set_reading(True)
    assert reader.values_to_send(VALUE_MAX, link.now), "it says so at once, which is lost here"
    link.run()
    assert link.ends[1].got == frames


def test_a_program_that_starts_anew_gets_what_was_not_confirmed() -> None:  # R7.4-5
    link = SimLink(1, Faults())
    link.connect()
    link.offer(0, [b"before"])
    link.run()
    link.ends = (link.ends[0], SimEnd(False, link.rng))
    link.offer(0, [b"after"])
    link.connect()
    link.run()
    assert link.ends[1].got == [b"after"]
    link.ends = (SimEnd(True, link.rng), link.ends[1])
    link.offer(0, [b"third"])
    link.offer(1, [b"back"])
    link.connect()
    link.run()
    assert (link.ends[1].got, link.ends[0].got) == ([b"after", b"third"], [b"back"])


NODE, BRIDGE, SESSION = 1, 2, 41


def established() -> tuple[BleProtocol, BleProtocol]:
    """A node and a bridge after their hellos, in the session SESSION."""
    node = BleProtocol(initiator=True, identity=NODE, session=SESSION - 1)
    bridge = BleProtocol(initiator=False, identity=BRIDGE, session=0)
    for end in (node, bridge):
        end.connected(0.0)
    for sender, receiver in ((node, bridge), (bridge, node)):
        (hello,) = sender.values_to_send(VALUE_MAX, 0.0)
        receiver.receive_value(hello, 0.0)
    assert node.established
    assert bridge.established
    return node, bridge


def tell(end: BleProtocol, value: values.Value, now: float, session: int = SESSION) -> list[bytes]:
    return end.receive_value(values.encode(value, session), now)


def test_silence_is_given_up_with_a_sentence_and_what_waits_is_kept() -> None:  # R7.4-14
    node, bridge = established()
    node.sender.offer([b"x"])
    now = 1.0
    while node.failed is None:
        node.values_to_send(VALUE_MAX, now)
        timeout = node.next_timeout()
        assert timeout is not None
        now = timeout
        node.handle_timeout(now)
    assert "the peer is silent" in node.failed
    assert SILENCE_S <= now - 1.0 <= SILENCE_S + 2
    assert (node.established, len(node.sender)) == (False, 1)
    for greeted, sentence in ((node, "did not answer our hello"), (bridge, "sent no hello")):
        greeted.connected(now)
        while greeted.failed is None:
            now = greeted.next_timeout() or now
            greeted.handle_timeout(now)
        assert sentence in greeted.failed


@pytest.mark.parametrize(
    ("hello", "refusal"),
    [
        (BleHello(False, 77, NODE, BRIDGE, 4, WINDOW), "cannot have 4 of our frames"),
        (BleHello(False, 77, NODE, 0, 3, WINDOW), "no identity"),
        (BleHello(False, 77, 0, 0, 0, WINDOW), "no identity"),
    ],
)
def test_a_hello_that_cannot_be_changes_nothing(hello: BleHello, refusal: str) -> None:
    _, bridge = established()
    bridge.sender.offer([b"x"] * 3)
    tell(bridge, hello, 1.0)
    assert (bridge.refused, bridge.established, len(bridge.sender)) == (1, True, 3)
    assert refusal in bridge.refusal
    assert tell(bridge, Data(0, False, b"\x01\x00a"), 1.0) == [b"a"], "the session goes on"
    tell(bridge, BleHello(False, 77, NODE, BRIDGE, 3, WINDOW), 1.0)
    assert len(bridge.sender) == 0
    assert tell(bridge, Data(0, False, b"\x01\x00b"), 1.0, session=77) == [b"b"]


def test_a_stream_that_holds_no_frames_ends_the_session_after_its_good_frames() -> None:  # R7.4-7
    _, bridge = established()
    assert tell(bridge, Data(0, False, b"\x02\x00ok" + b"\x00\x00"), 1.0) == [b"ok"]
    assert bridge.failed is None
    assert tell(bridge, Data(1, False, b"x"), 1.0) == []
    assert (str(bridge.failed), bridge.established) == ("the stream has a frame of 0 bytes", False)


@pytest.mark.parametrize("opens_at_s", [30.0, None])
def test_an_end_that_is_full_is_given_time_but_not_for_ever(opens_at_s: float | None) -> None:
    # R7.4-10
    node, _ = established()
    now = 1.0
    node.sender.offer([b"x" * 30] * 3)
    sent = 0
    while node.failed is None and now < 300.0 and len(node.sender):
        now += 0.5
        sent = max(sent, len(node.values_to_send(VALUE_MAX, now)))
        is_open = opens_at_s is not None and now >= opens_at_s
        status = BleStatus(sent, WINDOW, 0) if is_open else BleStatus(0, 0, 0)
        tell(node, status, now)
        node.handle_timeout(now)
    if opens_at_s is None:
        assert node.failed == "the peer has had no room for 60 s"
        assert FULL_MAX_S < now <= FULL_MAX_S + 3.0
    else:
        assert (node.failed, len(node.sender)) == (None, 0)


U8, U16, U32 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32))
ANY_VALUE = st.one_of(
    st.builds(BleHello, st.booleans(), U16, U32, U32, U32, U8),
    st.builds(Data, U8, st.booleans(), st.binary(min_size=1, max_size=40)),
    st.just(Ask()),
    st.builds(BleStatus, U8, U8, U32),
)


@given(st.lists(st.one_of(st.binary(max_size=40), ANY_VALUE), max_size=60), st.booleans())
def test_whatever_arrives_nothing_is_raised_and_all_stays_bounded(arrivals, initiator) -> None:
    # R7.4-15
    end = established()[0 if initiator else 1]
    end.sender.offer([b"frame" * 100] * 20)
    for now, arrival in enumerate(arrivals, 1):
        if isinstance(arrival, bytes):
            end.receive_value(arrival, float(now))
        else:
            tell(end, arrival, float(now))
        assert len(end.values_to_send(VALUE_MAX, float(now))) <= WINDOW + 2
        end.handle_timeout(float(now))
        assert len(end.sender) <= 20
