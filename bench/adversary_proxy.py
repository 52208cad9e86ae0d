"""A man in the middle: a TCP proxy between one board and its broker that speaks MQTT with QoS 1.

It bends bits of payloads, swallows messages (and acknowledges them itself), lets one overtake the
next, says messages twice, and says a board's messages again in another board's name.
"""

import asyncio
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from transports import batch

FLIP, DROP, SWAP, TWICE, CROSS, PASS = "flip", "drop", "swap", "twice", "cross", "pass"
CONNECT, PUBLISH = 1, 3
MQTT_5 = 5
_LENGTH = struct.Struct(">H")
START_S = 10.0


@dataclass(frozen=True, slots=True)
class Publish:
    """A PUBLISH packet: `flags` with its QoS, the packet id with QoS 1, MQTT 5 properties."""

    flags: int
    topic: bytes
    number: bytes
    properties: bytes
    payload: bytes

    @property
    def wire(self) -> bytes:
        """Its bytes."""
        head = _LENGTH.pack(len(self.topic)) + self.topic + self.number + self.properties
        return write_packet(PUBLISH, self.flags, head + self.payload)

    def again(self, topic: bytes, payload: bytes) -> bytes:
        """Another message with QoS 0, which asks for no answer."""
        return Publish(self.flags & ~0x0E, topic, b"", self.properties, payload).wire

    @property
    def acknowledgement(self) -> bytes:
        """What the receiver answers; nothing with QoS 0."""
        return b"\x40\x02" + self.number if self.number else b""


def write_packet(kind: int, flags: int, body: bytes) -> bytes:
    """An MQTT control packet."""
    length, left = bytearray(), len(body)
    while True:
        left, digit = divmod(left, 128)
        length.append(digit | (0x80 if left else 0))
        if not left:
            return bytes((kind << 4 | flags,)) + bytes(length) + body


def read_publish(flags: int, body: bytes, version: int) -> Publish:
    """The parts of a PUBLISH packet."""
    at = 2 + _LENGTH.unpack_from(body)[0]
    topic, number = body[2:at], b""
    if flags & 0x06:
        number, at = body[at : at + 2], at + 2
    start = at
    if version >= MQTT_5:
        size, shift = 0, 0
        while True:
            digit = body[at]
            size, shift, at = size | (digit & 0x7F) << shift, shift + 7, at + 1
            if digit < 0x80:
                break
        at += size
    return Publish(flags, topic, number, body[start:at], body[at:])


def bend(payload: bytes, rng: np.random.Generator) -> bytes:
    """A message with one bit of one of its frames flipped."""
    frames = list(batch.split(payload))
    index = int(rng.integers(len(frames)))
    frame = bytearray(frames[index])
    frame[int(rng.integers(len(frame)))] ^= 1 << int(rng.integers(8))
    frames[index] = bytes(frame)
    return batch.join(frames)


class Meddler:
    """The proxy of one board; `chances` of what it does to a message, PASS for the rest.

    `done` counts what it did: frames where they are forged, else messages. `rename` is put in the
    place of the client id of that length. `others` are boards in whose name it speaks.
    """

    def __init__(
        self,
        broker: int,
        chances: Mapping[str, float],
        seed: int,
        others: tuple[str, ...] = (),
        rename: tuple[bytes, bytes] = (b"", b""),
    ) -> None:
        self.port, self.done, self.chances = 0, Counter[str](), dict(chances)
        self._broker, self._others, self._rename = broker, others, rename
        self._rng = np.random.default_rng(seed)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> "Meddler":
        self._thread.start()
        if not self._ready.wait(START_S):
            raise RuntimeError("the proxy did not start")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S)

    @property
    def url(self) -> str:
        """Where the board believes its broker to be."""
        return f"mqtt://127.0.0.1:{self.port}"

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_broker = await asyncio.open_connection("127.0.0.1", self._broker)
        except OSError:
            writer.close()
            return
        call = _Call(self)
        ways = (
            call.pump(reader, to_broker[1], writer, is_up=True),
            call.pump(to_broker[0], writer, to_broker[1], is_up=False),
        )
        tasks = [asyncio.create_task(way) for way in ways]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for end in (writer, to_broker[1]):
            end.close()

    def draw(self) -> str:
        """What to do to a message."""
        draw = float(self._rng.random())
        for what, chance in self.chances.items():
            draw -= chance
            if draw < 0:
                return what
        return PASS

    def renamed(self, body: bytes) -> bytes:
        """A CONNECT with the other client id."""
        return body.replace(*self._rename) if self._rename[0] else body

    def meddle(self, what: str, item: Publish, *, is_up: bool) -> Iterator[bytes]:
        """The packets that leave in the place of one."""
        frames = len(batch.split(item.payload))
        if what == FLIP:
            self.done[FLIP] += 1
            yield Publish(
                item.flags, item.topic, item.number, item.properties, bend(item.payload, self._rng)
            ).wire
            return
        yield item.wire
        if what == TWICE:
            self.done[TWICE] += frames
            yield item.again(item.topic, item.payload)
        elif what == CROSS and is_up and self._others:
            self.done[CROSS] += frames
            name = self._others[int(self._rng.integers(len(self._others)))]
            root, _, _ = item.topic.rpartition(b"/")
            yield item.again(root + b"/" + name.encode(), item.payload)


class _Call:
    """One connection."""

    def __init__(self, meddler: Meddler) -> None:
        self._meddler, self._version = meddler, MQTT_5
        self._held: dict[bool, bytes] = {True: b"", False: b""}

    async def pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
        *,
        is_up: bool,
    ) -> None:
        """Carry packets one way until a side hangs up; acknowledgements of ours go `back`."""
        try:
            while True:
                first, body = await _read_packet(reader)
                answer, packets = self._handle(first, body, is_up=is_up)
                back.write(answer)
                writer.write(packets)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    def _handle(self, first: int, body: bytes, *, is_up: bool) -> tuple[bytes, bytes]:
        kind, flags = first >> 4, first & 0x0F
        if kind == CONNECT:
            self._version, body = body[6], self._meddler.renamed(body)
        held, self._held[is_up] = self._held[is_up], b""
        if kind != PUBLISH:
            return b"", write_packet(kind, flags, body) + held
        item, what = read_publish(flags, body, self._version), self._meddler.draw()
        if what == DROP:
            self._meddler.done[DROP] += 1
            return item.acknowledgement, held
        if what == SWAP and not held:
            # Until the next packet, whatever it is: at the latest a ping.
            self._meddler.done[SWAP] += 1
            self._held[is_up] = item.wire
            return b"", b""
        return b"", b"".join(self._meddler.meddle(what, item, is_up=is_up)) + held


async def _read_packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    first = (await reader.readexactly(1))[0]
    size = shift = 0
    while True:
        digit = (await reader.readexactly(1))[0]
        size, shift = size | (digit & 0x7F) << shift, shift + 7
        if digit < 0x80:
            return first, await reader.readexactly(size)
