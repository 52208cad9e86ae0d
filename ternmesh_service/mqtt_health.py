"""Retained health over MQTT, with a last will, and what Home Assistant needs to find and show it.

The status comes over the control socket, as for `ternmesh status`, and buttons are requests to it.
All of it runs in threads of its own: a dead broker or Home Assistant costs the process nothing.

    ternmesh/FLEET/health/NAME/available            online or offline
    ternmesh/FLEET/health/NAME/state                of the process, as JSON
    ternmesh/FLEET/health/host/boards/BOARD/state   of a board as its host sees it, as JSON
    .../set                                         beside a host's states: train or pause
"""

import json
import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ternmesh import __version__
from ternmesh.config import ConfigError, limits, needs
from ternmesh.security.membership import ALL
from ternmesh.timers import RateLimiter
from ternmesh_service.alarms import is_over
from ternmesh_service.config_file import PATH
from ternmesh_service.control_socket import ANSWER_S, BOARDS, ControlError, ask
from ternmesh_service.home_assistant import BIRTH, Document, Topics, discovery
from ternmesh_service.observer import Observed, newest_reports, observed
from ternmesh_service.status import BoardStatus, HostedBoard
from transports.base import HOST, check_name, check_node
from transports.link_config import LinkConfig, link_settings

if TYPE_CHECKING:
    from transports.mqtt.topics import TopicClient, TopicSettings

BOARDS_MAX = 1000
TURN_S = 1.0  # between two looks at what has arrived or changed
PRESS_S = 5.0  # the least time between two requests for a board, each of which may go over the air
HEARD_S = 60  # the unit of `last_heard`, which changes at each frame otherwise
STALE = 3  # intervals without a status, after which the process counts as offline
TEXT_MAX = 100  # characters of a label
GOODBYE_S = 1.0  # the longest wait at the end, for the thread and for the last message
ONLINE, OFFLINE = b"online", b"offline"
ACTIONS = {b"train": {"pause": None}, b"pause": {"pause": 1}}  # what to set on a board
_NO_REPORT: Document = {"loss": None, "accuracy": None}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """`[health]`: the broker that keeps the health of a host or board; without `url` there is none.

    The broker's settings are those of `[link]`. With `home_assistant`, Home Assistant finds the
    boards under `discovery_prefix`. With `buttons`, whoever may publish on the broker may pause the
    boards of a host.
    """

    url: str = field(default="", repr=False)  # It may hold a password.
    ca_file: str | None = field(default=None, metadata=PATH | needs("url"))
    certificate_file: str | None = field(default=None, metadata=PATH | needs("url"))
    key_file: str | None = field(default=None, metadata=PATH | needs("url"))
    credentials_file: str | None = field(default=None, metadata=PATH | needs("url"))
    cleartext: bool = field(default=False, metadata=needs("url"))
    interval_s: float = field(default=30.0, metadata=limits(1.0, 3600.0) | needs("url"))
    home_assistant: bool = field(default=False, metadata=needs("url"))
    discovery_prefix: str = field(default="homeassistant", metadata=needs("home_assistant"))
    buttons: bool = field(default=True, metadata=needs("home_assistant"))


@contextmanager
def served_health(config: HealthConfig, socket: Path, fleet: str, name: str) -> Iterator[None]:
    """Publish the health of the process behind a control socket; `name` is HOST or a board's.

    ConfigError or MissingExtra before anything starts. At the end it says `offline` itself.
    """
    if not config.url:
        yield
        return
    from transports.mqtt.topics import TopicClient  # with paho-mqtt, which not all have

    topics = Topics(fleet, name)
    client = TopicClient(_settings(config, topics))
    publisher = _Publisher(config, topics, client, socket)
    thread = threading.Thread(target=publisher.run, name="health", daemon=True)
    _log.info("health goes to %s", client.settings.broker)
    client.open()
    thread.start()
    try:
        with observed(socket, config.interval_s, publisher.take):
            yield
    finally:
        publisher.stop.set()
        thread.join(GOODBYE_S)
        publisher.leave()
        client.close()


