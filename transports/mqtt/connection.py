"""One connection to an MQTT broker, on paho-mqtt (imported here only)."""

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ternmesh.extras import installed
from transports.base import Busy, MissingExtra, NotConnected
from transports.mqtt.settings import INBOUND_MESSAGE_MAX, BrokerLimits, MqttSettings, packet_max
from transports.mqtt.tls import NO_PASSPHRASE, doubt

with installed("mqtt", "MQTT needs the package paho-mqtt", MissingExtra):
    from paho.mqtt import client as paho
    from paho.mqtt.client import DisconnectFlags
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

LOOP_S = 1.0  # longest sleep of the network thread; arrivals and sends wake it
GOODBYE_S = 1.0  # time-out of `close` for a broker that takes no more bytes
NO_SUBSCRIBERS = 0x10  # reason code in a PUBACK (MQTT 5)
DESCRIPTORS_MAX = 1024  # paho waits with `select`
UNSENT_MAX = 70_000  # packets that wait in paho: answers to 65,535 ids at most, and our own
_QOS_2 = 0x34  # the first byte of a PUBLISH above QoS 1, under this mask

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class MqttCounters:
    """Counters since the transport was made; bytes are those of message bodies."""

    connects: int = 0
    messages_in: int = 0
    messages_out: int = 0
    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    acked: int = 0  # messages that the broker has acknowledged
    unheard: int = 0  # ... of these, without any subscriber (MQTT 5)
    rejected: int = 0  # messages that the broker acknowledged with an error (MQTT 5)
    lost: int = 0  # messages in flight or waiting when a connection ended
    malformed: int = 0  # arrived messages that hold no frames or have an unknown topic


