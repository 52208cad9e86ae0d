"""What a transport that retransmits reports of messages, and the count that a protocol keeps.

A protocol repeats nothing that such a transport holds: one place repeats a message, not two.
Plain transports report nothing, and the protocol's own timers repeat.
"""

from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto

PEERS_MAX = 4096  # whose last delivery is remembered


class DeliveryState(Enum):
    """The state of one message for one receiver: first HELD, then DELIVERED or LOST.

    A message that is held when a process ends is held again at its next start.
    """

    HELD = auto()  # the transport has taken it, and repeats it until it is delivered or lost
    DELIVERED = auto()  # the receiver has it on disk; by the unreliable service: it has been sent
    LOST = auto()  # the transport has given it up


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message for `peer` has come to `state`; a broadcast has one of each receiver."""

    peer: str
    state: DeliveryState


class Deliveries:
    """How many messages for each peer a transport holds, and when it delivered the last one."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._delivered_at: dict[str, float] = {}

    def note(self, delivery: Delivery, now: float) -> None:
        """Take a report of one message: the counts and times below follow from it."""
        peer = delivery.peer
        if delivery.state is DeliveryState.HELD:
            self._held[peer] += 1
            return
        self._held[peer] -= 1
        if self._held[peer] <= 0:
            del self._held[peer]
        if delivery.state is DeliveryState.DELIVERED:
            self._delivered_at.pop(peer, None)
            self._delivered_at[peer] = now
            while len(self._delivered_at) > PEERS_MAX:
                del self._delivered_at[next(iter(self._delivered_at))]

    def is_held(self, peer: str) -> bool:
        return peer in self._held

    def was_delivered(self, peer: str, since: float) -> bool:
        """Whether a message for this peer was delivered at `since` or later."""
        return self._delivered_at.get(peer, -float("inf")) >= since
