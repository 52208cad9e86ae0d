"""Frames over a BLE connection: the protocol and a GATT end, driven in an event loop.

While both programs run, each frame arrives once and in order, over any number of reconnects:
unconfirmed frames wait for the next connection. A program that restarts loses its unsent frames,
and may receive some frames again. Nothing here is a receipt.
"""

import asyncio
import logging
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import asdict, dataclass

from ternmesh.timers import backoff_s
from transports.base import (
    Arrival,
    Busy,
    FrameTooLarge,
    Inbox,
    NotConnected,
    TransportError,
    TransportStatus,
)
from transports.ble.config import BleSettings
from transports.ble.gatt import GattEnd, GattError
from transports.ble.protocol import LENGTH, BleProtocol
from transports.ble.values import DATA_OVERHEAD, FRAME_MAX
from transports.loop_thread import LoopThread

WRITE_S = 10.0  # time-out of the stack for one value
GOODBYE_S = 2.0  # time-out of the stack in `close`

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class BleCounters:
    """Counters since the transport was made; bytes are those of values, without lower headers."""

    connects: int = 0
    values_in: int = 0
    values_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    frames_in: int = 0
    frames_out: int = 0


class BleTransport:
    """One end of a link; see `transports.base.Transport`. It is opened once.

    `end` is used in `loop`, whose owner starts and stops it, or else in a loop of our own.
    """

    def __init__(self, settings: BleSettings, end: GattEnd, loop: LoopThread | None = None) -> None:
        self.settings = settings
        self.counters = BleCounters()
        self._end = end
        self._owns_loop = loop is None
        self._loop = loop or LoopThread(f"ble-{settings.role}")
        self._rng = random.Random()
        self._protocol = BleProtocol(
            initiator=end.initiator,
            identity=self._rng.randrange(1, 2**32),
            session=self._rng.randrange(2**16),
        )
        self._lock = threading.Lock()  # for the protocol and `_unread`
        self._inbox = Inbox()
        self._unread = 0  # arrivals in the inbox
        self._bytes_told = 0  # bytes_in that arrivals have accounted for
        self._last_error = "not opened yet"
        self._begun = False  # whether the protocol has begun a session on this connection
        self._lost: str | None = None  # why the connection ended
        self._attempt = 0  # connections in a row that failed
        self._wake = asyncio.Event()  # ends the wait for work; set in the loop
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._done: Future[None] | None = None

    @property
    def mtu(self) -> int:
        """The longest frame in bytes, whatever the ATT MTU."""
        return FRAME_MAX

    @property
    def connected(self) -> bool:
        """Whether both ends have exchanged hellos."""
        return self._protocol.established

    def open(self) -> None:
        self._last_error = "not connected yet"
        if self._owns_loop:
            self._loop.start()
        self._done = self._loop.submit(self._run())

    def close(self) -> None:
        """End the connection and stop; unconfirmed frames are lost."""
        self._stopping = True
        if self._done is None:
            return
        self._loop.call(self._cancel)
        wait([self._done], GOODBYE_S)
        if self._owns_loop:
            self._loop.stop()

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """Queue frames; see `Transport.send`. The returned bytes assume that no value is lost.

        An empty queue takes more than `queue_max` bytes at once.
        """
        self.settings.check(peer)
        if wrong := [len(frame) for frame in frames if not 1 <= len(frame) <= self.mtu]:
            raise FrameTooLarge(f"a frame of {wrong[0]} bytes: it must have 1 to {self.mtu}")
        stream = sum(LENGTH.size + len(frame) for frame in frames)
        with self._lock:
            if not self._protocol.established:
                raise NotConnected(f"not connected: {self._last_error}")
            queued = self._protocol.sender.queued_bytes
            if queued and queued + stream > self.settings.queue_max:
                raise Busy(f"{queued} bytes wait for the peer: try again soon")
            self._protocol.sender.offer(frames)
            self.counters.frames_out += len(frames)
        self._loop.call(self._wake.set)
        return stream + -(-stream // (self._end.value_max - DATA_OVERHEAD)) * DATA_OVERHEAD

    def receive(self, timeout_s: float) -> Arrival | None:
        arrival = self._inbox.get(timeout_s)
        if arrival is not None:
            with self._lock:
                self._unread -= 1
                resume = self._unread == self.settings.unread_max // 2
                if resume:
                    self._protocol.set_reading(True)
            if resume:
                self._loop.call(self._wake.set)
        return arrival

    def status(self) -> TransportStatus:
        with self._lock:
            protocol = self._protocol
            return TransportStatus(
                connected=protocol.established,
                last_error=None if protocol.established else self._last_error,
                end=f"{self.settings.peer} over BLE",
                turned_s_ago=time.monotonic() - self._loop.turned_at,
                bytes_out=self.counters.bytes_out,
                refusals={protocol.refusal: protocol.refused} if protocol.refused else {},
                numbers={
                    "reconnects": max(0, self.counters.connects - 1),
                    "mtu": self.mtu,
                    "value_max": self._end.value_max,
                    "queued": len(protocol.sender),
                    "queued_bytes": protocol.sender.queued_bytes,
                    "resent": protocol.sender.resent,
                    "dropped": self._inbox.dropped,
                    **asdict(self.counters),
                },
            )

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        """Connect again and again until `close`; pauses grow until a connection has worked."""
        self._task = asyncio.current_task()
        while not self._stopping:
            try:
                await self._connection()
            except (TransportError, OSError) as error:
                ended = str(error) or type(error).__name__
            except Exception as error:  # noqa: BLE001  (this is the loop's outermost function)
                ended = f"the connection broke off: {type(error).__name__}: {error}"
                _log.debug("ble %s broke off", self.settings.role, exc_info=True)
            if self._attempt == 0 or ended != self._last_error:
                _log.warning("ble %s: %s", self.settings.role, ended)
            self._last_error = ended
            self._attempt += 1
            if not self._stopping:
                first_s, longest_s = self.settings.reconnect_min_s, self.settings.reconnect_max_s
                await asyncio.sleep(backoff_s(self._attempt - 1, first_s, longest_s, self._rng))

    async def _connection(self) -> None:
        """Run one connection until it ends, which is always an error."""
        self._lost = None
        self._begun = False
        try:
            await self._end.connect(self._on_value, self._on_disconnect)
            with self._lock:
                self._begin()
            while self._lost is None:
                await self._turn()
            raise GattError(self._lost)
        finally:
            with self._lock:
                self._protocol.disconnected()
            await self._end.disconnect()

    def _begin(self) -> None:
        """Begin a session, once: the first value may come before `connect` has returned."""
        if not self._begun:
            self._begun = True
            self._protocol.connected(time.monotonic())

    async def _turn(self) -> None:
        """Write the values that are due, or wait until there may be some."""
        self._wake.clear()
        now = time.monotonic()
        with self._lock:
            self._protocol.handle_timeout(now)
            values = self._protocol.values_to_send(self._end.value_max, now)
            due = self._protocol.next_timeout()
            failed = self._protocol.failed
        if failed is not None:
            raise GattError(failed)
        for value in values:
            if self._lost is None:
                async with asyncio.timeout(WRITE_S):
                    await self._end.write(value)
                self.counters.values_out += 1
                self.counters.bytes_out += len(value)
        if not values:
            with suppress(TimeoutError):  # The next turn finds the values that are due then.
                async with asyncio.timeout(None if due is None else due - now):
                    await self._wake.wait()

    def _on_value(self, value: bytes) -> None:
        counters = self.counters
        counters.values_in += 1
        counters.bytes_in += len(value)
        with self._lock:
            self._begin()
            before = self._protocol.established
            frames = self._protocol.receive_value(value, time.monotonic())
            if self._protocol.established and not before:
                counters.connects += 1
                self._attempt = 0
            if frames:
                self._unread += 1
                if self._unread >= self.settings.unread_max:
                    self._protocol.set_reading(False)
        if frames:
            counters.frames_in += len(frames)
            wire_bytes = counters.bytes_in - self._bytes_told
            self._bytes_told = counters.bytes_in
            self._inbox.put(Arrival(self.settings.peer, tuple(frames), wire_bytes))
        self._wake.set()

    def _on_disconnect(self, reason: str) -> None:
        self._lost = reason
        self._wake.set()
