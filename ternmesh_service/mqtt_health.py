"""Retained health over MQTT, with a last will, and what Home Assistant needs to find and show it.

The status comes over the control socket, as for `ternmesh status`, in a thread of its own: a dead
broker or Home Assistant costs the process nothing.

    ternmesh/FLEET/health/NAME/available            online or offline
    ternmesh/FLEET/health/NAME/state                of the process, as JSON
    ternmesh/FLEET/health/host/boards/BOARD/state   of a board as its host sees it, as JSON
"""

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ternmesh.config import limits, needs
from ternmesh_service.config_file import PATH
from ternmesh_service.control_socket import ANSWER_S, ControlError
from ternmesh_service.home_assistant import BOARDS_MAX, Topics, discovery, document_of, health
from ternmesh_service.status import BoardStatus, HostStatus, ask_status
from transports.link_config import LinkConfig, link_settings
from transports.mqtt.topics import TopicClient, TopicSettings, same_broker

TURN_S = 1.0  # between two looks at what has changed
STALE = 3  # intervals without a status, after which the process counts as offline
GOODBYE_S = 1.0  # the longest wait at the end, for the thread and for the last message
ONLINE, OFFLINE = b"online", b"offline"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """`[health]`: the broker that keeps the health of a host or board; without `url` there is none.

    The broker's settings are those of `[link]`. With `home_assistant`, Home Assistant finds the
    boards.
    """

    url: str = field(default="", repr=False)  # It may hold a password.
    ca_file: str | None = field(default=None, metadata=PATH | needs("url"))
    certificate_file: str | None = field(default=None, metadata=PATH | needs("url"))
    key_file: str | None = field(default=None, metadata=PATH | needs("url"))
    credentials_file: str | None = field(default=None, metadata=PATH | needs("url"))
    cleartext: bool = field(default=False, metadata=needs("url"))
    interval_s: float = field(default=30.0, metadata=limits(1.0, 3600.0) | needs("url"))
    home_assistant: bool = field(default=False, metadata=needs("url"))


@contextmanager
def served_health(config: HealthConfig, socket: Path, fleet: str, name: str) -> Iterator[None]:
    """Publish the health of the process behind a control socket; `name` is HOST or a board's.

    ConfigError or MissingExtra before anything starts. At the end it says `offline` itself.
    """
    if not config.url:
        yield
        return
    topics = Topics(fleet, name)
    client = TopicClient(_settings(config, topics))
    publisher = _Publisher(config, topics, client, socket)
    thread = threading.Thread(target=publisher.run, name="health", daemon=True)
    _log.info("health goes to %s", client.settings.broker)
    client.open()
    thread.start()
    try:
        yield
    finally:
        publisher.stop.set()
        thread.join(GOODBYE_S)
        publisher.leave()
        client.close()


def _settings(config: HealthConfig, topics: Topics) -> TopicSettings:
    """The end on the broker; ConfigError."""
    same = "url", "ca_file", "certificate_file", "key_file", "credentials_file", "cleartext"
    of_link = LinkConfig(fleet=topics.fleet, **{key: getattr(config, key) for key in same})
    link = link_settings(of_link, topics.name, "health")
    return same_broker(
        link,
        role="health",
        client_id=f"health~{topics.fleet}~{topics.name}",
        queue_max=2 * BOARDS_MAX,
        will=(topics.available, OFFLINE),
    )


class _Publisher:
    """What is to be published, and what has been."""

    def __init__(
        self, config: HealthConfig, topics: Topics, client: TopicClient, socket: Path
    ) -> None:
        self.stop = threading.Event()
        self._config = config
        self._topics = topics
        self._client = client
        self._socket = socket
        self._ask_at = 0.0
        self._wanted: dict[str, bytes] = {}  # by topic
        self._taken_at = 0.0
        self._sent: dict[str, bytes | None] = {}  # by topic; None: to be sent again
        self._connects = 0

    def run(self) -> None:
        """Publish until `stop`."""
        said = ""
        while not self.stop.wait(TURN_S):
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001  (the outermost loop of this thread)
                if str(error) != said:
                    said = str(error)
                    _log.warning("health: %s: %s", type(error).__name__, error)

    def leave(self) -> None:
        """Say that this process ends, where a broker is there."""
        give_up_at = time.monotonic() + GOODBYE_S
        if self._client.publish(self._topics.available, OFFLINE, retain=True):
            while self._client.status().numbers["queued"] and time.monotonic() < give_up_at:
                time.sleep(0.01)

    def _turn(self) -> None:
        if time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + self._config.interval_s
            with suppress(ControlError):  # it starts, ends or is busy
                status = ask_status(self._socket)
                assert isinstance(status, HostStatus | BoardStatus)  # only these have [health]
                self._take(status)
        if self._connects != (connects := self._client.counters.connects):
            self._connects = connects
            self._sent = dict.fromkeys(self._sent)  # the broker may have lost what it had
        if self._wanted and not self.stop.is_set():
            stale_at = self._taken_at + STALE * self._config.interval_s + ANSWER_S
            available = ONLINE if time.monotonic() < stale_at else OFFLINE
            self._publish({**self._wanted, self._topics.available: available})

    def _take(self, status: HostStatus | BoardStatus) -> None:
        """Make the messages of a status."""
        messages = {}
        for board, entities in health(status, time.time()).items():
            messages[self._topics.state(board)] = document_of(entities)
            if self._config.home_assistant:
                topic, payload = discovery(self._topics, status.model, board, entities)
                messages[topic] = payload
        self._wanted = {
            topic: json.dumps(message, separators=(",", ":")).encode()
            for topic, message in messages.items()
        }
        self._taken_at = time.monotonic()

    def _publish(self, wanted: Mapping[str, bytes]) -> None:
        """Send what has changed. An empty message removes what is there no longer."""
        for topic in self._sent.keys() - wanted.keys():
            if self._client.publish(topic, b"", retain=True):
                del self._sent[topic]
        for topic, payload in wanted.items():
            is_sent = self._sent.get(topic) == payload
            if not is_sent and self._client.publish(topic, payload, retain=True):
                self._sent[topic] = payload
