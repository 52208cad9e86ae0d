"""How long every transport waits before it tries to connect once more."""

import random

DOUBLINGS_MAX = 60


def backoff_s(attempt: int, first_s: float, longest_s: float, rng: random.Random) -> float:
    """The pause after attempt 0, 1, 2, ...: doubling to `longest_s`, half of it random.

    The random half keeps a fleet that lost its broker or bridge from coming back all at once.
    """
    ceiling_s = min(longest_s, first_s * 2.0 ** min(max(attempt, 0), DOUBLINGS_MAX))
    return ceiling_s * rng.uniform(0.5, 1.0)
