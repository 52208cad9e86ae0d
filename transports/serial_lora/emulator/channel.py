"""The air between emulated modems: which transmissions arrive, and when."""

import heapq
import random
from collections.abc import Hashable
from dataclasses import dataclass, field

from transports.serial_lora.emulator.modem import Transmit

SLOT_S = 0.02  # random delay of modems that listen before they talk


@dataclass(slots=True, order=True)
class Transmission:
    """A payload on the air; `overlapped` holds the senders of overlapping transmissions."""

    end: float
    order: int
    start: float = field(compare=False)
    sender: int = field(compare=False)
    tuning: Hashable = field(compare=False)
    payload: bytes = field(compare=False)
    overlapped: set[int] = field(default_factory=set, compare=False)


class EmulatedChannel:
    """A simple medium: equal tuning receives all, with a loss rate of `loss` at each receiver.

    With `collisions`, overlapping frames of one tuning are lost, and a sender receives nothing.
    """

    def __init__(self, rng: random.Random, loss: float = 0.0, collisions: bool = False) -> None:
        self.loss = loss
        self._rng = rng
        self._collisions = collisions
        self._under_way: list[Transmission] = []
        self._count = 0

    def start(self, sender: int, tuning: Hashable, transmit: Transmit, now: float) -> None:
        """Begin a transmission; a sender that listens waits for the end of all others."""
        rivals = [each for each in self._under_way if each.tuning == tuning]
        if transmit.listens:
            now = max([now, *(each.end for each in rivals)]) + self._rng.uniform(0, SLOT_S)
        self._count += 1
        end = now + transmit.airtime_us / 1e6
        new = Transmission(end, self._count, now, sender, tuning, transmit.payload)
        for each in rivals:
            if each.end > new.start and each.start < new.end:
                each.overlapped.add(sender)
                new.overlapped.add(each.sender)
        heapq.heappush(self._under_way, new)

    def next_end(self) -> float | None:
        """When the next transmission is over."""
        return self._under_way[0].end if self._under_way else None

    def finish(self, now: float) -> Transmission | None:
        """The next transmission that is over by now."""
        if self._under_way and self._under_way[0].end <= now:
            return heapq.heappop(self._under_way)
        return None

    def abort(self, sender: int) -> None:
        """Drop the transmission of a sender that lost its power."""
        self._under_way = [each for each in self._under_way if each.sender != sender]
        heapq.heapify(self._under_way)

    def arrives(self, transmission: Transmission) -> bool:
        """Whether a receiver of equal tuning can decode it; draws a random number."""
        if self._collisions and transmission.overlapped:
            return False
        return self._rng.random() >= self.loss

    def quality(self) -> tuple[int, int]:
        """A random RSSI in dBm and SNR in dB, for display only."""
        return self._rng.randint(-110, -60), self._rng.randint(-5, 10)
