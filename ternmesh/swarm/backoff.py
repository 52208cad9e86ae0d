"""A timer for something that is asked again and again, ever more seldom, never in step."""

import numpy as np

ATTEMPTS_MAX = 16  # beyond it the delay does not grow


class Backoff:
    """When to ask again; `at` is None while there is nothing to ask. Times in seconds."""

    def __init__(self, first_s: float, longest_s: float, rng: np.random.Generator) -> None:
        self.at: float | None = None
        self._first_s, self._longest_s, self._rng = first_s, longest_s, rng
        self._attempt = 0

    def again(self, now: float) -> float:
        """It was asked now: wait twice as long as the last time, give or take a half.

        Returns the time at which to ask again.
        """
        delay_s = min(self._longest_s, self._first_s * 2.0 ** min(self._attempt, ATTEMPTS_MAX))
        self.at = now + delay_s * (0.5 + self._rng.random())
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
        self.at, self._attempt = None, 0

    def due(self, now: float) -> bool:
        """Whether to ask now."""
        return self.at is not None and now >= self.at


def earliest(*times: float | None) -> float | None:
    """The first of these times, without those that are None."""
    return min((time for time in times if time is not None), default=None)
