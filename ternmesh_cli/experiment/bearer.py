"""Whole messages of any size over an MQTT broker, for the published arms (paho-mqtt only here).

The link of ternmesh itself sends frames and at most 256 KiB in one message; M3a's are larger.
"""

import contextlib
import queue
import threading
import time
from types import TracebackType

from transports.base import MissingExtra, TransportError
from transports.mqtt_settings import parse_url

try:
    from paho.mqtt import client as paho
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
except ImportError as error:
    raise MissingExtra("MQTT needs the package paho-mqtt: pip install 'ternmesh[mqtt]'") from error

CONNECT_S = 30.0
PUBLISH_S = 120.0
WAITING_MAX = 16  # messages that nobody has taken yet


class Bearer:
    """One end: it subscribes to one topic, and publishes with QoS 1. A context manager."""

    def __init__(self, url: str, identity: str, subscription: str) -> None:
        self._address = parse_url(url)
        self._subscription = subscription
        self._subscribed = threading.Event()
        self._inbox: queue.Queue[bytes] = queue.Queue(WAITING_MAX)
        self._why = "it did not answer in time"
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=identity, protocol=MQTTProtocolVersion.MQTTv311
        )

    def __enter__(self) -> "Bearer":
        address, client = self._address, self._client
        if address.tls:
            client.tls_set()
        if address.username is not None:
            client.username_pw_set(address.username, address.password)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.reconnect_delay_set(1, 10)
        client.connect_async(address.host, address.port)
        client.loop_start()
        if not self._subscribed.wait(CONNECT_S):
            client.loop_stop()
            raise TransportError(f"cannot use the broker {address}: {self._why}")
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish; returns when the broker has it, else TransportError."""
        sent = self._client.publish(topic, payload, qos=1)
        deadline = time.monotonic() + PUBLISH_S
        while not sent.is_published() and time.monotonic() < deadline:
            sent.wait_for_publish(1.0)
        if not sent.is_published():
            raise TransportError(
                f"the broker {self._address} did not take a message of {len(payload)} bytes: does "
                "it limit their size (mosquitto: max_packet_size)?"
            )

    def receive(self, timeout_s: float) -> bytes | None:
        """The next message, or None after `timeout_s`."""
        try:
            return self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _on_connect(
        self,
        client: paho.Client,
        _userdata: object,
        _flags: object,
        reason: object,
        _properties: object,
    ) -> None:
        if getattr(reason, "is_failure", False):
            self._why = f"it refused us: {reason}"
            return
        client.subscribe(self._subscription, qos=1)

    def _on_subscribe(self, *_arguments: object) -> None:
        self._subscribed.set()

    def _on_message(
        self, _client: paho.Client, _userdata: object, message: paho.MQTTMessage
    ) -> None:
        if self._inbox.full():
            with contextlib.suppress(queue.Empty):  # the reader was faster
                self._inbox.get_nowait()  # the oldest: its sender will send again
        self._inbox.put_nowait(bytes(message.payload))
