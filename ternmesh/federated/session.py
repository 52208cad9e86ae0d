"""The part of the host's session that is under every kind of host, sans-I/O."""

from abc import ABC
from collections import Counter, deque
from typing import Generic, TypeVar

from ternmesh.federated.events import REFUSED_SHOWN_MAX, Refused, SessionEvent
from ternmesh.federated.send_queue import SealedQueue
from ternmesh.security.authenticator import SecurityLayer

Event = TypeVar("Event")


class Session(ABC, Generic[Event]):
    """The part common to node and host. `counter` is the first frame counter never reserved."""

    def __init__(self, run: bytes, counter: int, security: SecurityLayer) -> None:
        self.run = run
        self.refused: Counter[str] = Counter()  # by reason
        self._sealing = security.sealing
        self._authenticator = security.authenticator
        self._sealing.bind(run)
        self._outgoing = SealedQueue(counter, security.sealing)
        self._events: deque[Event | SessionEvent] = deque()

    def next_event(self) -> Event | SessionEvent | None:
        """Return the next event to save or handle; None if there are no more."""
        return self._outgoing.next_event(self._events)

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:  # noqa: ARG002
        """Return sealed frames by peer. Call this after the events are on disk."""
        return self._outgoing.drain()

    def _show_refusal(self, peer: str, reason: str) -> None:
        self.refused[reason] += 1
        if len(self._events) < REFUSED_SHOWN_MAX:
            self._events.append(Refused(peer, reason))
