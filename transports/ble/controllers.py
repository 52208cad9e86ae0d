"""Simulated Bluetooth controllers on one medium, each behind HCI over TCP.

Separate programs meet through them over whole host stacks, without hardware. A controller begins
anew with each program that connects to it, and is gone with it, as one that is plugged in and out:
who was connected to it hears so.
"""

import asyncio
import functools
import logging
import random
from contextlib import suppress

from transports.ble.bumble_stack import (
    BaseBumbleError,
    Controller,
    HCI_ErrorCode,
    StreamPacketSink,
    StreamPacketSource,
    TerminateInd,
)
from transports.ble.loop_thread import LoopThread
from transports.ble.virtual import LossyLink

START_S = 10.0
PORT_MAX = 65_535
ADDRESS = "127.0.0.1"

_log = logging.getLogger(__name__)


class VirtualControllers:
    """`count` controllers at `ports`, from the first free one or `port` on; use it as a context.

    The medium loses the share `loss` of all values. ValueError for ports that cannot be, OSError
    on entering where one is not free.
    """

    def __init__(
        self, count: int, *, loss: float = 0.0, rng: random.Random | None = None, port: int = 0
    ) -> None:
        if not 0 <= port <= PORT_MAX - count + 1:
            raise ValueError(f"ports {port} to {port + count - 1}: none is above {PORT_MAX}")
        self.ports: list[int] = []
        self.link = LossyLink(rng or random.Random())
        self.link.loss = loss
        self._wanted = [port + index if port else 0 for index in range(count)]
        self._loop = LoopThread("ble-controllers")
        self._servers: list[asyncio.Server] = []
        self._sockets: set[_Socket] = set()

    @property
    def names(self) -> list[str]:
        """What bumble calls them, once they are there."""
        return [f"tcp-client:{ADDRESS}:{port}" for port in self.ports]

    def __enter__(self) -> "VirtualControllers":
        # Simulated controllers warn of each packet that a broken connection left behind.
        logging.getLogger("bumble.controller").setLevel(logging.CRITICAL)
        self._loop.start()
        try:
            self._loop.submit(self._build()).result(START_S)
        except OSError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call(self._close)
        self._loop.stop()

    def unplug(self, index: int) -> None:
        """The program at controller `index` loses it; it may connect again."""
        self._loop.call(lambda: self._hang_up(index))

    def _hang_up(self, index: int) -> None:
        for end in [end for end in self._sockets if end.index == index]:
            end.close()

    def _close(self) -> None:
        for server in self._servers:
            server.close()
        for end in list(self._sockets):
            end.close()

    async def _build(self) -> None:
        loop = asyncio.get_running_loop()
        for index, wanted in enumerate(self._wanted):
            factory = functools.partial(_Socket, index, self.link, self._sockets)
            server = await loop.create_server(factory, ADDRESS, wanted)
            self._servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])


class _Socket(StreamPacketSource):
    """The controller of one program, in `sockets` for as long as that is connected."""

    def __init__(self, index: int, link: LossyLink, sockets: "set[_Socket]") -> None:
        super().__init__()
        self.index = index
        self._link, self._sockets = link, sockets
        self._sink: StreamPacketSink | None = None
        self._controller: Controller | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A program took this controller: it begins."""
        assert isinstance(transport, asyncio.WriteTransport)
        _log.info("controller %d is in use", self.index)
        self._sockets.add(self)
        self._sink = StreamPacketSink(transport)
        self._controller = Controller(f"C{self.index}", self, self._sink, self._link)

    def connection_lost(self, exc: Exception | None) -> None:
        """The program is gone, and the controller with it."""
        _log.info("controller %d is free: %s", self.index, exc or "its program closed it")
        self._sockets.discard(self)
        controller, self._controller = self._controller, None
        if controller is None:
            return
        controller.le_legacy_advertiser.stop()
        for advertising in controller.advertising_sets.values():
            advertising.stop()
        for connection in controller.le_connections.values():
            with suppress(BaseBumbleError):  # the other end is gone, too
                reason = HCI_ErrorCode.CONNECTION_TIMEOUT_ERROR
                connection.send_ll_control_pdu(TerminateInd(reason))
        self._link.remove_controller(controller)

    def close(self) -> None:
        """Take the controller away from the program."""
        if self._sink is not None:
            self._sink.close()
