"""Which release of a model a board runs: trial, and the way back to the last good one.

`Standing` is kept on disk and changed by the functions here alone; they need no clock. A release is
on trial until it has proved itself. A trial that ends without a verdict (a crash, a kill, a power
cut) has left its attempt on disk.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

ATTEMPTS_MAX = 3  # trials in which the process may die: a board may also lose power in one
BAD_MAX = 32  # versions whose reasons are remembered; older ones stay below the floor
REASON_MAX = 300  # characters


@dataclass(frozen=True, slots=True)
class Standing:
    """Which releases a board runs: kept on disk, changed by the functions below alone.

    Version 0 is the bundle of the board's configuration. `current` is on trial while it is not
    `last_good`. Versions up to `floor` are never begun again.
    """

    current: int = 0
    last_good: int = 0
    floor: int = 0
    attempts: int = 0
    bad: tuple[tuple[int, str], ...] = ()

    @property
    def on_trial(self) -> bool:
        """Whether the current release has still to prove itself."""
        return self.current != self.last_good


def adopt(standing: Standing, installed: Collection[int]) -> Standing:
    """Put the newest release on trial, if it is newer than every one that was tried."""
    newest = max(installed, default=0)
    if newest <= standing.floor:
        return standing
    return replace(standing, current=newest, floor=newest, attempts=0)


def attempt(standing: Standing) -> Standing:
    """A trial begins, and this is on disk before it does: back it goes if too many have died."""
    if not standing.on_trial:
        return standing
    if standing.attempts >= ATTEMPTS_MAX:
        return fail(standing, f"the node died in {standing.attempts} trials of it")
    return replace(standing, attempts=standing.attempts + 1)


def excuse(standing: Standing) -> Standing:
    """The trial could not be held, which was not the release's fault: it does not count."""
    return replace(standing, attempts=max(0, standing.attempts - 1))


def succeed(standing: Standing) -> Standing:
    """The trial went well: the current release is the last good one."""
    return replace(standing, last_good=standing.current, attempts=0)


def fail(standing: Standing, reason: str) -> Standing:
    """Back to the last good release, or from a last good one to the configured bundle."""
    back = standing.last_good if standing.on_trial else 0
    bad = (*standing.bad, (standing.current, reason[:REASON_MAX]))[-BAD_MAX:]
    return replace(standing, current=back, last_good=back, attempts=0, bad=bad)
