"""An MQTT broker inside this process, on amqtt (imported here only), for the demo and for tests.

It speaks MQTT 3.1.1, lets everybody in and keeps nothing: do not open it to a network.
"""

import asyncio
import logging
import threading
from types import TracebackType
from typing import Any

from transports.base import MissingExtra, TransportError

try:
    from amqtt.adapters import StreamWriterAdapter
    from amqtt.broker import Broker
except ImportError as error:
    raise MissingExtra(
        "the embedded broker needs the package amqtt: pip install 'ternmesh[demo]'"
    ) from error

START_S = 30.0  # how long a start may take on a slow board
STOP_S = 10.0
MQTT_311 = 4  # the protocol version in CONNECT
REFUSE_VERSION = bytes([0x20, 2, 0, 1])  # CONNACK: unacceptable protocol version
_LISTENER = "default"

_log = logging.getLogger(__name__)


class EmbeddedBroker:
    """A context manager that serves MQTT from a thread of its own; it is entered once."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        self.port = port  # 0 means any free port; once entered, the one in use
        self._started = threading.Event()
        self._error: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="embedded-broker", daemon=True)

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"mqtt://{self.host}:{self.port}"

    def __enter__(self) -> "EmbeddedBroker":
        self._thread.start()
        if not self._started.wait(START_S) or self._error:
            raise TransportError(
                f"the embedded broker did not start on {self.host}:{self.port} "
                f"({self._error or 'it took too long'}): choose another port or name a broker"
            )
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self._loop and self._stop and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_S)

    def _run(self) -> None:
        amqtt_log = logging.getLogger("amqtt")
        level = amqtt_log.level
        amqtt_log.setLevel(logging.CRITICAL)  # It warns of each client that comes or goes.
        try:
            asyncio.run(self._serve())
        except Exception as error:  # noqa: BLE001  (the outermost loop of this thread)
            self._error = error
            _log.error("the embedded broker stopped: %s", error)
        finally:
            amqtt_log.setLevel(level)
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(_note)
        broker = Broker(
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
        await broker.start()

        async def serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                head, version = await _peek(reader)
            except asyncio.IncompleteReadError:
                writer.close()
                return
            if version > MQTT_311:
                # amqtt waits for ever for the end of such a CONNECT, whose layout it does not know.
                writer.write(REFUSE_VERSION)
                writer.close()
                return
            await broker.external_connected(
                _Replay(head, reader), StreamWriterAdapter(writer), _LISTENER
            )

        server = await asyncio.start_server(serve_client, self.host, self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        await broker.shutdown()


async def _peek(reader: asyncio.StreamReader) -> tuple[bytes, int]:
    """The first bytes of a connection, up to the protocol version in CONNECT, and that version."""
    head = await reader.readexactly(2)
    while head[-1] & 0x80 and len(head) < 5:  # the remaining length has at most four bytes
        head += await reader.readexactly(1)
    head += await reader.readexactly(7)  # the length of the name, the name MQTT, the version
    return head, head[-1]


class _Replay:
    """What amqtt reads from: `head`, which was read before, and then the rest of `reader`."""

    def __init__(self, head: bytes, reader: asyncio.StreamReader) -> None:
        self._head = head
        self._reader = reader

    async def read(self, n: int = -1) -> bytes:
        """The next `n` bytes, or all until the end."""
        if n < 0:
            n = len(self._head)
            return await self.read(n) + await self._reader.read()
        taken, self._head = self._head[:n], self._head[n:]
        return taken if len(taken) == n else taken + await self._reader.readexactly(n - len(taken))

    def feed_eof(self) -> None:
        """Let reads end."""
        self._reader.feed_eof()


def _note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what a task of the broker left behind; mostly a client that vanished."""
    _log.debug("embedded broker: %s: %r", context.get("message"), context.get("exception"))
