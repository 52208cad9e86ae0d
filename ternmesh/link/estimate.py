"""Estimate the cost of an object on a radio channel: frames, airtime, wall time.

Expected values: at a loss of p, k symbols take k / (1 - p) frames, since the receiver asks for
exactly what it lacks. The wall time is a dry run of the ledger, with frames back to back. It leaves
out the receiver's duty cycle and the turnaround of the radios.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from ternmesh.link.airtime import FRAME_MAX
from ternmesh.link.ledger import HOLD_MAX_S, Ledger
from ternmesh.link.regions import SHORTEST_FRAME

SYMBOL_OVERHEAD = 17  # bytes: seal 14, head 3
OFFER_FRAME = SHORTEST_FRAME  # bytes, seal included
STATUS_FRAME = 20  # bytes, seal included: one generation


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of one object. `frames` counts source and repair symbols, without offers.

    `airtime_us` is the sender's, `reply_airtime_us` the receiver's.
    """

    symbols: int
    frame_bytes: int
    frames: int
    offers: int
    statuses: int
    airtime_us: int
    reply_airtime_us: int
    wall_s: float


def estimate(
    size: int,
    airtime_us: Callable[[int], int],
    frame_max: int = FRAME_MAX,
    loss: float = 0.0,
    budget_us: int | None = None,
    hold_s: float = 0.0,
) -> Estimate:
    """Return the cost of `size` bytes in frames of up to `frame_max`; a fraction `loss` is lost.

    `airtime_us` tells what a frame of so many bytes takes, in microseconds. `budget_us` is the
    airtime of an hour (None: no duty cycle), and all of it is left; `hold_s` as in `dry_run_s`.
    ValueError for an object of no bytes, frames too short for an offer, or a loss outside 0 to
    below 1.
    """
    if size < 1 or frame_max < OFFER_FRAME or not 0 <= loss < 1:
        raise ValueError(
            f"{size} bytes in frames of {frame_max} at a loss of {loss}: at least 1 byte, frames "
            f"of at least {OFFER_FRAME} and a loss of at least 0 and below 1 are needed"
        )
    symbols = ceil(size / (frame_max - SYMBOL_OVERHEAD))
    frame_bytes = ceil(size / symbols) + SYMBOL_OVERHEAD
    frames, offers = ceil(symbols / (1 - loss)), round(1 / (1 - loss))
    statuses = round(_rounds(symbols, loss) / (1 - loss))
    sent = [airtime_us(OFFER_FRAME)] * offers
    sent += [airtime_us(frame_bytes)] * frames
    replies_us = statuses * airtime_us(STATUS_FRAME)
    return Estimate(
        symbols=symbols,
        frame_bytes=frame_bytes,
        frames=frames,
        offers=offers,
        statuses=statuses,
        airtime_us=sum(sent),
        reply_airtime_us=replies_us,
        wall_s=dry_run_s(sent, budget_us, hold_s) + replies_us / 1e6,
    )


def _rounds(symbols: int, loss: float) -> int:
    """Return the expected number of statuses until less than half a symbol is missing."""
    rounds = 1
    missing = symbols * loss
    while missing >= 0.5:
        rounds += 1
        missing *= loss
    return rounds


def dry_run_s(airtimes_us: list[int], budget_us: int | None, hold_s: float = 0.0) -> float:
    """Return how long frames of these airtimes take, in this order, in seconds; inf: for ever.

    A radio may keep each for `hold_s`, so that it is charged to the hour for as much longer.
    """
    if budget_us is None:
        return sum(airtimes_us) / 1e6
    trial = Ledger(budget_us)
    at = 0.0
    for airtime in airtimes_us:
        at = trial.next_free_s(at, airtime)
        if not trial.reserve(at, airtime, min(hold_s, HOLD_MAX_S - airtime / 1e6)):
            break  # inf: it never fits
        at += airtime / 1e6
    return at
