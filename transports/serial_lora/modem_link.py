"""One connection to a modem: a dialect on an open port, until one of them fails."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ternmesh.errors import WireError
from ternmesh.timers import RateLimiter
from transports.serial_lora.airtime_budget import AirtimeBudget
from transports.serial_lora.coding import PrefixCoding, RadioMessage
from transports.serial_lora.dialect import (
    Broken,
    Dialect,
    Event,
    Noise,
    Notice,
    PayloadRefused,
    Received,
    Sent,
    Write,
)
from transports.serial_lora.port import SerialPort
from transports.serial_lora.send_queue import QueuedPayload, SendQueue
from transports.serial_lora.settings import SerialLoraSettings

WAIT_S = 1.0  # the longest that the thread sleeps; arrivals and sends wake it
STALLED_S = 2.0  # an incomplete message is given up after so long without bytes
TRIES_MAX = 3  # offers of one frame to the modem
REASONS_MAX = 32  # different refusals that are counted apart

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SerialLoraCounters:
    """Counters since the transport was made; bytes are those of payloads on the air."""

    connects: int = 0
    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    airtime_us: int = 0  # of all payloads that were handed to the modem
    airtime_left_us: int | None = None  # of the hour, at the last frame; None without a limit
    lost: int = 0  # frames that waited or were on their way when the modem went away
    too_long: int = 0  # frames of more airtime than is ever granted
    refused: int = 0  # frames that the modem has not sent
    foreign: int = 0  # payloads for other receivers, or from unknown senders
    malformed: int = 0  # payloads that do not decode, and noise on the line
    refusals: dict[str, int] = field(default_factory=dict)  # frames that were not sent, by reason
    notice: str = ""  # the newest of the modem to its owner


class ModemLink:
    """Runs in the thread of the transport; `take` is called with each message."""

    def __init__(
        self,
        settings: SerialLoraSettings,
        dialect: Dialect[Any],
        coding: PrefixCoding,
        queue: SendQueue,
        counters: SerialLoraCounters,
        budget: AirtimeBudget | None,
        take: Callable[[RadioMessage, Received], None],
    ) -> None:
        self.dialect = dialect
        self.ready_s = 0.0  # how long the modem was set up
        self.turned_at = time.monotonic()  # when the thread last worked on it
        self._settings = settings
        self._coding = coding
        self._queue = queue
        self._counters = counters
        self._budget = budget
        self._take = take
        self._in_flight: QueuedPayload | None = None
        self._payload = b""  # that of `_in_flight`, encoded
        self._hold_until = 0.0  # nothing is offered to the modem earlier
        self._stalled_at = inf  # when an incomplete message is given up
        self._broken = ""  # why the modem must be set up anew
        self._notices = RateLimiter(60.0, 3600.0)
        self.ready_at: float | None = None  # when the modem was set up

    @property
    def ready(self) -> bool:
        """Whether frames can be sent."""
        return self.ready_at is not None and self.dialect.ready

    def run(self, port: SerialPort, stop: threading.Event) -> str:
        """Work until `stop`, or until the modem fails: why it did. PortError if the port fails."""
        try:
            self._handle(port, self.dialect.start(time.monotonic()))
            while not (stop.is_set() or self._broken):
                self.turned_at = time.monotonic()
                self._note_ready(self.turned_at)
                self._offer(port, time.monotonic())
                data = port.read(self._wait_s(time.monotonic()))
                now = time.monotonic()
                if data:
                    self._stalled_at = now + STALLED_S
                    self._handle(port, self.dialect.receive_bytes(data, now))
                elif self._stalled_at <= now:
                    self._stalled_at = inf
                    self._handle(port, self.dialect.line_idle(now))
                if (due := self.dialect.deadline) is not None and due <= now:
                    self._handle(port, self.dialect.handle_timeout(now))
            return self._broken
        finally:
            if self.ready_at is not None:
                self.ready_s = time.monotonic() - self.ready_at
            self.ready_at = None
            flying = self._in_flight is not None and self._in_flight.payload is None
            self._counters.lost += self._queue.clear() + flying

    def _wait_s(self, now: float) -> float:
        """Seconds until something is due; the answer of a busy modem ends the wait earlier."""
        due = min(now + WAIT_S, self._stalled_at)
        if self.dialect.deadline is not None:
            due = min(due, self.dialect.deadline)
        if self._queue and self.dialect.idle:
            due = min(due, self._hold_until)
        return max(0.0, due - now)

    def _note_ready(self, now: float) -> None:
        if self.dialect.ready and self.ready_at is None:
            self.ready_at = now
            self._counters.connects += 1
            _log.info("%s: the %s modem is connected", self._settings.port, self._settings.dialect)

    def _offer(self, port: SerialPort, now: float) -> None:
        """Hand the next frame to the modem, if it may leave now."""
        control = self._coding.to_send()
        if control and len(self._queue) <= self._settings.queue_max:
            self._queue.put_back([QueuedPayload(0, b"", payload) for payload in control])
        item = self._queue.first()
        if item is None or not self.dialect.idle or now < self._hold_until:
            return
        payload = item.payload or self._coding.encode(item.to, item.frame)
        airtime_us = self.dialect.airtime_us(len(payload))
        wait_s = 0.0
        if self._budget:
            wait_s = self._budget.may_send(airtime_us)
            self._counters.airtime_left_us = self._budget.left_us
        if wait_s == inf:  # The modem's own estimate of the airtime exceeds the limit of an hour.
            self._queue.take()
            self._counters.too_long += 1
            return
        if wait_s > 0:
            self._hold_until = now + wait_s
            return
        self._queue.take()
        self._in_flight = item
        self._payload = payload
        self._counters.airtime_us += airtime_us
        self._handle(port, self.dialect.send(payload, now))

    def _handle(self, port: SerialPort, events: list[Event]) -> None:
        for event in events:
            match event:
                case Write(data):
                    port.write(data)
                case Received(payload):
                    self._receive(payload, event)
                case Sent():
                    self._sent()
                case PayloadRefused():
                    self._refused(event)
                case Noise():
                    self._counters.malformed += 1
                case Notice(text):
                    self._counters.notice = text
                    if self._notices.allow("", time.monotonic()):
                        _log.warning("%s says: %s", self._settings.port, text)
                case Broken(reason):
                    self._broken = f"{self._settings.port}: {reason}"

    def _receive(self, payload: bytes, event: Received) -> None:
        try:
            message = self._coding.decode(payload, time.monotonic() * self._settings.speed)
        except WireError:
            self._counters.malformed += 1
            return
        if message is not None:
            self._take(message, event)

    def _sent(self) -> None:
        if self._in_flight is not None and self._in_flight.payload is None:
            self._counters.frames_out += 1
            self._counters.bytes_out += len(self._payload)
        self._in_flight = None

    def _refused(self, refused: PayloadRefused) -> None:
        """Offer the frame again where the modem may take it; its airtime is then reserved anew."""
        item = self._in_flight
        self._in_flight = None
        if item is None:
            return
        item.tries += 1
        if refused.garbled:
            self._coding.refused(self._payload)
        if refused.again_in_s is not None and item.payload is None and item.tries < TRIES_MAX:
            self._hold_until = time.monotonic() + refused.again_in_s
            self._queue.put_back([item])
            return
        counts = self._counters.refusals
        is_listed = refused.reason in counts or len(counts) < REASONS_MAX
        key = refused.reason if is_listed else "(others)"
        counts[key] = counts.get(key, 0) + 1
        if item.payload is None:
            self._counters.refused += 1
            if self._notices.allow(key, time.monotonic()):
                _log.warning("%s has not sent a frame: %s", self._settings.port, refused.reason)
