"""Settings of an MQTT transport, and what follows from them: topics, limits, pauses."""

import random
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from ternmesh.timers import backoff_s
from transports import batch
from transports.base import ALL, HOST, NAME_MAX, check_name, check_node, check_peer
from transports.mqtt.tls import TlsFiles

PORTS = {"mqtt": 1883, "mqtts": 8883}
MESSAGE_MAX = 65_536  # bytes, unless set otherwise
INBOUND_MESSAGE_MAX = 262_144  # bytes; MQTT 5 brokers drop longer messages, others are left
LASTED = 2.0  # a connection that was ready for so many `reconnect_min_s` was a good one
SHORT_S = 45.0  # a shorter one may have been taken over: a rival's longest pause, with jitter
SHORT_ATTEMPT = 2  # after a shorter one, the pause is at most that of this attempt
_ROOT = "ternmesh"
_PUBLISH_MAX = 1 + 4 + 2 + 2 + 1  # type, remaining length, topic length, packet id, no properties


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The address of a broker, with the credentials in its URL."""

    host: str
    port: int
    tls: bool
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"


def parse_url(url: str) -> BrokerAddress:
    """The address in `mqtt://[user[:password]@]host[:port]` or `mqtts://`; else ValueError."""
    scheme, _, rest = url.partition("://")
    credentials, at, address = rest.rpartition("@")  # so a password may hold any of # / ? [ @
    username, _, password = credentials.partition(":")
    shown = (address if at else url) or "(empty)"
    form = "write it as mqtt://host:port, or mqtts://host:port for TLS"
    try:
        parts = urlsplit(f"{scheme}://{address}")
        host = parts.hostname
        port = parts.port
        username, password = (unquote(part, errors="strict") for part in (username, password))
    except UnicodeDecodeError as error:
        reason = f"broker URL {shown} has a wrong % in its user name or password"
        raise ValueError(f"{reason}: write %25 for a % itself") from error
    except ValueError as error:
        raise ValueError(f"broker URL {shown} has no valid port or host: {form}") from error
    if parts.scheme not in PORTS:
        raise ValueError(f"broker URL {shown} does not begin with mqtt:// or mqtts://: {form}")
    if not host or port == 0:
        raise ValueError(f"broker URL {shown} names no host or port 0: {form}")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"broker URL {shown} has a path after the port: {form}")
    if at and not username:
        raise ValueError(f"broker URL {shown} has a password without a user name: {form}")
    return BrokerAddress(
        host=host,
        port=port or PORTS[parts.scheme],
        tls=parts.scheme == "mqtts",
        username=username or None,
        password=password or None,
    )


@dataclass(frozen=True, slots=True)
class MqttSettings:
    """One end of a fleet on a broker; ValueError for a wrong value of those that users set.

    `role` is `host` or the node's name. `client_id` must be the same after a restart and belong to
    one process only: two processes with one id disconnect each other without end.
    """

    url: str = field(repr=False)  # It may hold a password.
    fleet: str
    role: str
    client_id: str = ""  # empty: ternmesh-<fleet>-<role>
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None  # PEM; None: the system's certificates
    certificate_file: str | None = None  # PEM; for a broker that asks for one
    key_file: str | None = None  # of that certificate, without a passphrase
    protocol: str = "auto"  # or "5" or "3.1.1"; auto: 5, and 3.1.1 where the broker refuses 5
    keepalive_s: int = 60
    connect_timeout_s: float = 10.0
    session_expiry_s: int = 3600  # how long the broker keeps our session while we are away
    message_max: int = MESSAGE_MAX  # bytes of frames; the broker may lower it
    inflight_max: int = 20  # messages that the broker has not acknowledged
    queue_max: int = 256  # messages that wait for a place in flight
    reconnect_min_s: float = 1.0
    reconnect_max_s: float = 30.0
    will: tuple[str, bytes] | None = None  # topic and retained message of an end that is cut off

    def __post_init__(self) -> None:
        parse_url(self.url)
        check_name(self.fleet, "fleet")
        if self.role != HOST:
            check_node(self.role)
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together: name both or none")
        if not 64 <= self.message_max <= INBOUND_MESSAGE_MAX:
            raise ValueError(f"message_max {self.message_max} must be 64 to {INBOUND_MESSAGE_MAX}")

    @property
    def broker(self) -> BrokerAddress:
        return parse_url(self.url)

    @property
    def tls_files(self) -> TlsFiles | None:
        """The files for TLS; None for a broker without TLS."""
        if not self.broker.tls:
            return None
        return TlsFiles(self.ca_file, self.certificate_file, self.key_file)

    @property
    def identity(self) -> str:
        """The client id at the broker."""
        return self.client_id or f"ternmesh-{self.fleet}-{self.role}"

    @property
    def subscriptions(self) -> tuple[str, ...]:
        root = f"{_ROOT}/{self.fleet}"
        if self.role == HOST:
            return (f"{root}/up/+",)
        return (f"{root}/down/{self.role}", f"{root}/{ALL}")

    @property
    def publications(self) -> tuple[str, ...]:
        """Topic filters for all topics on which this end publishes."""
        root = f"{_ROOT}/{self.fleet}"
        if self.role == HOST:
            return (f"{root}/down/+", f"{root}/{ALL}")
        return (f"{root}/up/{self.role}",)

    def topic(self, peer: str) -> str:
        """The topic for messages to `peer`; ValueError for an unknown peer."""
        check_peer(self.role, peer)
        root = f"{_ROOT}/{self.fleet}"
        if self.role != HOST:
            return f"{root}/up/{self.role}"
        return f"{root}/{ALL}" if peer == ALL else f"{root}/down/{peer}"

    def peer(self, topic: str) -> str:
        """The peer that publishes on `topic`; ValueError for a topic without subscription."""
        if self.role != HOST:
            if topic not in self.subscriptions:
                raise ValueError(f"topic {topic!r} is none of {self.subscriptions}")
            return HOST
        root, _, name = topic.rpartition("/")
        if root != f"{_ROOT}/{self.fleet}/up":
            raise ValueError(f"topic {topic!r} is none of {self.subscriptions}")
        return check_node(name)


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """The limits in CONNACK, with the defaults of MQTT."""

    packet_max: int | None = None  # bytes of a whole packet; None: no limit
    receive_max: int = 65_535  # messages in flight
    qos_max: int = 2
    keepalive_s: int | None = None  # None: that of the client


@dataclass(slots=True)
class ProtocolChoice:
    """The MQTT version of the next connection, chosen by the ends of earlier ones.

    A broker that refuses version 5 explicitly gets 3.1.1 from then on. One that only closed the
    connection may have crashed just then, so 3.1.1 (which has no limits in CONNACK) is tried once,
    and then 5 again. A version 5 that has worked is kept.
    """

    wanted: str
    current: str = "5"
    _proven: bool = False
    _refused: bool = False

    def __post_init__(self) -> None:
        if self.wanted != "auto":
            self.current = self.wanted

    def ended(self, *, accepted: bool, refused: bool) -> bool:
        """Note how the broker took the last CONNECT; True where the next may follow at once."""
        if self.wanted != "auto":
            return False
        if self.current == "5":
            self._proven |= accepted
            self._refused |= refused
            if refused or not (accepted or self._proven):
                self.current = "3.1.1"
        elif not (accepted and self._refused):
            self.current = "5"
        return refused


def packet_max(settings: MqttSettings, body: int) -> int:
    """The bytes of a PUBLISH packet with `body` bytes on the longest topic of this fleet."""
    return _PUBLISH_MAX + len(f"{_ROOT}/{settings.fleet}/down/") + NAME_MAX + body


def message_max(settings: MqttSettings, limits: BrokerLimits) -> int:
    """The most bytes of frames in one message that both ends and the broker accept; may be 0."""
    if limits.packet_max is None:
        return settings.message_max
    return max(0, min(settings.message_max, limits.packet_max - packet_max(settings, 0)))


def keepalive_s(settings: MqttSettings, limits: BrokerLimits) -> int:
    """The keep alive to request; paho < 2.2 ignores the broker's, so its last one is used."""
    return min(settings.keepalive_s, limits.keepalive_s or settings.keepalive_s)


