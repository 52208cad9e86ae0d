"""Sends a node's update, or the silence in its place, again and again until the host has it.

Sans-I/O. Where the transport itself retransmits, it reports each message (`ternmesh.deliveries`).
While it holds one for the host nothing is repeated here, and after its delivery the receipt gets
the usual time to come.
"""

from collections.abc import Sequence

from ternmesh.deliveries import Deliveries, Delivery
from ternmesh.federated.channel import SealedQueue
from ternmesh.security.membership import HOST
from ternmesh.timers import Backoff, Random, TimerSettings


class UpdateSender:
    """When to send the update again; its owner knows what to send."""

    def __init__(self, outgoing: SealedQueue, pace: TimerSettings, rng: Random) -> None:
        self.timer = Backoff(pace.update_s, pace.update_longest_s, rng)
        self._outgoing = outgoing
        self._deliveries = Deliveries()
        self._sent_at = 0.0
        self._sent_to = b""  # the process of the host for which it was sealed

    def send(self, address: int, bodies: Sequence[bytes], now: float, process: bytes) -> None:
        """Send in place of what still waits for this address, and again later. Nothing: stop.

        `process` names that of the host (`Sealing.process_of`).
        """
        if not bodies:
            self.timer.stop()
            return
        self._outgoing.discard(address)
        self._outgoing.push(HOST, address, bodies)
        self.timer.again(now)
        self._sent_at, self._sent_to = now, process

    @property
    def is_held(self) -> bool:
        """Whether the transport holds a message for the host."""
        return self._deliveries.is_held(HOST)

    def is_on_its_way(self, now: float, process: bytes) -> bool:
        """Whether the transport holds the update, or its receipt is not overdue since delivery.

        What was sealed for another process of the host, this one cannot open.
        """
        if process != self._sent_to:
            return False
        due_at = self.timer.at
        was_delivered = self._deliveries.was_delivered(HOST, self._sent_at)
        return self.is_held or (was_delivered and due_at is not None and now < due_at)

    def note(self, delivery: Delivery, now: float) -> None:
        self._deliveries.note(delivery, now)

    def next_timeout(self) -> float | None:
        """When to send again; None if never, or if the transport does it."""
        return None if self.is_held else self.timer.at
