"""An MQTT broker inside this process, on amqtt (imported here only), for the demo and for tests.

It speaks MQTT 3.1.1, admits every client and stores nothing: do not open it to a network.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any

from ternmesh.extras import installed
from transports.base import MissingExtra, TransportError
from transports.loop_thread import LoopThread

with installed("demo", "the embedded broker needs the package amqtt", MissingExtra):
    from amqtt.adapters import StreamWriterAdapter
    from amqtt.broker import Broker

ADDRESS = "127.0.0.1"  # it admits every client
START_S = 30.0  # how long a start may take on a slow board
STOP_S = 10.0
MQTT_311 = 4  # the protocol version in CONNECT
REFUSE_VERSION = bytes([0x20, 2, 0, 1])  # CONNACK: unacceptable protocol version
_LISTENER = "default"

_log = logging.getLogger(__name__)


class EmbeddedBroker:
    """A context manager that serves MQTT from a thread of its own; it is entered once."""

    def __init__(self, port: int = 0) -> None:
        self.port = port  # 0 means any free port; once entered, the one in use
        self._loop = LoopThread("embedded-broker")
        self._broker: Any = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"mqtt://{ADDRESS}:{self.port}"

    def __enter__(self) -> "EmbeddedBroker":
        # amqtt warns of each client that comes or goes.
        logging.getLogger("amqtt").setLevel(logging.CRITICAL)
        self._loop.start()
        try:
            self._loop.submit(self._start()).result(START_S)
        except Exception as error:
            self._loop.stop()
            why = str(error) or "it took too long"
            raise TransportError(f"the embedded broker did not start ({why}): name one") from error
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(TimeoutError):  # The end of the loop cancels what is left.
            self._loop.submit(self._stop()).result(STOP_S)
        self._loop.stop()

    async def _start(self) -> None:
        asyncio.get_running_loop().set_exception_handler(_note)
        self._broker = Broker(
            {
                # amqtt does not tell which port it got; a listener that we serve ourselves does.
                "listeners": {_LISTENER: {"type": "external"}},
                # No other plugin: the statistics are retained messages, and amqtt walks its list of
                # subscriptions while it sends those, which fails when a client comes meanwhile.
                "plugins": {
                    "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}
                },
            }
        )
        await self._broker.start()
        self._server = await asyncio.start_server(self._serve, ADDRESS, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:  # amqtt can leave a client open whose session only begins
            writer.transport.abort()
        await self._broker.shutdown()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._admit(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head, version = await _peek(reader)
        except asyncio.IncompleteReadError:
            return
        if version > MQTT_311:
            # amqtt waits for ever for the end of such a CONNECT, whose layout it does not know.
            writer.write(REFUSE_VERSION)
            return
        await self._broker.external_connected(
            _Replay(head, reader), StreamWriterAdapter(writer), _LISTENER
        )


async def _peek(reader: asyncio.StreamReader) -> tuple[bytes, int]:
    """The first bytes of a connection, up to the protocol version in CONNECT, and that version."""
    head = await reader.readexactly(2)
    while head[-1] & 0x80 and len(head) < 5:  # the remaining length has at most four bytes
        head += await reader.readexactly(1)
    head += await reader.readexactly(7)  # the length of the name, the name MQTT, the version
    return head, head[-1]


class _Replay:
    """A reader for amqtt: `head`, which was read before, and then the rest of `reader`."""

    def __init__(self, head: bytes, reader: asyncio.StreamReader) -> None:
        self._head = head
        self._reader = reader

    async def read(self, n: int = -1) -> bytes:
        if n < 0:
            n = len(self._head)
            return await self.read(n) + await self._reader.read()
        taken = self._head[:n]
        self._head = self._head[n:]
        return taken if len(taken) == n else taken + await self._reader.readexactly(n - len(taken))

    def feed_eof(self) -> None:
        self._reader.feed_eof()


def _note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of a task of the broker; mostly a client that vanished."""
    _log.debug("embedded broker: %s: %r", context.get("message"), context.get("exception"))
