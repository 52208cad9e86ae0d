"""BLE without radios: simulated controllers of bumble under real host stacks.

The host stack (HCI, L2CAP, ATT, GATT) is real; there is no radio, no airtime and no latency. A
lossy link drops whole values, as full buffers of a host or peer would; requests of ATT pass, since
a real link layer repeats them.

`VirtualControllers` serves controllers over TCP (HCI), for separate programs. Such a controller
exists as long as a program is connected to it, like one that is plugged in and out; the peers of
its connections are notified.
"""

import asyncio
import functools
import logging
import random
from contextlib import suppress

from ternmesh.extras import installed
from transports.base import MissingExtra
from transports.loop_thread import LoopThread

with installed("ble-bridge", "a virtual link needs the package bumble", MissingExtra):
    from bumble.controller import Controller
    from bumble.core import BaseBumbleError, PhysicalTransport
    from bumble.hci import Address, HCI_ErrorCode
    from bumble.link import LocalLink
    from bumble.ll import TerminateInd
    from bumble.transport.common import StreamPacketSink, StreamPacketSource

START_S = 10.0
ADDRESS = "127.0.0.1"
_ATT_CHANNEL = (4).to_bytes(2, "little")
_VALUE_OPCODES = (0x52, 0x1B)  # a write without response, a notification

_log = logging.getLogger(__name__)


class VirtualControllers:
    """A context with `count` controllers at free `ports`. `loss` is the loss rate of values."""

    def __init__(self, count: int, *, loss: float, rng: random.Random) -> None:
        self.ports: list[int] = []
        self.link = LossyLink(rng, loss)
        self._count = count
        self._loop = LoopThread("ble-controllers")
        self._servers: list[asyncio.Server] = []
        self._sockets: set[_Socket] = set()

    @property
    def names(self) -> list[str]:
        """The names of the controllers for bumble, once the context is entered."""
        return [f"tcp-client:{ADDRESS}:{port}" for port in self.ports]

    def __enter__(self) -> "VirtualControllers":
        quiet_controllers()
        self._loop.start()
        self._loop.submit(self._build()).result(START_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call(self._close)
        self._loop.stop()

    def _close(self) -> None:
        for server in self._servers:
            server.close()
        for end in list(self._sockets):
            end.close()

    async def _build(self) -> None:
        loop = asyncio.get_running_loop()
        for index in range(self._count):
            factory = functools.partial(_Socket, index, self.link, self._sockets)
            server = await loop.create_server(factory, ADDRESS, 0)
            self._servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])


class _Socket(StreamPacketSource):
    """The controller of one program, in `sockets` while the program is connected."""

    def __init__(self, index: int, link: "LossyLink", sockets: "set[_Socket]") -> None:
        super().__init__()
        self.index = index
        self._link = link
        self._sockets = sockets
        self._sink: StreamPacketSink | None = None
        self._controller: Controller | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        _log.info("controller %d is in use", self.index)
        self._sockets.add(self)
        self._sink = StreamPacketSink(transport)
        self._controller = Controller(f"C{self.index}", self, self._sink, self._link)

    def connection_lost(self, exc: Exception | None) -> None:
        _log.info("controller %d is free: %s", self.index, exc or "its program closed it")
        self._sockets.discard(self)
        controller = self._controller
        self._controller = None
        if controller is None:
            return
        controller.le_legacy_advertiser.stop()
        for advertising in controller.advertising_sets.values():
            advertising.stop()
        for connection in controller.le_connections.values():
            with suppress(BaseBumbleError):  # the peer is gone, too
                reason = HCI_ErrorCode.CONNECTION_TIMEOUT_ERROR
                connection.send_ll_control_pdu(TerminateInd(reason))
        self._link.remove_controller(controller)

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()


class LossyLink(LocalLink):
    """The medium: loses values at the rate `loss`."""

    def __init__(self, rng: random.Random, loss: float = 0.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.loss = loss
        self._rng = rng

    def send_acl_data(
        self,
        sender_controller: Controller,
        destination_address: Address,
        transport: PhysicalTransport,
        data: bytes,
    ) -> None:
        """Pass one L2CAP packet on, or lose it."""
        is_value = data[2:4] == _ATT_CHANNEL and data[4] in _VALUE_OPCODES
        if not is_value or self._rng.random() >= self.loss:
            super().send_acl_data(sender_controller, destination_address, transport, data)


def quiet_controllers() -> None:
    """Simulated controllers warn of each packet that a broken connection left behind."""
    logging.getLogger("bumble.controller").setLevel(logging.CRITICAL)
