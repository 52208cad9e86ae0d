"""What a bad link does to frames: a pure model of drops, bursts, copies, delays and flipped bits.

It holds no frame, clock or thread, so simulations and benchmarks use it without any transport;
`transports.faulty` puts it around one. The same seed gives the same faults.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

DIRECTIONS = ("both", "send", "receive")
DELAY_MAX_S = 3600.0
MTU_MAX = 0xFFFF
_FORM = "write faults as drop=0.2,burst=0.05/0.25/0.02/0.9,delay_s=0.5"


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # False for NaN too
        raise ValueError(f"fault {name}={value} must be {low:g} to {high:g}")


@dataclass(frozen=True, slots=True)
class Bursts:
    """Gilbert-Elliott losses: a state, good or bad, with its own loss, that may change each frame.

    All four are probabilities; a frame is lost by the state it finds, then the state moves.
    """

    good_to_bad: float
    bad_to_good: float
    loss_good: float
    loss_bad: float

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(f"burst.{item.name}", getattr(self, item.name), 0.0, 1.0)

    @property
    def bad_share(self) -> float:
        """The share of frames that find the bad state (0 where the state never changes)."""
        moves = self.good_to_bad + self.bad_to_good
        return self.good_to_bad / moves if moves else 0.0

    @property
    def mean_loss(self) -> float:
        """The share of frames that are lost in the long run."""
        return self.loss_good + self.bad_share * (self.loss_bad - self.loss_good)


@dataclass(frozen=True, slots=True)
class Faults:
    """What to do to frames; the defaults do nothing. A wrong value is a ValueError that names it.

    `drop`, `duplicate`, `reorder` and `flip` are probabilities: of a frame to be lost or to arrive
    twice; of each copy to be late by up to `reorder_s`, or to have one bit flipped. `rate_bytes_s`
    sends frames one after the other at that speed, those that get lost too; `mtu` swallows longer
    ones.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_s: float = 1.0
    flip: float = 0.0
    delay_s: float = 0.0
    burst: Bursts | None = None
    rate_bytes_s: float | None = None
    mtu: int | None = None
    direction: str = "both"  # of DIRECTIONS, as the wrapped end sees it

    def __post_init__(self) -> None:
        for name in ("drop", "duplicate", "reorder", "flip"):
            _check(name, getattr(self, name), 0.0, 1.0)
        for name in ("reorder_s", "delay_s"):
            _check(name, getattr(self, name), 0.0, DELAY_MAX_S)
        if self.rate_bytes_s is not None:
            _check("rate_bytes_s", self.rate_bytes_s, 1.0, 1e9)
        if self.mtu is not None:
            _check("mtu", self.mtu, 1, MTU_MAX)
        if self.direction not in DIRECTIONS:
            raise ValueError(f"fault direction={self.direction} must be {', '.join(DIRECTIONS)}")


def _burst(text: str) -> Bursts:
    numbers = [float(part) for part in text.split("/")]
    if len(numbers) != len(fields(Bursts)):
        raise ValueError("a burst has four numbers")
    return Bursts(*numbers)


_NOT_FLOAT: dict[str, Callable[[str], object]] = {"burst": _burst, "mtu": int, "direction": str}
_READERS = {item.name: _NOT_FLOAT.get(item.name, float) for item in fields(Faults)}


def parse_faults(text: str) -> Faults:
    """The faults in `text`, such as `drop=0.2,delay_s=0.5`; none in an empty one. Else ValueError.

    `burst` takes four numbers: good to bad, bad to good, loss in good, loss in bad.
    """
    values: dict[str, object] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not equals or name not in _READERS:
            raise ValueError(f"{entry!r} is no fault: {_FORM}; known are {', '.join(_READERS)}")
        if name in values:
            raise ValueError(f"fault {name} is given twice: give it once")
        values[name] = _read(name, value)
    return Faults(**values)  # type: ignore[arg-type]  # each reader gives its field's type


def _read(name: str, value: str) -> object:
    try:
        return _READERS[name](value)
    except ValueError as error:
        if str(error).startswith("fault"):  # Bursts says which of its numbers is wrong.
            raise
        raise ValueError(f"fault {name}={value} cannot be read: {_FORM}") from error


@dataclass(slots=True)
class FaultCounts:
    """What was done so far, in frames; `late` and `flipped` count copies."""

    offered: int = 0
    too_long: int = 0
    dropped: int = 0
    duplicated: int = 0
    late: int = 0
    flipped: int = 0


class FaultModel:
    """The faults of one direction; it keeps the burst's state and when the rate limit is free."""

    def __init__(self, faults: Faults, rng: np.random.Generator) -> None:
        self.faults = faults
        self.counts = FaultCounts()
        self._rng = rng
        self._bad: bool | None = None  # None before the first frame
        self._free_at = -math.inf

    def apply(self, frame: bytes, now: float) -> list[tuple[float, bytes]]:
        """What arrives of `frame`, sent at `now`: none, one or two of (when, bytes)."""
        faults, counts = self.faults, self.counts
        counts.offered += 1
        if faults.mtu is not None and len(frame) > faults.mtu:
            counts.too_long += 1
            return []
        sent_at = self._sent_at(len(frame), now)
        burst_lost = self._burst_loses()
        if burst_lost or self._happens(faults.drop):
            counts.dropped += 1
            return []
        twice = self._happens(faults.duplicate)
        counts.duplicated += twice
        return [self._copy(frame, sent_at + faults.delay_s) for _ in range(1 + twice)]

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability

    def _sent_at(self, size: int, now: float) -> float:
        if self.faults.rate_bytes_s is None:
            return now
        self._free_at = max(now, self._free_at) + size / self.faults.rate_bytes_s
        return self._free_at

    def _burst_loses(self) -> bool:
        burst = self.faults.burst
        if burst is None:
            return False
        if self._bad is None:  # Begin as in the long run, so that short transfers see the mean.
            self._bad = self._happens(burst.bad_share)
        lost = self._happens(burst.loss_bad if self._bad else burst.loss_good)
        self._bad ^= self._happens(burst.bad_to_good if self._bad else burst.good_to_bad)
        return lost

    def _copy(self, frame: bytes, at: float) -> tuple[float, bytes]:
        if self._happens(self.faults.reorder):
            self.counts.late += 1
            at += self._rng.uniform(0.0, self.faults.reorder_s)
        if frame and self._happens(self.faults.flip):
            self.counts.flipped += 1
            frame = _flip_bit(frame, int(self._rng.integers(8 * len(frame))))
        return at, frame


def _flip_bit(frame: bytes, bit: int) -> bytes:
    flipped = bytearray(frame)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)
