"""What the machines of node and host have alike: sealed frames out, events, counted refusals.

A machine owns one `Channel`. It opens and seals frames through it, and hands out what the program
must save before it sends.
"""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from ternmesh.federated.events import REFUSED_SHOWN_MAX, Refused, SessionEvent
from ternmesh.federated.send_queue import SealedQueue
from ternmesh.security.authenticator import SecurityLayer

Event = TypeVar("Event")


class Channel(Generic[Event]):
    """The sealed frames and the events of one end. `counter` is the first one never reserved."""

    def __init__(self, *, run: bytes, counter: int, security: SecurityLayer) -> None:
        self.sealing = security.sealing
        self.authenticator = security.authenticator
        self.outgoing = SealedQueue(counter, security.sealing)
        self.refused: Counter[str] = Counter()  # by reason
        self.events: deque[Event | SessionEvent] = deque()  # what the program has to save
        self._in_clear: list[tuple[str, list[bytes]]] = []  # frames without a seal, by peer
        self.sealing.bind(run)

    def next_event(self) -> Event | SessionEvent | None:
        """The next event to save or handle; None if there are no more."""
        return self.outgoing.next_event(self.events)

    def send_in_clear(self, peer: str, frames: Sequence[bytes]) -> None:
        """Send frames without a seal, to a peer that shares no keys with this end."""
        self._in_clear.append((peer, list(frames)))

    def frames_to_send(self) -> list[tuple[str, list[bytes]]]:
        """Frames by peer. Call this after the events are on disk."""
        in_clear, self._in_clear = self._in_clear, []
        return in_clear + self.outgoing.drain()

    def show_refusal(self, peer: str, reason: str) -> None:
        """Count a refused frame, and report it unless too many events wait."""
        self.refused[reason] += 1
        if len(self.events) < REFUSED_SHOWN_MAX:
            self.events.append(Refused(peer, reason))
