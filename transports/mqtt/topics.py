"""Plain messages on any topics of a broker: no frames, no fleet.

Messages are sent with QoS 1, without a session at the broker: what others publish while this end
is away is lost.
"""

import secrets
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from transports.base import Busy, NotConnected
from transports.mqtt.client import BrokerClient
from transports.mqtt.settings import MqttSettings

TOPIC_BYTES_MAX = 1024
OVERHEAD = 12  # the most bytes of a PUBLISH packet besides topic and payload


def check_topic(topic: str, *, is_filter: bool = False) -> str:
    """`topic` if messages may be published on it; a filter may have the wildcards + and #.

    ValueError with a sentence otherwise.
    """
    levels = topic.split("/")
    wild = [at for at, level in enumerate(levels) if "+" in level or "#" in level]
    if not 0 < len(topic.encode(errors="replace")) <= TOPIC_BYTES_MAX or "\0" in topic:
        raise ValueError(f"topic {topic!r:.100} must have 1 to {TOPIC_BYTES_MAX} bytes, none of 0")
    if wild and not is_filter:
        raise ValueError(f"topic {topic!r} has + or #: only subscriptions may have them")
    for at in wild:
        if levels[at] not in ("+", "#") or (levels[at] == "#" and at + 1 < len(levels)):
            raise ValueError(f"topic {topic!r}: + stands alone between slashes, # alone at the end")
    return topic


@dataclass(frozen=True, slots=True)
class TopicSettings(MqttSettings):
    """One end on a broker that subscribes to `topics`; ValueError for a wrong value."""

    fleet: str = "any"  # not used
    role: str = "topics"  # the name in log messages
    session_expiry_s: int = 0
    client_id: str = field(default_factory=lambda: f"ternmesh-topics-{secrets.token_hex(8)}")
    topics: tuple[str, ...] = ()
    arrivals_max: int = 256  # that wait for `drain`
    payload_max: int = 65_536  # bytes; longer arrivals are dropped

    def __post_init__(self) -> None:
        MqttSettings.__post_init__(self)
        for topic in self.topics:
            check_topic(topic, is_filter=True)

    @property
    def subscriptions(self) -> tuple[str, ...]:
        return self.topics


def same_broker(link: MqttSettings, **own: Any) -> TopicSettings:
    """An end that reaches its broker as `link` does; `own` are its other settings."""
    shared = "url", "username", "password", "ca_file", "certificate_file", "key_file"
    return TopicSettings(**{name: getattr(link, name) for name in shared}, **own)


class TopicClient(BrokerClient):
    """Subscribes and publishes; it connects and reconnects by itself between `open` and `close`.

    Of the arrivals that wait, the oldest are dropped for newer ones.
    """

    def __init__(self, settings: TopicSettings) -> None:
        super().__init__(settings)
        self.dropped = 0  # arrivals, for newer ones
        self.too_long = 0  # arrivals
        self._payload_max = settings.payload_max
        self._arrivals: deque[tuple[str, bytes]] = deque()
        self._arrivals_max = settings.arrivals_max
        self._changed = threading.Lock()

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Hand a message to the broker; False where it is not connected, or cannot take it now.

        It is also False for a message that the broker does not allow. With `retain` the broker
        keeps it. ValueError for a topic that nobody may publish on.
        """
        size = OVERHEAD + len(check_topic(topic).encode()) + len(payload)
        connection = self._connection
        limit = self._limits.packet_max
        if connection is None or (limit is not None and size > limit):
            return False
        try:
            connection.offer(topic, [payload], retain=retain)
        except (NotConnected, Busy):
            return False
        self.counters.messages_out += 1
        self.counters.bytes_out += len(payload)
        return True

    def drain(self) -> list[tuple[str, bytes]]:
        """The topics and payloads that arrived since the last call, oldest first."""
        with self._changed:
            arrivals = list(self._arrivals)
            self._arrivals.clear()
        return arrivals

    def _numbers(self) -> dict[str, int]:
        return {"dropped": self.dropped, "too_long": self.too_long}

    def _take(self, topic: str, payload: bytes) -> None:
        if not topic or len(payload) > self._payload_max:
            self.too_long += bool(topic)
            self.counters.malformed += 1
            return
        with self._changed:
            self.counters.messages_in += 1
            self.counters.bytes_in += len(payload)
            if len(self._arrivals) >= self._arrivals_max:
                self._arrivals.popleft()
                self.dropped += 1
            self._arrivals.append((topic, payload))
