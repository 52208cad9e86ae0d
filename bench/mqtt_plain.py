"""Plain paho-mqtt at QoS 1, the peer of the MQTT benchmark (the only importer of paho here).

It is used as its documentation shows it: automatic reconnection, a session at the broker, and
`on_publish` for the end of a message.
"""

import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

PATIENCE_S = 60.0
QUIET_S = 2.0  # so long after the last message nothing more is expected
HERE = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Published:
    """`seconds` end with the last on_publish; `arrived` is what the subscriber got by then or
    within two quiet seconds.
    """

    seconds: float
    arrived: int


class Publisher:
    """One client that publishes on one topic."""

    def __init__(self, port: int, topic: str) -> None:
        self._topic = topic
        self._published = self._wanted = 0
        self._changed = threading.Condition()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"{topic}-publisher")
        self._client.on_publish = self._on_publish
        self._client.connect(HERE, port)
        self._client.loop_start()

    def publish(self, payload: bytes) -> None:
        """Hand a message to the client."""
        self._wanted += 1
        self._client.publish(self._topic, payload, qos=1)

    def wait(self, patience_s: float) -> bool:
        """Wait until the client has called on_publish for all."""
        with self._changed:
            return self._changed.wait_for(lambda: self._published >= self._wanted, patience_s)

    def close(self) -> None:
        """Say goodbye."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_publish(
        self,
        _client: paho.Client,
        _userdata: object,
        _mid: int,
        _reason: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        with self._changed:
            self._published += 1
            if self._published >= self._wanted:
                self._changed.notify()


class Subscriber:
    """One client with a session that counts what arrives on one topic."""

    def __init__(self, port: int, topic: str) -> None:
        self.arrived: Counter[bytes] = Counter()
        self.subscribed = threading.Event()
        self._topic = topic
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=f"{topic}-subscriber", clean_session=False
        )
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        self._client.connect(HERE, port)
        self._client.loop_start()

    def settle(self) -> None:
        """Wait until nothing more arrives."""
        before = -1
        while before != (before := self.arrived.total()):
            time.sleep(QUIET_S)

    def close(self) -> None:
        """Say goodbye."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(
        self,
        client: paho.Client,
        _userdata: object,
        _flags: paho.ConnectFlags,
        _reason: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        client.subscribe(self._topic, qos=1)

    def _on_subscribe(
        self,
        _client: paho.Client,
        _userdata: object,
        _mid: int,
        _reasons: list[ReasonCode],
        _properties: Properties | None,
    ) -> None:
        self.subscribed.set()

    def _on_message(
        self, _client: paho.Client, _userdata: object, message: paho.MQTTMessage
    ) -> None:
        self.arrived[bytes(message.payload)] += 1


def run(port: int, payloads: Iterable[bytes], topic: str) -> Published:
    """Publish all at once, with a subscriber in a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_subscribe, args=(port, topic, theirs), daemon=True)
    process.start()
    publisher = Publisher(port, topic)
    try:
        if not ours.poll(PATIENCE_S):
            raise SystemExit("bench mqtt: paho's subscriber did not connect")
        begun = time.monotonic()
        for payload in payloads:
            publisher.publish(payload)
        if not publisher.wait(PATIENCE_S):
            raise SystemExit("bench mqtt: paho did not publish everything")
        seconds = time.monotonic() - begun
        ours.recv()
        ours.send("end")
        return Published(seconds, ours.recv())
    finally:
        publisher.close()
        process.kill()


def _subscribe(port: int, topic: str, pipe: Connection) -> None:
    subscriber = Subscriber(port, topic)
    subscriber.subscribed.wait()
    pipe.send("subscribed")
    pipe.recv()
    subscriber.settle()
    pipe.send(subscriber.arrived.total())