def _settings(config: HealthConfig, topics: Topics) -> "TopicSettings":
    """The end on the broker; ConfigError."""
    from transports.mqtt.topics import TopicSettings

    same = "url", "ca_file", "certificate_file", "key_file", "credentials_file", "cleartext"
    of_link = LinkConfig(fleet=topics.fleet, **{key: getattr(config, key) for key in same})
    link = link_settings(of_link, topics.name, "health")
    try:
        for level in config.discovery_prefix.split("/"):
            check_name(level, "each level of discovery_prefix")
    except ValueError as error:
        raise ConfigError(f"[health]: {error}") from error
    heard = {BIRTH, f"{config.discovery_prefix}/status"} if config.home_assistant else set()
    if config.home_assistant and config.buttons and topics.name == HOST:
        heard |= {topics.set(), topics.set("+")}
    return TopicSettings(
        link.url,
        role="health",
        client_id=f"health~{topics.fleet}~{topics.name}",
        username=link.username,
        password=link.password,
        ca_file=link.ca_file,
        certificate_file=link.certificate_file,
        key_file=link.key_file,
        queue_max=2 * BOARDS_MAX + len(heard),
        will=(topics.available(), OFFLINE),
        topics=tuple(sorted(heard)),
    )


def health(status: Observed, now: float) -> dict[str, Document]:
    """The documents of a status by board, "" for the process itself; `now` in s since 1970.

    Boards whose names may not stand in a topic are left out, and those after `BOARDS_MAX`.
    """
    about = {
        "software": __version__,
        "version": status.version,
        "connected": status.transport.connected,
    }
    if isinstance(status, BoardStatus):
        return {"": {**about, **_own(status)}}
    reports = {
        name: dict(zip(_NO_REPORT, map(_rounded, values), strict=True))
        for name, values in newest_reports(status.history).items()
    }
    fleet = {
        **about,
        "phase": status.phase,
        "boards": len(status.nodes),
        "boards_active": sum(board.active for board in status.nodes),
        **reports.get("", _NO_REPORT),
    }
    known = [board for board in status.nodes if _may_be_in_a_topic(board.name)][:BOARDS_MAX]
    boards = {
        board.name: _board(board, now, is_over=is_over(status))
        | reports.get(board.name, _NO_REPORT)
        for board in known
    }
    return {"": fleet, **boards}


def _board(board: HostedBoard, now: float, *, is_over: bool) -> Document:
    state = "on" if board.active else "finished" if is_over else "silent"
    if board.board.in_force.get("pause") == 1:
        state = "paused"
    heard = None
    if (ago_s := board.heard_s_ago) is not None:
        heard = datetime.fromtimestamp((now - ago_s) // HEARD_S * HEARD_S, UTC).isoformat()
    return {
        "state": "revoked" if board.revoked else state,
        "active": board.active,
        "samples": board.samples,
        "weight": board.weight,
        "last_heard": heard,
        "software": board.board.software,
    }


def _own(status: BoardStatus) -> Document:
    """What a board knows of itself, and its newest live prediction."""
    losses = [entry.loss for entry in status.history if entry.loss is not None]
    found = {
        "activity": status.activity,
        "samples": status.samples,
        "metric": status.metric_name,
        "score": _rounded(status.metric),
        "loss": _rounded(losses[-1] if losses else None),
    }
    if status.predict is not None:
        live = status.predict.live or {}
        label, top = live.get("label"), live.get("top")
        found["prediction"] = None if label is None else str(label)[:TEXT_MAX]
        found["confidence"] = _rounded(top[0][1]) if top else None
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 4)


def _may_be_in_a_topic(name: str) -> bool:
    try:
        return bool(check_node(name))
    except ValueError:
        return False


