"""The bleak adapter against stand-ins for bleak's classes: the calls fit, no radio was met."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

pytest.importorskip("bleak", reason="bleak is not installed: pip install -e '.[dev]'")

from bleak import BleakScanner
from bleak.exc import BleakError

from transports.ble import bleak_client
from transports.ble.bleak_client import BleakEnd
from transports.ble.gatt import RX_UUID, SERVICE_UUID, TX_UUID, GattError

HEARD = [
    (SimpleNamespace(address="AA:01"), SimpleNamespace(local_name="lamp", service_uuids=[])),
    (SimpleNamespace(address="AA:02"), SimpleNamespace(local_name="b1", service_uuids=[])),
    (
        SimpleNamespace(address="AA:03"),
        SimpleNamespace(local_name=None, service_uuids=[SERVICE_UUID]),
    ),
]


class FakeScanner:
    @staticmethod
    async def find_device_by_filter(wanted: Callable[..., bool], timeout: float) -> object:
        return next((device for device, heard in HEARD if wanted(device, heard)), None)


class FakeClient:
    """What the adapter uses of BleakClient; `fail` is raised by the next call."""

    latest: "FakeClient"

    def __init__(self, device: SimpleNamespace, gone: Callable[..., None], timeout: float) -> None:
        FakeClient.latest = self
        self.device = device
        self.gone = gone
        self.written: list[bytes] = []
        self.fail: Exception | None = None
        self.rx = SimpleNamespace(uuid=RX_UUID, max_write_without_response_size=20)
        self.services = SimpleNamespace(
            get_characteristic=lambda uuid: self.rx if device.address != "AA:01" else None
        )

    def _call(self) -> None:
        if self.fail is not None:
            raise self.fail

    async def connect(self) -> None:
        self._call()

    async def disconnect(self) -> None:
        self._call()
        self.gone(self)

    async def start_notify(self, uuid: str, callback: Callable[..., None]) -> None:
        assert uuid == TX_UUID
        self.notify = callback

    async def write_gatt_char(self, rx: object, value: bytes, response: bool) -> None:
        self._call()
        assert (rx, response) == (self.rx, False)
        self.written.append(value)


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bleak_client, "BleakScanner", FakeScanner)
    monkeypatch.setattr(bleak_client, "BleakClient", FakeClient)


@pytest.mark.parametrize(
    ("bridge", "address"), [("AA:02", "AA:02"), ("b1", "AA:02"), ("", "AA:03")]
)
def test_values_pass_both_ways_until_the_connection_ends(bridge, address) -> None:
    async def run() -> None:
        got: list[bytes] = []
        ended: list[str] = []
        end = BleakEnd(bridge)
        assert (end.initiator, end.value_max) == (True, 20)
        await end.connect(got.append, ended.append)
        client = FakeClient.latest
        assert client.device.address == address
        client.rx.max_write_without_response_size = 244  # BlueZ tells it late.
        assert end.value_max == 244
        client.notify(client.rx, bytearray(b"in"))
        await end.write(b"out")
        assert (got, client.written) == ([b"in"], [b"out"])
        client.gone(client)
        assert ended == ["the BLE connection ended"]
        await end.disconnect()
        await end.disconnect()
        assert len(ended) == 1
        with pytest.raises(GattError, match="not connected"):
            await end.write(b"x")

    asyncio.run(run())


def test_what_bleak_cannot_do_is_a_sentence() -> None:
    async def run() -> None:
        for bridge, sentence in (("nobody", "no BLE bridge nobody"), ("lamp", "no Nordic UART")):
            with pytest.raises(GattError, match=sentence):
                await BleakEnd(bridge).connect(print, print)
        end = BleakEnd()
        await end.connect(print, print)
        FakeClient.latest.fail = BleakError("gone")
        with pytest.raises(GattError, match="bleak could not write: gone"):
            await end.write(b"x")
        with pytest.raises(GattError, match="bleak could not disconnect: gone"):
            await end.disconnect()

    asyncio.run(run())


def test_without_bluez_the_sentence_says_what_to_install(monkeypatch, tmp_path) -> None:
    """With bleak itself: it finds no D-Bus."""
    monkeypatch.setattr(bleak_client, "BleakScanner", BleakScanner)
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path / 'none'}")
    for bridge in ("", "b1"):
        with pytest.raises(GattError, match="sudo apt install bluez dbus"):
            asyncio.run(BleakEnd(bridge).connect(print, print))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (BleakError("[org.freedesktop.DBus.Error.ServiceUnknown] no bluez"), "systemctl enable"),
        (ConnectionRefusedError(111, "refused"), "systemctl enable"),
        (BleakError("out of reach"), "could not connect: out of reach$"),
        (TimeoutError(), "could not connect: it took too long$"),
    ],
)
def test_why_there_is_no_connection(monkeypatch, error, sentence) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(FakeScanner, "find_device_by_filter", fail)
    with pytest.raises(GattError, match=sentence):
        asyncio.run(BleakEnd().connect(print, print))
