"""Timers of the protocols: back-off with jitter, a limit on answers, and when a node asks again."""

from dataclasses import dataclass
from typing import Protocol

DOUBLINGS_MAX = 60  # beyond it the pause does not grow
ASKERS_MAX = 4096
ANNOUNCES_MISSED = 3  # in a row, before a node doubts that the host knows it


class Random(Protocol):
    """A source of jitter: `random.Random` or `numpy.random.Generator`."""

    def random(self) -> float:
        """A number in [0, 1)."""


def backoff_s(attempt: int, first_s: float, longest_s: float, rng: Random) -> float:
    """The pause after attempt 0, 1, 2, ...: it doubles from `first_s` to `longest_s`.

    Jitter of a quarter up or down keeps a fleet that lost its broker from coming back in step.
    """
    pause_s = min(longest_s, first_s * 2.0 ** min(max(attempt, 0), DOUBLINGS_MAX))
    return pause_s * (0.75 + 0.5 * rng.random())


class Backoff:
    """When to ask again; `at` is None while there is nothing to ask. Times in seconds."""

    def __init__(self, first_s: float, longest_s: float, rng: Random) -> None:
        self.at: float | None = None
        self._first_s = first_s
        self._longest_s = longest_s
        self._rng = rng
        self._attempt = 0

    def again(self, now: float) -> float:
        """It was asked now: wait twice as long as the last time.

        Returns the time at which to ask again.
        """
        self.at = now + backoff_s(self._attempt, self._first_s, self._longest_s, self._rng)
        self._attempt += 1
        return self.at

    def soon(self, now: float) -> None:
        """Ask within the first delay, or earlier if that was due."""
        self.by(now + self._first_s * self._rng.random())

    def by(self, time: float) -> None:
        """Ask at `time`, or earlier if that was due."""
        self.at = time if self.at is None else min(self.at, time)

    def stop(self) -> None:
        """It was answered: the next question starts afresh."""
        self.at = None
        self._attempt = 0

    def due(self, now: float) -> bool:
        return self.at is not None and now >= self.at


def earliest(*times: float | None) -> float | None:
    """The first of these times, without those that are None."""
    return min((time for time in times if time is not None), default=None)


class RateLimiter:
    """At most one answer to each asker in a time, which doubles from `first_s` to `longest_s`.

    Without `longest_s` it stays the same. The last `askers_max` askers are remembered.
    """

    def __init__(
        self, first_s: float, longest_s: float | None = None, *, askers_max: int = ASKERS_MAX
    ) -> None:
        self._first_s = first_s
        self._longest_s = first_s if longest_s is None else longest_s
        self._askers_max = askers_max
        self._next: dict[str, tuple[float, float]] = {}  # by asker: when, and the pause after that

    def allow(self, asker: str, now: float) -> bool:
        """Whether to answer now; if so, it counts as answered."""
        at, pause_s = self._next.pop(asker, (now, self._first_s))
        is_due = now >= at
        if is_due:
            at, pause_s = now + pause_s, min(2 * pause_s, self._longest_s)
        self._next[asker] = at, pause_s
        while len(self._next) > self._askers_max:
            del self._next[next(iter(self._next))]
        return is_due


@dataclass(frozen=True, slots=True)
class TimerSettings:
    """When a node asks again, all in seconds; each wait doubles from its first to its longest.

    The first waits are how long an answer usually takes: to a hello, to an update, and until a
    global update that was announced has arrived.
    """

    hello_s: float = 1.0
    hello_longest_s: float = 60.0
    update_s: float = 3.0
    update_longest_s: float = 120.0
    catch_up_s: float = 5.0


NETWORK_TIMERS = TimerSettings()
