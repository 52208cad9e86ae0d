"""All that this package takes of bumble, a Bluetooth host stack in Python; imported here only."""

from transports.base import MissingExtra

try:
    from bumble.att import Attribute
    from bumble.controller import Controller
    from bumble.core import UUID, AdvertisingData, BaseBumbleError, PhysicalTransport
    from bumble.device import Connection, Device, Peer
    from bumble.gatt import Characteristic, CharacteristicValue, Service
    from bumble.gatt_client import CharacteristicProxy
    from bumble.hci import Address, HCI_ErrorCode
    from bumble.host import Host
    from bumble.link import LocalLink
    from bumble.ll import TerminateInd
    from bumble.transport import open_transport
    from bumble.transport.common import AsyncPipeSink, StreamPacketSink, StreamPacketSource
except ImportError as error:
    raise MissingExtra(
        "a BLE bridge or virtual link needs the package bumble: pip install 'ternmesh[ble-bridge]'"
    ) from error

__all__ = [
    "UUID",
    "Address",
    "AdvertisingData",
    "AsyncPipeSink",
    "Attribute",
    "BaseBumbleError",
    "Characteristic",
    "CharacteristicProxy",
    "CharacteristicValue",
    "Connection",
    "Controller",
    "Device",
    "HCI_ErrorCode",
    "Host",
    "LocalLink",
    "Peer",
    "PhysicalTransport",
    "Service",
    "StreamPacketSink",
    "StreamPacketSource",
    "TerminateInd",
    "open_device",
]


async def open_device(hci: str, address: str) -> Device:
    """The powered Bluetooth controller that bumble calls `hci`, such as `usb:0`.

    `address` is a static random one, such as F0:F1:F2:F3:F4:05. The controller is held until the
    program ends. Tried with simulated controllers over TCP, with no real one.
    """
    transport = await open_transport(hci)
    device = Device.with_hci(address, Address(address), transport.source, transport.sink)
    await device.power_on()
    return device
