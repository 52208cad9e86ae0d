"""A bounded queue of arrivals between the thread of a bearer and the driver."""

import threading
import time
from collections import deque

from transports.base import Arrival


class Inbox:
    """Arrivals in order; what does not fit is dropped and counted."""

    def __init__(self, arrivals_max: int = 4096, bytes_max: int = 8 << 20) -> None:
        self.dropped = 0
        self._arrivals_max = arrivals_max
        self._bytes_max = bytes_max
        self._arrivals: deque[Arrival] = deque()
        self._bytes = 0
        self._changed = threading.Condition()

    def put(self, arrival: Arrival) -> None:
        """Add `arrival`, or count it as dropped where the inbox is full."""
        with self._changed:
            full = len(self._arrivals) >= self._arrivals_max
            if full or self._bytes + arrival.wire_bytes > self._bytes_max:
                self.dropped += 1
                return
            self._arrivals.append(arrival)
            self._bytes += arrival.wire_bytes
            self._changed.notify()

    def get(self, timeout_s: float) -> Arrival | None:
        """The oldest arrival, or None after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._arrivals:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None
                self._changed.wait(left_s)
            arrival = self._arrivals.popleft()
            self._bytes -= arrival.wire_bytes
            return arrival
