"""One end on a broker that connects and reconnects by itself, in a thread of its own.

Each connection gets a new, empty paho client, since an old one would repeat a message that the
broker refuses without end.
"""

import logging
import math
import random
import secrets
import threading
import time
from dataclasses import asdict, replace

from transports.base import TransportStatus
from transports.mqtt.connection import GOODBYE_S, MqttConnection, MqttCounters
from transports.mqtt.settings import BrokerLimits, MqttSettings, Pauses, ProtocolChoice, keepalive_s
from transports.mqtt.tls import explain

YOUNG_S = 120.0  # a process that is younger gives its name up to an older one
TAKEN_S = 3600.0  # how long it then leaves that name alone
SHORT_MAX = 3  # short connections in a row that suggest another process of our name
REMARK_S = 3600.0  # how long that is shown

_log = logging.getLogger(__name__)


class BrokerClient:
    """What every end on a broker shares; `_take` gets each message. It is opened once."""

    def __init__(self, settings: MqttSettings) -> None:
        self.settings = settings
        self.counters = MqttCounters()
        self._rng = random.Random()
        self._choice = ProtocolChoice(settings.protocol)
        self._limits = BrokerLimits()
        self._connection: MqttConnection | None = None
        self._last_error = "not opened yet"
        self._opened_at = math.inf
        self._remark, self._remark_until = "", 0.0  # of another process with our name
        self._taken = ""  # why an older process keeps our name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"mqtt-{settings.role}", daemon=True)

    @property
    def connected(self) -> bool:
        """Whether the broker has accepted the connection and our subscriptions."""
        connection = self._connection
        return connection is not None and connection.ready

    def open(self) -> None:
        """Start the network thread, which connects and reconnects until `close`."""
        self._last_error = f"not connected to {self.settings.broker} yet"
        self._opened_at = time.monotonic()
        self._thread.start()

    def close(self) -> None:
        """Disconnect and stop; messages that the broker has not acknowledged are lost."""
        self._stop.set()
        if connection := self._connection:
            connection.leave()
        if self._thread.ident is not None:
            self._thread.join(2 * GOODBYE_S)  # A thread that still connects ends by itself.

    def status(self) -> TransportStatus:
        connection = self._connection
        queued, in_flight = connection.load() if connection else (0, 0)
        is_ready = connection is not None and connection.ready
        protocol = f" with MQTT {connection.protocol}" if connection and is_ready else ""
        # No watchdog waits for an end whose name is taken.
        turned_at = time.monotonic() if connection is None or self._taken else connection.turned_at
        return TransportStatus(
            connected=self.connected,
            last_error=None if self.connected else self._last_error,
            end=f"{self.settings.broker}{protocol}",
            turned_s_ago=time.monotonic() - turned_at,
            bytes_out=self.counters.bytes_out,
            remarks=(self._remark,) if time.monotonic() < self._remark_until else (),
            numbers={
                "reconnects": max(0, self.counters.connects - 1),
                "queued": queued,
                "in_flight": in_flight,
                **self._numbers(),
                **asdict(self._limits),
                **asdict(self.counters),
            },
        )

    def _numbers(self) -> dict[str, int]:
        """Further numbers of the status."""
        return {}

    def _learn(self, limits: BrokerLimits) -> None:
        """The limits that the broker announced."""
        self._limits = limits

    def _take(self, topic: str, payload: bytes) -> None:
        """A message that arrived, in the network thread."""
        raise NotImplementedError

    def _run(self) -> None:
        pauses = Pauses(self.settings)
        settings = self.settings
        forget = False
        while not self._stop.is_set():
            self._connection = connection = MqttConnection(
                settings,
                self._choice.current,
                self.counters,
                self._learn,
                self._take,
                forget=forget,
            )
            try:
                connection.run(self._stop, keepalive_s(self.settings, self._limits))
            except OSError as error:
                broker = str(self.settings.broker)
                connection.ended = explain(error, broker, self.settings.tls_files)
            except Exception as error:  # noqa: BLE001  (this is the thread's outermost loop)
                connection.ended = f"the connection broke off: {type(error).__name__}: {error}"
                _log.debug("mqtt %s broke off", self.settings.role, exc_info=True)
            hurry = connection.reached and self._choice.ended(
                accepted=connection.accepted, refused=connection.refused_protocol
            )
            pauses.ended(connection.ready_s, taken_over=connection.taken_over)
            self._report(connection, logging.INFO if hurry else logging.WARNING, pauses.short)
            if self._stop.is_set():
                break
            if pauses.short > SHORT_MAX and settings == self.settings:
                # Where a stranger takes our client id again and again, it cannot take this one.
                client_id = f"{settings.identity}-{secrets.token_hex(8)}"
                settings = replace(settings, client_id=client_id)
                self._remark_until = math.inf  # nobody sees any more whether the other one ends
                _log.warning("mqtt %s: goes on as %s", settings.role, client_id)
            # The broker would send what we did not take again; and nobody asks for what it keeps
            # for a random client id once this process has ended.
            forget = connection.unwanted or settings != self.settings
            if connection.taken_over and time.monotonic() < self._opened_at + YOUNG_S:
                self._taken = connection.ended
                self._stop.wait(TAKEN_S)  # a gateway goes on: the board may leave the network
                self._taken, self._opened_at = "", time.monotonic()
            if not hurry:
                self._stop.wait(pauses.next_s(self._rng))

    def _report(self, connection: MqttConnection, level: int, short: int) -> None:
        ended = connection.ended or f"{self.settings.broker} closed the connection"
        if short >= SHORT_MAX or connection.taken_over:
            self._remark = f"is there another process {self.settings.identity}? Stop or rename one"
            ended += "" if connection.taken_over else f"; {self._remark}"  # not every broker tells
            self._remark_until = max(self._remark_until, time.monotonic() + REMARK_S)
        if not self._stop.is_set() and (connection.accepted or ended != self._last_error):
            _log.log(level, "mqtt %s: %s", self.settings.role, ended)
        self._last_error = ended