def mtu(settings: MqttSettings, limits: BrokerLimits) -> int:
    """The longest frame in bytes that fits a message; 0 where the broker accepts none."""
    return max(0, min(batch.FRAME_MAX, message_max(settings, limits) - batch.OVERHEAD))


@dataclass(slots=True)
class Pauses:
    """The pauses between connections.

    They grow while no broker answers, and while another process takes our client id over. They
    stay short for a link that breaks every few seconds, so that it is used in between.
    """

    settings: MqttSettings
    attempt: int = 0
    short: int = 0  # connections in a row that were ready, but for less than `SHORT_S`

    def ended(self, ready_s: float, *, taken_over: bool) -> None:
        """Note how long a connection was ready, and whether another process took it over."""
        self.short = self.short + 1 if 0.0 < ready_s < SHORT_S else 0
        if ready_s >= LASTED * self.settings.reconnect_min_s:
            self.attempt = 0
        elif ready_s > 0.0 and not taken_over:
            self.attempt = min(self.attempt, SHORT_ATTEMPT)

    def next_s(self, rng: random.Random) -> float:
        first_s, longest_s = self.settings.reconnect_min_s, self.settings.reconnect_max_s
        pause_s = backoff_s(self.attempt, first_s, longest_s, rng)
        self.attempt += 1
        return pause_s
