import asyncio
import random
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

pytest.importorskip("bumble", reason="bumble is not installed: pip install -e '.[dev]'")

from tests.virtual_ble import VirtualBle
from transports.base import HOST
from transports.ble import bumble_ends
from transports.ble.config import BleSettings
from transports.ble.gatt import GattError
from transports.ble.transport import BleTransport
from transports.ble.values import DATA_OVERHEAD, WINDOW, BleHello, decode, encode

WAIT_S = 20.0
FIND_BY_TYPE_VALUE = 0x06  # the opcode of a request of ATT: it looks for a service
FAST: dict[str, Any] = {"reconnect_min_s": 0.01, "reconnect_max_s": 0.05}


class Pair:
    """A board `ada` and a host behind a bridge, over the whole host stack of bumble."""

    def __init__(self, mtus: tuple[int, int] = (517, 517)):
        self.virtual = virtual = VirtualBle(random.Random(1), *mtus)
        self.node = BleTransport(BleSettings("ada", **FAST), virtual.central, virtual.loop)
        self.host = BleTransport(BleSettings(HOST, "ada", **FAST), virtual.bridge, virtual.loop)

    def open(self) -> None:
        self.virtual.__enter__()
        self.host.open()
        self.node.open()

    def close(self) -> None:
        self.node.close()
        self.host.close()
        self.virtual.__exit__()

    @property
    def connected(self) -> bool:
        return self.node.connected and self.host.connected


@pytest.fixture
def new_pair(eventually) -> Iterator[Callable[..., Pair]]:
    """A function that makes and connects a pair; all are closed after the test."""
    pairs: list[Pair] = []

    def make(**options: Any) -> Pair:
        pair = Pair(**options)
        pairs.append(pair)
        pair.open()
        eventually(lambda: pair.connected)
        return pair

    yield make
    for pair in pairs:
        pair.close()


def collect(end: BleTransport, count: int) -> list[bytes]:
    frames: list[bytes] = []
    while len(frames) < count:
        arrival = end.receive(WAIT_S)
        assert arrival is not None, f"only {len(frames)} of {count} frames came"
        frames += arrival.frames
    return frames


@pytest.mark.parametrize(
    ("mtus", "value_max"), [((517, 517), 512), ((247, 517), 244), ((517, 100), 97), ((23, 517), 20)]
)
def test_frames_of_all_sizes_pass_at_any_att_mtu(new_pair, mtus, value_max) -> None:
    pair = new_pair(mtus=mtus)
    for end in (pair.node, pair.host):
        assert end.status().numbers["value_max"] == value_max
    frames = [bytes([size % 251]) * size for size in (1, 2, 15, 16, 17, 240, 511, 513, 4095, 4096)]
    stream = sum(len(frame) + 2 for frame in frames)
    sent = pair.node.send(HOST, frames)
    assert sent == stream + -(-stream // (value_max - DATA_OVERHEAD)) * DATA_OVERHEAD
    assert collect(pair.host, len(frames)) == frames


def test_a_stack_that_fails_is_told(eventually) -> None:
    own_loop = BleTransport(BleSettings("ada"), VirtualBle().central)
    own_loop.open()  # its virtual link was never started: there is no device
    eventually(lambda: "IndexError" in str(own_loop.status().last_error))
    own_loop.close()


def test_a_connection_may_end_while_it_is_made(eventually, caplog) -> None:
    pair = Pair()
    virtual, breaks = pair.virtual, list[Any]()
    pass_on = virtual.link.send_acl_data

    def break_once(controller, address, transport, data: bytes) -> None:
        if data[4] == FIND_BY_TYPE_VALUE and not breaks:
            breaks.append(asyncio.ensure_future(virtual.end_connection()))
        else:
            pass_on(controller, address, transport, data)

    cast(Any, virtual.link).send_acl_data = break_once
    pair.open()
    eventually(lambda: pair.connected)
    assert "the BLE connection ended while looking for the service" in caplog.text
    pair.close()


class EagerEnd:
    """A peripheral's end whose first value comes before `connect` has returned."""

    initiator = False
    value_max = 100

    def __init__(self, first: bytes) -> None:
        self.first = first
        self.written: list[bytes] = []

    async def connect(self, on_value, on_disconnect) -> None:
        on_value(self.first)
        await asyncio.sleep(0)

    async def write(self, value: bytes) -> None:
        self.written.append(value)

    async def disconnect(self) -> None:
        pass


def test_a_board_that_greets_at_once_is_heard(eventually) -> None:
    end = EagerEnd(encode(BleHello(False, 7, 1, 0, 0, WINDOW), 0))
    host = BleTransport(BleSettings(HOST, "ada", **FAST), end)
    host.open()
    eventually(lambda: end.written)
    answer = decode(end.written[0], None)
    assert isinstance(answer, BleHello)
    assert (answer.answer, answer.session, host.connected) == (True, 7, True)
    host.close()


def test_a_mute_controller_is_told_and_let_go(monkeypatch) -> None:
    monkeypatch.setattr(bumble_ends, "CONNECT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        hci = f"tcp-client:127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(GattError, match=r"the controller on took more than 0\.05 s"):
            asyncio.run(bumble_ends.open_device(hci, "F0:F1:F2:F3:F4:05"))
        controller, _ = server.accept()
        with controller:
            controller.settimeout(WAIT_S)
            assert b"".join(iter(lambda: controller.recv(100), b"")), "asked, then let go"


def test_strangers_are_left_with_a_sentence(eventually, monkeypatch) -> None:
    """A peripheral without the service, and a central that does not subscribe."""
    monkeypatch.setattr(bumble_ends, "SUBSCRIBE_S", 0.05)
    with VirtualBle() as virtual:
        central, bridge = virtual.devices

        async def advertise() -> None:
            await bridge.start_advertising(auto_restart=True, advertising_interval_min=20.0)

        virtual.loop.submit(advertise()).result(WAIT_S)
        node = BleTransport(BleSettings("ada", **FAST), virtual.central, virtual.loop)
        node.open()
        eventually(lambda: "no Nordic UART service" in str(node.status().last_error))
        node.close()

        host = BleTransport(BleSettings(HOST, "ada", **FAST), virtual.bridge, virtual.loop)
        host.open()

        async def connect() -> None:
            await central.connect(bridge.random_address, timeout=WAIT_S)

        virtual.loop.submit(connect()).result(WAIT_S)
        eventually(lambda: "subscribe took more than" in str(host.status().last_error))
        host.close()
