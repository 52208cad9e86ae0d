"""The status of a transport tells when its thread last turned, so that a hang can be seen."""

import random
import threading
from collections.abc import Iterator

import pytest
from paho.mqtt.client import Client

from ternmesh.link.airtime import LoraSetting
from transports import loop_thread
from transports.base import HOST, StatusTransport
from transports.ble.config import BleSettings
from transports.ble.simulated import VirtualBle
from transports.ble.transport import BleTransport
from transports.mqtt.embedded_broker import EmbeddedBroker
from transports.mqtt.settings import MqttSettings
from transports.mqtt.transport import MqttTransport
from transports.serial_lora.emulator.radios import EmulatedRadios, new_modem
from transports.serial_lora.port import SerialPort
from transports.serial_lora.settings import SerialLoraSettings
from transports.serial_lora.transport import SerialLoraTransport

HUNG_S = 2.5  # each thread turns once a second, here also that of BLE


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Ends the hangs that a test makes."""
    monkeypatch.setattr(loop_thread, "TURN_S", 1.0)
    event = threading.Event()
    yield event
    event.set()


def turned_s_ago(end: StatusTransport) -> float:
    return float(str(end.status()["turned_s_ago"]))


def watch(end: StatusTransport, eventually) -> None:
    """Connect, and let it rest for a while: the thread turns without any traffic too."""
    end.open()
    eventually(lambda: end.connected)
    threading.Event().wait(HUNG_S)
    assert turned_s_ago(end) < HUNG_S


def test_mqtt(hang, eventually, monkeypatch) -> None:
    with EmbeddedBroker() as broker:
        end = MqttTransport(MqttSettings(broker.url, "barn", "ada"))
        watch(end, eventually)
        monkeypatch.setattr(Client, "loop", lambda *_: hang.wait())
        eventually(lambda: turned_s_ago(end) > HUNG_S)
        hang.set()
        end.close()


def test_serial(hang, eventually, monkeypatch) -> None:
    radios = EmulatedRadios([new_modem("reyax", 0)], speed=400.0, seed=7)
    radios.start()
    radio = LoraSetting(7, 125, 1, 12)
    settings = SerialLoraSettings(
        radios.paths[0], "reyax", HOST, radio=radio, frequency_hz=869_525_000, addresses={"ada": 1}
    )
    end = SerialLoraTransport(settings)
    watch(end, eventually)
    monkeypatch.setattr(SerialPort, "read", lambda *_: hang.wait() and b"")
    eventually(lambda: turned_s_ago(end) > HUNG_S)
    hang.set()
    end.close()
    radios.close()


def test_ble(hang, eventually) -> None:
    with VirtualBle(random.Random(1), 517, 517) as virtual:
        host = BleTransport(BleSettings(HOST, "ada"), virtual.bridge, virtual.loop)
        host.open()
        end = BleTransport(BleSettings("ada", HOST), virtual.central, virtual.loop)
        watch(end, eventually)
        virtual.loop.call(hang.wait)
        eventually(lambda: turned_s_ago(end) > HUNG_S)
        hang.set()
        end.close()
        host.close()
