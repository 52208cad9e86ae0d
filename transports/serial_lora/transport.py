"""Frames over a LoRa modem on a serial port.

Nothing here is a receipt: a modem reports that it has sent, not that a receiver got the frame. No
frame leaves before `budget` grants its airtime.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import inf
from typing import Any

from ternmesh.errors import WireError
from ternmesh.timers import RateLimiter, backoff_s
from transports.base import Arrival, Inbox, NotConnected, Spare, TransportStatus, check_sizes
from transports.serial_lora.airtime_budget import AirtimeBudget
from transports.serial_lora.coding import PREFIX, RadioMessage, read_payload, write_payload
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
from transports.serial_lora.ebyte import Ebyte
from transports.serial_lora.meshcore import Meshcore
from transports.serial_lora.meshtastic import Meshtastic
from transports.serial_lora.port import PortError, SerialPort
from transports.serial_lora.rnode import Rnode
from transports.serial_lora.send_queue import QueuedFrame, SendQueue, Waker
from transports.serial_lora.settings import MESHES, SerialLoraSettings

WAIT_S = 1.0  # the longest that the thread sleeps; arrivals and sends wake it
STALLED_S = 2.0  # an incomplete message is given up after so long without bytes
TRIES_MAX = 3  # offers of one frame to the modem
UNHEARD = 50  # frames that are sent without hearing any, before that is remarked
REASONS_MAX = 32  # different refusals that are counted apart


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
        queue: SendQueue,
        counters: SerialLoraCounters,
        budget: AirtimeBudget | None,
        take: Callable[[RadioMessage, Received], None],
    ) -> None:
        self.dialect = dialect
        self.ready_s = 0.0  # how long the modem was set up
        self.turned_at = time.monotonic()  # when the thread last worked on it
        self._settings = settings
        self._queue = queue
        self._counters = counters
        self._budget = budget
        self._take = take
        self._in_flight: QueuedFrame | None = None
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
            self._counters.lost += self._queue.clear() + (self._in_flight is not None)

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
        item = self._queue.first()
        if item is None or not self.dialect.idle or now < self._hold_until:
            return
        message = RadioMessage(item.to, self._settings.own_address, item.frame)
        payload = write_payload(message)
        airtime_us = self.dialect.airtime_us(len(payload))
        wait_s = 0.0
        if self._budget:
            wait_s = self._budget.may_send(airtime_us)
            self._counters.airtime_left_us = self._budget.left_us
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
                case Noise(is_foreign):
                    self._counters.foreign += is_foreign
                    self._counters.malformed += not is_foreign
                case Notice(text):
                    self._counters.notice = text
                    if self._notices.allow("", time.monotonic()):
                        _log.warning("%s says: %s", self._settings.port, text)
                case Broken(reason):
                    self._broken = f"{self._settings.port}: {reason}"

    def _receive(self, payload: bytes, event: Received) -> None:
        try:
            message = read_payload(payload)
        except WireError:
            self._counters.malformed += 1
            return
        self._take(message, event)

    def _sent(self) -> None:
        if self._in_flight is not None:
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
        if refused.again_in_s is not None and item.tries < TRIES_MAX:
            self._hold_until = time.monotonic() + refused.again_in_s
            self._queue.put_back(item)
            return
        counts = self._counters.refusals
        is_listed = refused.reason in counts or len(counts) < REASONS_MAX
        key = refused.reason if is_listed else "(others)"
        counts[key] = counts.get(key, 0) + 1
        self._counters.refused += 1
        if self._notices.allow(key, time.monotonic()):
            _log.warning("%s has not sent a frame: %s", self._settings.port, refused.reason)


_DIALECTS: dict[str, Callable[[SerialLoraSettings], Dialect[Any]]] = {
    "ebyte": Ebyte,
    "rnode": Rnode,
    "meshcore": Meshcore,
}

_log = logging.getLogger(__name__)


def new_dialect(settings: SerialLoraSettings, rng: random.Random) -> Dialect[Any]:
    if settings.dialect == "meshtastic":
        return Meshtastic(settings, rng)
    return _DIALECTS[settings.dialect](settings)


class SerialLoraTransport:
    """One end of a fleet on a radio; see `transports.base.Transport`. It is opened once.

    `frame_us_max`: the longest legal airtime of a frame, with all that the modem adds.
    """

    def __init__(
        self,
        settings: SerialLoraSettings,
        budget: AirtimeBudget | None = None,
        frame_us_max: int | None = None,
    ) -> None:
        self.settings = settings
        self.counters = SerialLoraCounters()
        self._budget = budget
        self._frame_us_max = frame_us_max
        self._rng = random.Random()
        self._inbox = Inbox()
        self._queue = SendQueue(settings.queue_max)
        self._dialect = new_dialect(settings, self._rng)
        self._link: ModemLink | None = None
        self._signal: dict[str, dict[str, float | None]] = {}  # of each peer's last frame
        self._last_error = "not opened yet"
        self._sent_at_arrival = 0  # frames
        self._waker: Waker | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="serial-lora", daemon=True)

    @cached_property
    def mtu(self) -> int:
        """The longest frame in bytes, as all shorter ones may leave, too; 0 for none. Constant."""
        longest = self._dialect.payload_max - PREFIX
        if self._frame_us_max is None:
            return longest
        sizes = range(1, longest + 1)  # a shorter one may take longer: it is signed
        return next((n - 1 for n in sizes if self.airtime_us(n) > self._frame_us_max), longest)

    @property
    def connected(self) -> bool:
        """Whether the modem is connected and set up."""
        link = self._link
        return link is not None and link.ready

    def airtime_us(self, frame_bytes: int) -> int:
        """The time on air of a frame, in microseconds."""
        return self._dialect.airtime_us(PREFIX + frame_bytes)

    def spare(self) -> Spare | None:
        """See `transports.base.SpareTransport`."""
        if not self.connected or len(self._queue):
            return None
        duty = self._budget.duty if self._budget is not None else 1.0
        seconds = self.airtime_us(self.mtu) / 1e6 / self.settings.speed
        return Spare(self.mtu, seconds / duty)

    def open(self) -> None:
        """Start the thread, which opens the port, again after each failure, until `close`."""
        self._last_error = f"{self.settings.port} is not open yet"
        self._waker = Waker()
        self._thread.start()

    def close(self) -> None:
        """Stop; frames that the modem has not taken are lost."""
        self._stop.set()
        if self._waker is not None:
            self._waker.wake()
            self._thread.join(2 * self.settings.write_timeout_s)  # By then a stuck write ends.

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """Queue frames for the modem; see `Transport.send`. UnknownPeer: it has no address."""
        to = self.settings.address(peer)
        if not self.connected or self._waker is None:
            raise NotConnected(f"not connected: {self._why_not()}")
        check_sizes(frames, self.mtu)
        self._queue.offer([QueuedFrame(to, bytes(frame)) for frame in frames])
        self._waker.wake()
        return sum(PREFIX + len(frame) for frame in frames)

    def receive(self, timeout_s: float) -> Arrival | None:
        return self._inbox.get(timeout_s)

    def status(self) -> TransportStatus:
        link = self._link
        numbers = asdict(self.counters)
        refusals, notice = numbers.pop("refusals"), numbers.pop("notice")
        return TransportStatus(
            connected=self.connected,
            last_error=None if self.connected else self._why_not(),
            end=f"the {self.settings.dialect} modem at {self.settings.port}",
            turned_s_ago=time.monotonic() - link.turned_at if link else 0.0,
            bytes_out=self.counters.bytes_out,
            airtime_us=self.counters.airtime_us,
            airtime_left_us=self.counters.airtime_left_us,
            signal=dict(self._signal),
            refusals=refusals,
            remarks=(*((f"it says: {notice}",) if notice else ()), *self._unheard()),
            numbers={
                "reconnects": max(0, self.counters.connects - 1),
                "queued": len(self._queue),
                "dropped": self._inbox.dropped,
                "mtu": self.mtu,
                **numbers,
            },
        )

    def _unheard(self) -> tuple[str, ...]:
        """A remark where much has left and nothing came."""
        sent = self.counters.frames_out - self._sent_at_arrival
        if self.settings.dialect not in MESHES or sent < UNHEARD:
            return ()
        return (f"{sent} frames have left since one came: a router of the mesh may limit us",)

    def _why_not(self) -> str:
        is_anew = self._link is not None and self._link.ready_at is not None
        return f"{self.settings.port}: its modem is set up again" if is_anew else self._last_error

    def _run(self) -> None:
        """Set the modem up again and again until `close`; pauses grow until it was long ready.

        The port is opened anew only where it fails: many modems restart when it is opened, and are
        deaf for seconds.
        """
        assert self._waker is not None
        settings = self.settings
        port: SerialPort | None = None
        attempt = 0
        before = ""  # why the attempt before has failed
        while not self._stop.is_set():
            self._dialect = new_dialect(settings, self._rng)
            self._link = link = ModemLink(
                settings, self._dialect, self._queue, self.counters, self._budget, self._take
            )
            try:
                if port is None:
                    path, baud, timeout_s = settings.port, settings.baud, settings.write_timeout_s
                    lines = settings.dtr, settings.rts
                    port = SerialPort(path, baud, timeout_s, self._waker, lines)
                    self._last_error = f"{path} is open, its modem has not answered yet{before}"
                ended = link.run(port, self._stop)
            except Exception as error:  # noqa: BLE001  (this is the thread's outermost loop)
                is_known = isinstance(error, PortError)
                ended = str(error) if is_known else f"the modem's thread failed: {error!r}"
                _log.debug("serial radio %s failed", settings.port, exc_info=True)
                if port is not None:
                    port.close()
                port = None
            self._report(ended)
            before = f"; before: {ended}"
            attempt = 0 if link.ready_s >= settings.reconnect_max_s else attempt + 1
            first_s, longest_s = settings.reconnect_min_s, settings.reconnect_max_s
            self._stop.wait(backoff_s(attempt - 1, first_s, longest_s, self._rng))
        if port is not None:
            port.close()
        self._waker.close()
        if self._budget is not None:
            self._budget.close()

    def _report(self, sentence: str) -> None:
        if sentence != self._last_error and not self._stop.is_set():
            _log.warning("serial radio: %s", sentence)
        self._last_error = sentence

    def _take(self, message: RadioMessage, received: Received) -> None:
        """Put a frame for us in the inbox; a radio also receives frames for others."""
        peer = self.settings.peer(message.to, message.sender)
        if peer is None:
            self.counters.foreign += 1
            return
        self.counters.frames_in += 1
        self._sent_at_arrival = self.counters.frames_out
        self.counters.bytes_in += len(received.payload)
        if received.rssi_dbm is not None:
            self._signal[peer] = {"rssi_dbm": received.rssi_dbm, "snr_db": received.snr_db}
        self._inbox.put(Arrival(peer, (message.frame,), len(received.payload)))
