"""The BLE link in C: it sends what Python sends, and both speak to each other over bad links."""

import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.firmware_tools.c_library import CBle, CLibrary, make
from transports.ble.protocol import BleProtocol

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="cc is not installed")
VALUE_MAX = 60


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> CLibrary:
    return CLibrary(make(tmp_path_factory.mktemp("c"), "libternmesh.so"))


class Both:
    """The same end in C and in Python, with the same inputs: all outputs must be equal."""

    def __init__(self, library: CLibrary, *, initiator: bool, identity: int, session: int) -> None:
        self.c = CBle(
            library, initiator=initiator, identity=identity, session=session, value_max=VALUE_MAX
        )
        self.python = BleProtocol(initiator=initiator, identity=identity, session=session)

    def connected(self, now: int) -> None:
        self.c.connected(now)
        self.python.connected(now / 1000)
        self.check()

    def disconnected(self) -> None:
        self.c.disconnected()
        self.python.disconnected()

    def offer(self, frame: bytes) -> None:
        if self.c.offer(frame):
            self.python.sender.offer([frame])

    def pause(self, is_paused: bool) -> None:
        self.c.pause(is_paused)
        self.python.set_reading(not is_paused)

    def timeout(self, now: int) -> None:
        """Only where both are due: Python does not round its patience to milliseconds."""
        theirs, ours = self.python.next_timeout(), self.c.deadline_ms
        assert (theirs is None) == (ours is None)
        if theirs is not None and ours is not None:
            assert abs(theirs * 1000 - ours) < 20
            if now >= max(theirs * 1000, ours):
                self.c.timeout(now)
                self.python.handle_timeout(now / 1000)
        self.check()

    def receive_value(self, value: bytes, now: int) -> list[bytes]:
        found = self.c.receive_value(value, now)
        assert found == self.python.receive_value(value, now / 1000)
        self.check()
        return found

    def values_to_send(self, now: int) -> list[bytes]:
        found = self.c.values_to_send(now)
        assert found == self.python.values_to_send(VALUE_MAX, now / 1000)
        return found

    def check(self) -> None:
        established, failed, refused, frames = self.c.state
        python = self.python
        assert (established, failed) == (python.established, python.failed is not None)
        assert (refused, frames) == (python.refused, len(python.sender))


@pytest.mark.parametrize("seed", range(8))
def test_both_ends_over_a_bad_link(library: CLibrary, seed: int) -> None:
    """Losses, damage, pauses, new connections: each frame comes once and in order."""
    rng = np.random.default_rng(seed)
    loss = (0.0, 0.02, 0.15, 0.4)[seed % 4]
    ends = [
        Both(library, initiator=bool(index), identity=int(rng.integers(1, 1 << 32)), session=65_530)
        for index in range(2)
    ]
    offered: list[list[bytes]] = [[], []]
    taken: list[list[bytes]] = [[], []]
    now = 0
    for end in ends:
        end.connected(now)
    for step in range(1500):
        now += int(rng.integers(1, 60))
        for index, end in enumerate(ends):
            if step < 1000 and rng.random() < 0.2 and len(offered[index]) < 150:
                frame = rng.bytes(int(rng.integers(1, 300)))
                if end.c.state[3] < 20:
                    end.offer(frame)
                    offered[index].append(frame)
            for value in end.values_to_send(now):
                if rng.random() < loss:
                    continue
                if rng.random() < loss / 4:
                    value = value[:-1] + bytes([value[-1] ^ 1])
                taken[1 - index] += ends[1 - index].receive_value(value, now)
            if rng.random() < 0.01 or step == 1000:
                end.pause(bool(rng.integers(2)) and step < 900)
            end.timeout(now)
        if any(end.c.state[1] for end in ends) or (rng.random() < 0.01 and step < 1000):
            for end in ends:
                end.disconnected()
            for end in ends:
                end.connected(now)
    for index in range(2):
        assert taken[1 - index] == offered[index][: len(taken[1 - index])], "once and in order"
    if loss < 0.4:
        assert [len(frames) for frames in taken] == [len(frames) for frames in offered[::-1]]
        assert [end.c.state[3] for end in ends] == [0, 0], "all is confirmed"


@pytest.mark.parametrize("seed", range(4))
def test_programs_that_start_anew(library: CLibrary, seed: int) -> None:
    """A new identity: both count from 0 again, and go on with what is not confirmed."""
    rng = np.random.default_rng((seed, 1))

    def new(index: int) -> Both:
        identity, session = int(rng.integers(1, 1 << 32)), int(rng.integers(1 << 16))
        return Both(library, initiator=bool(index), identity=identity, session=session)

    ends, now, taken = [new(0), new(1)], 0, [0, 0]
    for round_number in range(25):
        if round_number:
            index = int(rng.integers(2))
            ends[index] = new(index)
        for end in ends:
            end.connected(now)
        for _ in range(30):
            now += int(rng.integers(1, 60))
            for index, end in enumerate(ends):
                if end.c.state[3] < 20 and rng.random() < 0.5:
                    end.offer(rng.bytes(int(rng.integers(1, 300))))
                for value in end.values_to_send(now):
                    taken[index] += len(ends[1 - index].receive_value(value, now))
                end.timeout(now)
    assert min(taken) > 50


@given(st.lists(st.binary(max_size=70) | st.binary(min_size=19, max_size=19), max_size=20))
def test_any_values_are_taken_or_counted(library: CLibrary, values: list[bytes]) -> None:
    end = Both(library, initiator=True, identity=7, session=9)
    end.connected(0)
    for value in values:
        end.receive_value(value, 5)
    end.values_to_send(6)


def test_a_ring_that_is_full_takes_no_frame(library: CLibrary) -> None:
    end = CBle(library, initiator=True, identity=7, session=9, value_max=VALUE_MAX)
    assert not end.offer(b"")
    assert not end.offer(bytes(4097))
    assert [end.offer(bytes(4000)) for _ in range(5)] == [True, True, True, True, False]
