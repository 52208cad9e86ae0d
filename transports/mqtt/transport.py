"""Frames over an MQTT broker, with QoS 1.

A PUBACK reports that the broker has a message, not that anyone has read or stored it, so nothing
here is a receipt: the protocol above sends again.
"""

import logging
from collections.abc import Sequence

from ternmesh.errors import WireError
from ternmesh.wire.frame import SEALED_MIN
from transports import batch
from transports.base import Arrival, Inbox, NameTaken, NotConnected, Spare, check_sizes
from transports.mqtt.client import BrokerClient
from transports.mqtt.settings import BrokerLimits, MqttSettings, message_max, mtu

FRAMES_MAX = 1024  # of one arrival

_log = logging.getLogger(__name__)


class MqttTransport(BrokerClient):
    """One end of a fleet on a broker; see `transports.base.Transport`. It is opened once."""

    def __init__(self, settings: MqttSettings) -> None:
        super().__init__(settings)
        self._inbox = Inbox()

    @property
    def mtu(self) -> int:
        """The longest frame in bytes; the limits of a broker may change it."""
        return mtu(self.settings, self._limits)

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """Publish frames; see `Transport.send`. ValueError for an unknown peer."""
        topic = self.settings.topic(peer)
        connection = self._connection
        if connection is None or not connection.ready:
            raise NotConnected(f"not connected: {self._last_error}")
        check_sizes(frames, self.mtu)
        groups = batch.fill(frames, message_max(self.settings, self._limits))
        messages = [batch.join(group) for group in groups]
        connection.offer(topic, messages)
        size = sum(map(len, messages))
        self.counters.messages_out += len(messages)
        self.counters.frames_out += len(frames)
        self.counters.bytes_out += size
        return size

    def receive(self, timeout_s: float) -> Arrival | None:
        """The next arrival, or None after `timeout_s`.

        NameTaken where an older process has our name and this one has just started.
        """
        if self._taken:
            raise NameTaken(self._taken)
        return self._inbox.get(timeout_s)

    def spare(self) -> Spare | None:
        """See `transports.base.SpareTransport`."""
        connection = self._connection
        is_idle = connection is not None and connection.ready and connection.load() == (0, 0)
        return Spare(self.mtu) if is_idle else None

    def _numbers(self) -> dict[str, int]:
        return {
            "dropped": self._inbox.dropped,
            "mtu": self.mtu,
            "message_max": message_max(self.settings, self._limits),
        }

    def _learn(self, limits: BrokerLimits) -> None:
        super()._learn(limits)
        if self.mtu == 0:
            _log.error("%s limits packets to less than any frame: %s", self.settings.broker, limits)

    def _take(self, topic: str, payload: bytes) -> None:
        """Put an arrival in the inbox; a malformed message is counted, never raised."""
        try:
            peer = self.settings.peer(topic)
            frames = batch.split(payload, SEALED_MIN)
        except (ValueError, WireError) as error:
            self.counters.malformed += 1
            _log.debug("mqtt %s: dropped a malformed message: %s", self.settings.role, error)
            return
        self.counters.messages_in += 1
        self.counters.frames_in += len(frames)
        self.counters.bytes_in += len(payload)
        # In parts, as a driver takes whole arrivals: 256 KiB hold 15,420 of the shortest frames.
        for at in range(0, len(frames), FRAMES_MAX):
            part = frames[at : at + FRAMES_MAX]
            wire_bytes = sum(map(len, part)) + batch.OVERHEAD * len(part)
            self._inbox.put(Arrival(peer, part, wire_bytes))
