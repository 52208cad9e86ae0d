"""Objects over a broker that is killed every few seconds: the reliable link, and plain paho.

Two links with their files and the driver loop of the product, each in a thread of its own, over
`MqttTransport`. Kills are real. The broker keeps nothing over them.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from bench.mosquitto import Mosquitto, mosquitto_in
from bench.mqtt_plain import Publisher, Subscriber
from ternmesh.link.link import Link, LinkFull, LinkSettings
from ternmesh.link.records import Delivered, LinkEvent, Queued
from ternmesh_store.link_store import LinkStore
from transports.base import HOST
from transports.driver import Driver
from transports.mqtt import MqttTransport
from transports.mqtt_settings import MqttSettings

NODE = "node"
SIZES = (1100, 1300)  # bytes of an object
SETTINGS = LinkSettings(mtu=184, idle_s=0.25, longest_s=2.0)
WAIT_S = 0.02
PATIENCE_S = 300.0
PAHO_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Objects a second, how long the broker lives and is away between kills (from, to), and the
    shortest pause before a link reconnects.
    """

    objects: int
    rate: float
    up_s: tuple[float, float]
    down_s: tuple[float, float]
    reconnect_min_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed showed. `gone` are messages that were published and never arrived."""

    kills: int
    seconds: float
    lost: int
    twice: int
    not_forgotten: int
    gone: int
    reconnects: int
    paho_lost: int
    paho_twice: int


class LinkEndpoint:
    """A link with the verbs of the driver loop."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """See `transports.driver.Endpoint`, as for all below."""
        for frame in frames:
            self.link.receive_frame(peer, frame, now)

    def next_timeout(self) -> float | None:
        """When something is due."""
        return self.link.next_timeout()

    def handle_timeout(self, now: float) -> None:
        """Do it."""
        self.link.handle_timeout(now)

    def next_event(self) -> LinkEvent | None:
        """What must be on disk before anything leaves."""
        return self.link.next_event()

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:
        """All that may leave, in order."""
        sent = groupby(self.link.frames_to_send(now), key=lambda item: item[0])
        return [(peer, [frame for _, frame in items]) for peer, items in sent]


class LinkEnd:
    """One end: it offers `objects` to `peer`, `rate` a second, and runs until `stop`."""

    def __init__(
        self, folder: Path, url: str, role: str, peer: str, objects: Sequence[bytes], plan: Plan
    ) -> None:
        settings = MqttSettings(url, "bench", role, reconnect_min_s=plan.reconnect_min_s)
        self.transport = MqttTransport(settings)
        self.stop = threading.Event()
        self.has_receipts = threading.Event()  # for all objects, and they are on disk
        self._store = LinkStore(folder / f"{role}.sqlite")
        self._peer, self._objects, self._rate = peer, objects, plan.rate
        self._waiting = 0

    def run(self) -> tuple[list[bytes], int]:
        """What the thread does; returns what is in the inbox, and how much in the outbox."""
        self._store.open()
        self.transport.open()
        try:
            self._work()
            inbox = [payload for _, _, payload in self._store.inbox()]
            return inbox, len(self._store.load().outgoing)
        finally:
            self.transport.close()
            self._store.close()

    def _work(self) -> None:
        link = Link(SETTINGS, self._store.load(), np.random.default_rng())
        driver: Driver[LinkEvent] = Driver(LinkEndpoint(link), self.transport, time.monotonic)
        begun, offered = driver.clock(), 0
        link.start(begun)
        while not self.stop.is_set():
            due = int((driver.clock() - begun) * self._rate) + 1
            with suppress(LinkFull):  # the rest is offered later
                for payload in self._objects[offered:due]:
                    link.send(self._peer, payload)
                    offered += 1
            driver.poll(WAIT_S, self._record, self._store.commit)
            if offered == len(self._objects) and not self._waiting:
                self.has_receipts.set()

    def _record(self, event: LinkEvent) -> None:
        self._store.record(event)
        self._waiting += isinstance(event, Queued)
        self._waiting -= isinstance(event, Delivered)


def run(folder: Path, plan: Plan, seed: int) -> Outcome:
    """Send the objects of a plan from the node to the host, and the same with paho."""
    rng = random.Random(seed)
    objects = [rng.randbytes(rng.randint(*SIZES)) for _ in range(plan.objects)]
    begun = time.monotonic()
    with mosquitto_in(folder) as broker, ThreadPoolExecutor() as pool, _paho(broker.port) as paho:
        host = LinkEnd(folder, broker.url, HOST, NODE, (), plan)
        node = LinkEnd(folder, broker.url, NODE, HOST, objects, plan)
        work = [pool.submit(end.run) for end in (host, node)]
        publishing = pool.submit(_publish, paho[0], objects, plan.rate)
        try:
            kills = _kill(broker, plan, rng, lambda wait_s: _is_over(node, work, begun, wait_s))
        finally:
            host.stop.set()
            node.stop.set()
        (inbox, _), (_, not_forgotten) = (future.result() for future in work)
        seconds = time.monotonic() - begun
        publishing.result()
        arrived = _arrived(*paho)
    out, into = (
        sum(int(str(end.transport.status()[name])) for end in (host, node))
        for name in ("messages_out", "messages_in")
    )
    lost, twice = _compare(objects, Counter(inbox))
    paho_lost, paho_twice = _compare(objects, arrived)
    reconnects = int(str(node.transport.status()["reconnects"]))
    return Outcome(
        kills, seconds, lost, twice, not_forgotten, out - into, reconnects, paho_lost, paho_twice
    )


def _kill(
    broker: Mosquitto, plan: Plan, rng: random.Random, is_over: Callable[[float], bool]
) -> int:
    """Kill the broker and start it again until all is over; how often."""
    kills = 0
    while not is_over(rng.uniform(*plan.up_s)):
        broker.kill9()
        time.sleep(rng.uniform(*plan.down_s))
        broker.start()
        kills += 1
    return kills


def _is_over(
    node: LinkEnd, work: Sequence["Future[tuple[list[bytes], int]]"], begun: float, wait_s: float
) -> bool:
    """Whether all receipts have come within `wait_s`, or never will."""
    is_late = time.monotonic() - begun > PATIENCE_S
    return node.has_receipts.wait(wait_s) or is_late or any(future.done() for future in work)


def _compare(objects: Sequence[bytes], found: Counter[bytes]) -> tuple[int, int]:
    """How many objects are missing, and how many are there too much."""
    wanted = Counter(objects)
    return (wanted - found).total(), (found - wanted).total()


@contextmanager
def _paho(port: int) -> Iterator[tuple[Publisher, Subscriber]]:
    subscriber, publisher = Subscriber(port, "plain"), Publisher(port, "plain")
    try:
        subscriber.subscribed.wait()
        yield publisher, subscriber
    finally:
        publisher.close()
        subscriber.close()


def _publish(publisher: Publisher, objects: Sequence[bytes], rate: float) -> None:
    begun = time.monotonic()
    for number, payload in enumerate(objects):
        time.sleep(max(0.0, begun + number / rate - time.monotonic()))
        publisher.publish(payload)


def _arrived(publisher: Publisher, subscriber: Subscriber) -> Counter[bytes]:
    """What the subscriber has once the publisher has on_publish for all, or gave up waiting."""
    publisher.wait(PAHO_PATIENCE_S)
    subscriber.settle()
    return subscriber.arrived
