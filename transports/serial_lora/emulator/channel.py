"""The air between emulated modems: which transmissions arrive, and when."""

import heapq
import random
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from transports.serial_lora.emulator.modem import Transmit

SLOT_S = 0.02  # random delay of modems that listen before they talk
REPEAT_AIRTIMES, SEEN_MAX = 2.5, 160  # of repeaters: their longest delay, and their memory


@dataclass(slots=True, order=True)
class Transmission:
    """A payload on the air."""

    end: float
    order: int
    sender: int = field(compare=False)  # below 0 a repeater
    tuning: Hashable = field(compare=False)
    transmit: Transmit = field(compare=False)


class EmulatedChannel:
    """A simple medium: equal tuning receives all, with a loss rate of `loss` at each receiver.

    Frames that overlap are heard all the same. Between sender 0 and all others there are `hops`
    repeaters in a row, or as many pairs; each sends on what it hears, everything once.
    """

    def __init__(self, rng: random.Random, loss: float = 0.0, hops: int = 0) -> None:
        self.loss = loss
        self._far = hops + 1 if hops else 0
        self._places = {0: 0} | {-1 - i: 1 + i // 2 for i in range(2 * hops)}
        self._seen = {-1 - i: deque[bytes](maxlen=SEEN_MAX) for i in range(2 * hops)}
        self._rng = rng
        self._under_way: list[Transmission] = []
        self._count = 0

    def start(self, sender: int, tuning: Hashable, transmit: Transmit, now: float) -> None:
        """Begin a transmission; a sender that listens waits for the end of all others."""
        if transmit.listens:
            ends = (each.end for each in self._under_way if each.tuning == tuning)
            now = max([now, *ends]) + self._rng.uniform(0, SLOT_S)
        self._count += 1
        end = now + transmit.airtime_us / 1e6
        heapq.heappush(self._under_way, Transmission(end, self._count, sender, tuning, transmit))

    def reaches(self, sender: int, receiver: int) -> bool:
        """Whether they are at the same place, or at neighbouring ones."""
        places = [self._places.get(end, self._far) for end in (sender, receiver)]
        return abs(places[0] - places[1]) <= 1

    def repeat(self, over: Transmission) -> None:
        """Let the repeaters around send on what is over, after a random delay."""
        payload, airtime_s = over.transmit.payload, over.transmit.airtime_us / 1e6
        for repeater, seen in self._seen.items():
            if payload not in seen and self.reaches(over.sender, repeater) and self.arrives():
                seen.append(payload)
                begins = over.end + self._rng.uniform(0, REPEAT_AIRTIMES * airtime_s)
                self.start(repeater, over.tuning, over.transmit, begins)

    def next_end(self) -> float | None:
        """When the next transmission is over."""
        return self._under_way[0].end if self._under_way else None

    def finish(self, now: float) -> Transmission | None:
        """The next transmission that is over by now."""
        if self._under_way and self._under_way[0].end <= now:
            return heapq.heappop(self._under_way)
        return None

    def arrives(self) -> bool:
        """Whether a receiver of equal tuning can decode a frame; draws a random number."""
        return self._rng.random() >= self.loss

    def quality(self) -> tuple[int, int]:
        """A random RSSI in dBm and SNR in dB, for display only."""
        return self._rng.randint(-110, -60), self._rng.randint(-5, 10)
