"""Both ends of a BLE connection in one process, on simulated controllers."""

import random

from bumble.controller import Controller
from bumble.device import Device
from bumble.hci import Address
from bumble.host import Host
from bumble.transport.common import AsyncPipeSink

from transports.ble.bumble_ends import BumbleBridge, BumbleClient
from transports.ble.gatt import ATT_MTU_MAX
from transports.ble.simulated import START_S, LossyLink, quiet_controllers
from transports.loop_thread import LoopThread

_CENTRAL, _BRIDGE = "F0:F1:F2:F3:F4:01", "F0:F1:F2:F3:F4:02"


class VirtualBle:
    """A context with the ends `central` and `bridge`, and `loop` for their transports."""

    def __init__(
        self,
        rng: random.Random | None = None,
        central_mtu: int = ATT_MTU_MAX,
        bridge_mtu: int = ATT_MTU_MAX,
    ) -> None:
        self.loop = LoopThread("ble-virtual")
        self.link = LossyLink(rng or random.Random())
        self.central = BumbleClient(self._central_device, _BRIDGE, central_mtu)
        self.bridge = BumbleBridge(self._bridge_device, "virtual", bridge_mtu)
        self.devices: list[Device] = []

    def __enter__(self) -> "VirtualBle":
        quiet_controllers()
        self.loop.start()
        self.loop.submit(self._build()).result(START_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.stop()

    def break_connection(self) -> None:
        """End the present connection, if there is one, and wait for its end."""
        self.loop.submit(self.end_connection()).result(START_S)

    async def end_connection(self) -> None:
        for connection in list(self.devices[0].connections.values()):
            await connection.disconnect()

    async def _build(self) -> None:
        """Make both devices; bumble needs a running loop for them."""
        for address in (_CENTRAL, _BRIDGE):
            controller = Controller(address, link=self.link, public_address=address)
            host = Host(controller, AsyncPipeSink(controller))
            device = Device(address=Address(address), host=host)
            await device.power_on()
            self.devices.append(device)

    async def _central_device(self) -> Device:
        return self.devices[0]

    async def _bridge_device(self) -> Device:
        return self.devices[1]
