"""A bearer inside one process: a hub with one host and any number of nodes, for tests and sims.

It behaves like a broker without sessions: a message to an end that is not open is lost.
"""

import threading
from collections.abc import Sequence

from transports import batch
from transports.base import (
    ALL,
    HOST,
    Arrival,
    Inbox,
    NotConnected,
    check_node,
    check_peer,
    check_sizes,
)


class LoopbackHub:
    """The medium; `up = False` disconnects every end, like a broker that is down."""

    def __init__(self, mtu: int = 4096, message_max: int = 65_536) -> None:
        if not 1 <= mtu <= message_max - batch.OVERHEAD:
            raise ValueError(f"mtu {mtu} must be 1 to {message_max - batch.OVERHEAD} bytes")
        self.up = True
        self.mtu = mtu
        self.message_max = message_max
        self._ends: dict[str, LoopbackTransport] = {}
        self._lock = threading.Lock()

    def host(self) -> "LoopbackTransport":
        return LoopbackTransport(self, HOST)

    def node(self, name: str) -> "LoopbackTransport":
        return LoopbackTransport(self, check_node(name))

    def attach(self, name: str, end: "LoopbackTransport") -> None:
        """Deliver messages for `name` to `end`; a later end of that name takes its place."""
        with self._lock:
            self._ends[name] = end

    def detach(self, end: "LoopbackTransport") -> None:
        """Stop delivering to `end`."""
        with self._lock:
            self._ends = {name: other for name, other in self._ends.items() if other is not end}

    def attached(self, end: "LoopbackTransport") -> bool:
        with self._lock:
            return end in self._ends.values()

    def inboxes(self, sender: str, peer: str) -> list[Inbox]:
        """The inboxes that a message from `sender` to `peer` goes to now."""
        with self._lock:
            if peer == ALL:
                return [end.inbox for name, end in self._ends.items() if name != sender]
            return [self._ends[peer].inbox] if peer in self._ends else []


class LoopbackTransport:
    """One end of a `LoopbackHub`; see `transports.base.Transport`."""

    def __init__(self, hub: LoopbackHub, name: str) -> None:
        self.inbox = Inbox()
        self._hub = hub
        self._name = name

    @property
    def mtu(self) -> int:
        return self._hub.mtu

    @property
    def connected(self) -> bool:
        """Whether the hub is up and this end is open."""
        return self._hub.up and self._hub.attached(self)

    def open(self) -> None:
        self._hub.attach(self._name, self)

    def close(self) -> None:
        self._hub.detach(self)

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """Deliver at once; returns the bytes that MQTT messages with the same frames would hold."""
        check_peer(self._name, peer)
        if not self.connected:
            raise NotConnected("the loopback hub is down or this end is not open")
        check_sizes(frames, self.mtu)
        messages = [batch.join(group) for group in batch.fill(frames, self._hub.message_max)]
        for message in messages:
            arrival = Arrival(self._name, batch.split(message), len(message))
            for inbox in self._hub.inboxes(self._name, peer):
                inbox.put(arrival)
        return sum(map(len, messages))

    def receive(self, timeout_s: float) -> Arrival | None:
        return self.inbox.get(timeout_s)