class MqttConnection:
    """One MQTT connection, from CONNECT to its end, on a paho client of its own.

    `run` and every callback run in the network thread. paho holds its locks in callbacks, so these
    never take `_lock`: it must be taken before those of paho. With `forget` the broker drops what
    it keeps for us.
    """

    def __init__(
        self,
        settings: MqttSettings,
        protocol: str,
        counters: MqttCounters,
        learn: Callable[[BrokerLimits], None],
        take: Callable[[str, bytes], None],
        *,
        forget: bool = False,
    ) -> None:
        self.protocol = protocol
        self.reached = False  # a TCP or TLS connection was made
        self.accepted = False  # ... and the broker accepted CONNECT
        self.ready = False  # ... and our subscriptions
        self.ready_s = 0.0  # how long it was ready
        self.refused_protocol = False
        self.taken_over = False  # another process connected with our client id
        self.unwanted = False  # the broker sent what no connection of ours takes
        self.ended = ""  # a sentence with the reason
        self.turned_at = time.monotonic()  # when the network thread last worked on it
        self._settings = settings
        self._clean = forget or settings.session_expiry_s == 0
        self._packet_max = packet_max(settings, INBOUND_MESSAGE_MAX)
        self._counters = counters
        self._learn = learn
        self._take = take
        self._limits = BrokerLimits()
        self._refusal = ""  # of the latest message that the broker rejected
        self._ready_at = 0.0
        self._leave_at = 0.0  # when `run` ends at the latest, after `stop`
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, bytes, bool]] = deque()
        self._published = 0  # changed under _lock
        self._settled = 0  # changed in the network thread
        self._client = self._new_client()

    def run(self, stop: threading.Event, keepalive_s: int) -> None:
        """Connect and work until the connection ends or `stop`; OSError if it cannot begin."""
        give_up_at = time.monotonic() + self._settings.connect_timeout_s
        try:
            self._connect(keepalive_s)
            sock = self._client.socket()
            if sock is not None and sock.fileno() >= DESCRIPTORS_MAX:
                self.ended = "this program has 1,024 files open, with which MQTT does not work"
                return
            self.reached = True
            while self._client.loop(LOOP_S) == paho.MQTT_ERR_SUCCESS:
                if self._is_over(stop, give_up_at, time.monotonic()):
                    break
                self._pump()
        finally:
            self._finish(time.monotonic())

    def leave(self) -> None:
        self._client.disconnect()

    def offer(self, topic: str, messages: Sequence[bytes], *, retain: bool = False) -> None:
        """Publish as soon as the broker allows; Busy where too much waits, or NotConnected.

        An empty queue takes more than `queue_max` messages at once. With `retain` the broker keeps
        the last one for whoever subscribes later.
        """
        with self._lock:
            if not self.ready:
                raise NotConnected(f"not connected: {self.ended}")
            if self._waiting and len(self._waiting) + len(messages) > self._settings.queue_max:
                raise Busy(f"{len(self._waiting)} messages wait for the broker: try again soon")
            self._waiting.extend((topic, message, retain) for message in messages)
        self._pump()

    def load(self) -> tuple[int, int]:
        """The numbers of messages that wait and that the broker has not acknowledged."""
        with self._lock:
            return len(self._waiting), self._published - self._settled

    def _pump(self) -> None:
        """Publish waiting messages within our window and the broker's Receive Maximum."""
        window = min(self._settings.inflight_max, self._limits.receive_max)
        with self._lock:
            while self._waiting and self.ready and self._published - self._settled < window:
                topic, message, retain = self._waiting.popleft()
                self._published += 1
                qos = min(1, self._limits.qos_max)
                self._client.publish(topic, message, qos, retain)

    def _new_client(self) -> "_BoundedClient":
        settings = self._settings
        broker = settings.broker
        five = self.protocol == "5"
        client = _BoundedClient(
            CallbackAPIVersion.VERSION2,
            client_id=settings.identity,
            clean_session=None if five else self._clean,
            protocol=MQTTProtocolVersion.MQTTv5 if five else MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,
        )
        client.check_packet = self._check_packet
        client.connect_timeout = settings.connect_timeout_s
        client.max_inflight_messages_set(0)  # No limit in paho: _pump keeps the window.
        client.max_queued_messages_set(0)
        if username := settings.username or broker.username:
            client.username_pw_set(username, settings.password or broker.password)
        if settings.will is not None:
            client.will_set(*settings.will, qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_disconnect = self._on_disconnect
        # With any callback here paho leaves writing to the thread that calls `loop`.
        client.on_socket_register_write = lambda *_: None
        client.on_socket_open = _send_at_once
        return client

    def _connect(self, keepalive_s: int) -> None:
        settings, client = self._settings, self._client
        broker = settings.broker
        if files := settings.tls_files:
            client.tls_set(files.ca, files.certificate, files.key, keyfile_password=NO_PASSPHRASE)
        if self.protocol != "5":
            client.connect(broker.host, broker.port, keepalive_s)
            return
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = settings.session_expiry_s
        properties.MaximumPacketSize = self._packet_max
        client.connect(
            broker.host, broker.port, keepalive_s, clean_start=self._clean, properties=properties
        )

    def _is_over(self, stop: threading.Event, give_up_at: float, now: float) -> bool:
        self.turned_at = now
        if stop.is_set():
            if not self._leave_at:
                self._leave_at = now + GOODBYE_S
                self._client.disconnect()
            return now >= self._leave_at
        if self.ready or now < give_up_at:
            return False
        self.ended = f"{self._settings.broker} did not answer in time"
        return True

    def _finish(self, now: float) -> None:
        """Free the client and count what it had not delivered."""
        client = self._client
        with self._lock:
            self.ready = False
            self._counters.lost += len(self._waiting) + self._published - self._settled
            self._waiting.clear()
        self.ready_s = now - self._ready_at if self._ready_at else 0.0
        if sock := client.socket():
            sock.close()
        # Callbacks make a reference cycle, which would keep the sockets open.
        del client.check_packet
        client.on_connect = None
        client.on_subscribe = None
        client.on_message = None
        client.on_publish = None
        client.on_disconnect = None

    def _check_packet(self, first: int, size: int, unsent: int) -> None:
        """OSError, with which paho ends the connection, before a packet takes memory without end.

        paho keeps each message of QoS 2 until the broker releases it, and each answer until the
        broker reads it.
        """
        if size > self._packet_max:
            what = (
                f"sent a packet of {size} bytes, and {self._packet_max} are the most: limit its "
                "messages (max_packet_size of mosquitto)"
            )
        elif first & (0xF0 | _QOS_2) == _QOS_2:
            what = "sent a message with QoS 2, and we subscribed with 1: use another broker"
        elif unsent > UNSENT_MAX:
            what = "sends, and does not read our answers: use another broker"
        else:
            return
        self.unwanted = True
        self.ended = f"{self._settings.broker} {what}"
        raise OSError(self.ended)

    def _on_connect(
        self, client: paho.Client, _data: object, _flags: object, reason: ReasonCode, given: object
    ) -> None:
        if reason.is_failure:
            self.ended = f"{self._settings.broker} refused the connection: {reason}"
            if reason.getName() in ("Not authorized", "Bad user name or password"):
                self.ended += "; check credentials_file (`ternmesh broker add` makes it)"
            if reason.getName() == "Retain not supported":
                self.ended += ": it keeps no messages, as [health] needs: use another broker"
            self.refused_protocol = reason.getName() == "Unsupported protocol version"
            return
        self.accepted = True
        self._limits = BrokerLimits(
            packet_max=getattr(given, "MaximumPacketSize", None),
            receive_max=getattr(given, "ReceiveMaximum", 65_535),
            qos_max=getattr(given, "MaximumQoS", 2),
            keepalive_s=getattr(given, "ServerKeepAlive", None),
        )
        self._learn(self._limits)
        if self._settings.subscriptions:
            client.subscribe([(topic, 1) for topic in self._settings.subscriptions])
        else:
            self._begin()

    def _on_subscribe(
        self, client: paho.Client, _data: object, _mid: int, reasons: list[ReasonCode], *_: object
    ) -> None:
        if refusals := {str(reason) for reason in reasons if reason.is_failure}:
            topics, why = " and ".join(self._settings.subscriptions), ", ".join(sorted(refusals))
            self.ended = f"{self._settings.broker} does not let us subscribe to {topics}: {why}"
            client.disconnect()
            return
        self._begin()

    def _begin(self) -> None:
        self._counters.connects += 1
        self._ready_at = time.monotonic()
        self.ready = True

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        try:
            # A retained message is old: it would come again with each connection.
            topic = "" if message.retain else message.topic
        except UnicodeDecodeError:  # No topic of ours: the message is counted as malformed.
            topic = ""
        self._take(topic, bytes(message.payload))

    def _on_publish(
        self, _client: object, _data: object, _mid: int, reason: ReasonCode, *_: object
    ) -> None:
        self._settled += 1
        if reason.is_failure:
            if self._refusal != str(reason):  # Logged once; the counter has the rest.
                self._refusal = str(reason)
                _log.warning("%s refuses our messages: %s", self._settings.broker, reason)
            self._counters.rejected += 1
            return
        self._counters.acked += 1
        self._counters.unheard += reason.value == NO_SUBSCRIBERS

    def _on_disconnect(
        self, _client: object, _data: object, flags: DisconnectFlags, reason: ReasonCode, *_: object
    ) -> None:
        if reason.getName() == "Session taken over":
            self.taken_over = True
            self.ended = (
                f"another process is {self._settings.identity} on {self._settings.broker}: stop "
                "it, or give this one another name"
            )
        elif not self.ended:
            what = "closed" if flags.is_disconnect_packet_from_server else "lost"
            why = "" if reason.getName() == "Unspecified error" else f": {reason}"  # paho's "none"
            self.ended = f"the connection to {self._settings.broker} was {what}{why}"
            if not self.accepted:
                self.ended += f"; {doubt(self._settings.tls_files)}"


class _BoundedClient(paho.Client):
    """A client that asks before it reads what is left of an arriving packet.

    paho reads a packet's body with one call, for as many bytes as the fixed header claims.
    """

    check_packet: Callable[[int, int, int], None]

    def _sock_recv(self, bufsize: int) -> bytes:
        self.check_packet(self._in_packet["command"], bufsize, len(self._out_packet))
        return super()._sock_recv(bufsize)


def _send_at_once(_client: paho.Client, _userdata: object, sock: object) -> None:
    """Disable Nagle's algorithm, with which small messages wait for earlier ones (40 ms)."""
    if isinstance(sock, socket.socket):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
