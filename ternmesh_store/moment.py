"""What time it is, and how much of that can be trusted: the `Moment` of the airtime ledger."""

import ctypes
import time
from pathlib import Path

from ternmesh.link.ledger import Moment

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIMEX_BYTES = 256  # more than struct timex on any Linux; zeros: read, change nothing
_TIME_ERROR = 5  # what adjtimex answers while the clock is not synchronised


def read_moment() -> Moment:
    """Now. Without Linux nothing is trusted, so that each start counts as a boot."""
    wall_s = time.time() if _is_synchronised() else None
    return Moment(_boot(), time.monotonic(), wall_s)


def _boot() -> str:
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""  # no Linux: no boot is known to be the same


def _is_synchronised() -> bool:
    """Whether NTP (any daemon) or a GPS disciplines the clock, by the kernel's own account."""
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    if adjtimex is None:
        return False
    state: int = adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    return 0 <= state < _TIME_ERROR