class _Publisher:
    """What is to be published, what has been, and which buttons wait. `take` has its own thread."""

    def __init__(
        self, config: HealthConfig, topics: Topics, client: "TopicClient", socket: Path
    ) -> None:
        self.stop = threading.Event()
        self._config = config
        self._topics = topics
        self._client = client
        self._socket = socket
        self._wanted: dict[str, bytes] = {}  # by topic; replaced as a whole by `take`
        self._targets: dict[str, str] = {}  # of buttons, by topic: a board or ALL; also replaced
        self._taken_at = 0.0
        self._sent: dict[str, bytes | None] = {}  # by topic; None: to be sent again
        self._connects = 0
        self._presses: dict[str, bytes] = {}  # the newest by board, ALL or BIRTH
        self._limiter = RateLimiter(PRESS_S)

    def take(self, status: Observed) -> None:
        """Make the messages of a status."""
        topics, config = self._topics, self._config
        documents = health(status, time.time())
        wanted = {topics.state(board): found for board, found in documents.items()}
        if config.home_assistant:
            where = topics, config.discovery_prefix, status.model
            wanted |= dict(discovery(*where, *item, config.buttons) for item in documents.items())
        self._targets = {topics.set(board): board or ALL for board in documents}
        self._wanted = {
            topic: json.dumps(found, separators=(",", ":")).encode()
            for topic, found in wanted.items()
        }
        self._taken_at = time.monotonic()

    def run(self) -> None:
        """Publish and listen until `stop`."""
        said = ""
        while not self.stop.wait(TURN_S):
            try:
                self._turn(time.monotonic())
            except Exception as error:  # noqa: BLE001  (the outermost loop of this thread)
                if str(error) != said:
                    said = str(error)
                    _log.warning("health: %s: %s", type(error).__name__, error)

    def leave(self) -> None:
        """Say that this process ends, where a broker is there."""
        give_up_at = time.monotonic() + GOODBYE_S
        if self._client.publish(self._topics.available(), OFFLINE, retain=True):
            while self._client.status().numbers["queued"] and time.monotonic() < give_up_at:
                time.sleep(0.01)

    def _turn(self, now: float) -> None:
        for topic, payload in self._client.drain():
            self._hear(topic, payload)
        if self._connects != (connects := self._client.counters.connects):
            self._connects = connects
            self._send_again("")  # the broker may have lost what it had
        if self._wanted:
            is_new = now < self._taken_at + STALE * self._config.interval_s + ANSWER_S
            available = {self._topics.available(): ONLINE if is_new else OFFLINE}
            self._publish(self._wanted | available)
        for name in [name for name in self._presses if self._limiter.allow(name, now)]:
            self._press(name, self._presses.pop(name))

    def _hear(self, topic: str, payload: bytes) -> None:
        if (name := self._targets.get(topic)) is not None and payload in ACTIONS:
            self._presses[name] = payload
        elif payload == ONLINE:
            self._presses[BIRTH] = payload
        else:
            _log.debug("health: a message on %.100r means nothing", topic)

    def _send_again(self, prefix: str) -> None:
        self._sent |= {topic: None for topic in self._sent if topic.startswith(prefix)}

    def _publish(self, wanted: Mapping[str, bytes]) -> None:
        """Send what has changed. An empty message removes what is there no longer."""
        for topic in self._sent.keys() - wanted.keys():
            if self._client.publish(topic, b"", retain=True):
                del self._sent[topic]
        for topic, payload in wanted.items():
            is_sent = self._sent.get(topic) == payload
            if not is_sent and self._client.publish(topic, payload, retain=True):
                self._sent[topic] = payload

    def _press(self, name: str, action: bytes) -> None:
        if name == BIRTH:
            self._send_again(f"{self._config.discovery_prefix}/")
            return
        try:
            ask(self._socket, {BOARDS: name, "set": ACTIONS[action]})
            _log.info("over MQTT: %s %s", action.decode(), name)
        except ControlError as error:
            _log.warning("over MQTT: %s %s: %s", action.decode(), name, error)
