"""A simulated BLE link: bumble's controllers and host stacks, both ends in one process.

No radio, no airtime and no latency: what is real is the host stack (HCI, L2CAP, ATT, GATT) and what
it does to values. A lossy link drops whole values, as full buffers of a host or peer would; the
requests of ATT pass, because a real link layer repeats them.
"""

import logging
import random
from dataclasses import dataclass

from transports.ble.bumble_bridge import BumbleBridge
from transports.ble.bumble_client import BumbleClient
from transports.ble.bumble_stack import (
    Address,
    AsyncPipeSink,
    Controller,
    Device,
    Host,
    LocalLink,
    PhysicalTransport,
)
from transports.ble.gatt import ATT_MTU_MAX
from transports.ble.loop_thread import LoopThread

START_S = 10.0
_CENTRAL, _BRIDGE = "F0:F1:F2:F3:F4:01", "F0:F1:F2:F3:F4:02"
_ATT_CHANNEL = (4).to_bytes(2, "little")
_VALUE_OPCODES = (0x52, 0x1B)  # a write without response, a notification


@dataclass(slots=True)
class VirtualCounters:
    """What was handed to the link; bytes are those of ATT and L2CAP, headers included."""

    packets: int = 0
    packet_bytes: int = 0
    values: int = 0
    values_lost: int = 0
    values_cut: int = 0


class LossyLink(LocalLink):
    """The medium: loses a share `loss` of all values and cuts a share `cut` short."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.loss = self.cut = 0.0
        self.counters = VirtualCounters()
        self._rng = rng

    def send_acl_data(
        self,
        sender_controller: Controller,
        destination_address: Address,
        transport: PhysicalTransport,
        data: bytes,
    ) -> None:
        """Pass on one L2CAP packet, or not."""
        counters = self.counters
        counters.packets += 1
        counters.packet_bytes += len(data)
        if data[2:4] == _ATT_CHANNEL and data[4] in _VALUE_OPCODES:
            counters.values += 1
            if self._rng.random() < self.loss:
                counters.values_lost += 1
                return
            if self._rng.random() < self.cut:
                counters.values_cut += 1
                data = _cut(data, self._rng)
        super().send_acl_data(sender_controller, destination_address, transport, data)


class VirtualBle:
    """A board and a bridge without radios; use it as a context.

    Give `loop` and one of the ends to each of the two `BleTransport`.
    """

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
        self._devices: list[Device] = []

    def __enter__(self) -> "VirtualBle":
        # The simulated controllers warn of each packet that a broken connection left behind.
        logging.getLogger("bumble.controller").setLevel(logging.ERROR)
        self.loop.start()
        self.loop.submit(self._build()).result(START_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.stop()

    def set_loss(self, loss: float, cut: float = 0.0) -> None:
        """Lose this share of all values from now on, and cut the other short."""
        self.link.loss, self.link.cut = loss, cut

    def break_connection(self) -> None:
        """End the present connection, if there is one; returns when it has ended."""
        self.loop.submit(self._break()).result(START_S)

    async def _break(self) -> None:
        for connection in list(self._devices[0].connections.values()):
            await connection.disconnect()

    async def _build(self) -> None:
        """Both devices; bumble wants a running loop for them."""
        for address in (_CENTRAL, _BRIDGE):
            controller = Controller(address, link=self.link, public_address=address)
            host = Host(controller, AsyncPipeSink(controller))
            device = Device(address=Address(address), host=host)
            await device.power_on()
            self._devices.append(device)

    async def _central_device(self) -> Device:
        return self._devices[0]

    async def _bridge_device(self) -> Device:
        return self._devices[1]


def _cut(packet: bytes, rng: random.Random) -> bytes:
    """An L2CAP packet whose value ends somewhere before its end, with a length that is right."""
    header = 4 + 3
    body = packet[4 : rng.randrange(header, len(packet))]
    return len(body).to_bytes(2, "little") + packet[2:4] + body
