"""Who agrees, and how many of them it takes. SPEC.md section 13.1."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ternmesh.config import ConfigError
from ternmesh.security.primitives import statement

VOTERS_MAX = 16
CRASH, BFT = "crash", "bft"
DOMAIN = "agreement"
_STEP = {CRASH: 2, BFT: 3}  # voters that each one more that may fail costs


@dataclass(frozen=True)
class Voters:
    """The voters of a run in the order in which they lead; a voter's index is its place here."""

    run: bytes
    names: tuple[str, ...]
    mode: str

    @property
    def count(self) -> int:
        return len(self.names)

    @cached_property
    def faults(self) -> int:
        """Voters that may fail together: stop (crash), or stop or lie (bft)."""
        return (self.count - 1) // _STEP[self.mode]

    @cached_property
    def quorum(self) -> int:
        return self.count // 2 + 1 if self.mode == CRASH else 2 * self.faults + 1

    @cached_property
    def witnesses(self) -> int:
        """So many voters say nothing that is true of no honest one."""
        return 1 if self.mode == CRASH else self.faults + 1

    @cached_property
    def answers_needed(self) -> int:
        """Others that must answer a voter that starts: an honest one of each quorum is among them.

        This holds with `faults` faults in all, the old disk being one of them.
        """
        meets_each_quorum = self.count - self.quorum + 1
        return min(self.count - 1, max(meets_each_quorum, self.mode == BFT and self.quorum - 1))

    @cached_property
    def statement_start(self) -> bytes:
        """What every signature of a voter covers before the message."""
        listed = hashlib.sha256("\n".join((self.mode, *self.names)).encode()).digest()
        return statement(DOMAIN, self.run, listed)

    def leader(self, term: int) -> int:
        return term % self.count

    def backed(self, numbers: Iterable[int]) -> int:
        """The highest of these numbers, each of one voter, that liars alone cannot raise; or 0."""
        return nth_highest(numbers, self.witnesses)


def make_voters(run: bytes, names: Iterable[str], mode: str) -> Voters:
    """The voters of these names. ConfigError for a number that is wasted or too large."""
    ordered = sorted(names, key=lambda name: hashlib.sha256(run + name.encode()).digest())
    if mode not in _STEP:
        raise ConfigError(f"agreement.mode must be {CRASH!r} or {BFT!r}, not {mode!r}")
    if len(set(ordered)) < len(ordered):
        raise ConfigError("two voters have one name: give each its own")
    step, count = _STEP[mode], len(ordered)
    fitting = [number for number in range(1, VOTERS_MAX + 1) if number % step == 1]
    if count not in fitting:
        near = sorted(fitting, key=lambda number: (abs(number - count), -number))[:1]
        raise ConfigError(
            f"{count} voters bear no more faults than fewer do in the mode {mode!r}: "
            f"take {near[0]} (1, {1 + step}, {1 + 2 * step} ... are of use)"
        )
    return Voters(run, tuple(ordered), mode)


def nth_highest(numbers: Iterable[int], place: int) -> int:
    """The number at a place (1 is the highest), or 0 where there are fewer."""
    ordered = sorted(numbers, reverse=True)
    return ordered[place - 1] if len(ordered) >= place else 0
