"""What training may use of a board: it waits while the board is hot or short of memory.

`measure` reads the system, `why_to_wait` decides, and a node asks `Throttle` before each step.
"""

import logging
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from edge.config import ResourcesConfig

# Why training waits, in the words of ACTIVITIES in `ternmesh.federated.management`
HOT, SHORT_OF_MEMORY = "paused: too hot", "paused: short of memory"
COOLER_C = 5.0  # below its limit, a board that was too hot trains again
MEASURE_S = 1.0  # between two readings
RETRY_S, REST_S = 10.0, 600.0  # after a failure for lack of memory; from FAILURES in a row on
FAILURES = 3
BATCH_S = 0.05  # the target of one batch

CELSIUS = range(-40, 150)  # sensors that are switched off say something else
FIXED = "PMIC-Die"  # a zone of NVIDIA's boards that always says 100 degrees
_SOME = re.compile(r"^some avg10=(\d+\.\d+)", re.MULTILINE)
_GROUP = re.compile(r"^0::/(.*)$", re.MULTILINE)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Readings:
    """What a board measures of itself; None for what it cannot measure."""

    temperature_c: float | None = None  # of its hottest zone
    memory_pressure: float | None = None  # percent of 10 s in which some program waited for memory


def measure(root: Path = Path("/")) -> Readings:
    """The readings of the system whose /sys and /proc are in `root`.

    Pressure is "some avg10" of the kernel's PSI (Documentation/accounting/psi.rst), the higher one
    of the system and of this process's control group (version 2).
    """
    zones = (root / "sys/class/thermal").glob("thermal_zone*")
    groups = _GROUP.findall(_text(root / "proc/self/cgroup"))
    files = [root / "sys/fs/cgroup" / group / "memory.pressure" for group in groups]
    shares = [_SOME.findall(_text(file)) for file in (root / "proc/pressure/memory", *files)]
    return Readings(
        max((value for zone in zones for value in _temperatures(zone)), default=None),
        max((float(share) for values in shares for share in values), default=None),
    )


def _temperatures(zone: Path) -> list[float]:
    """The temperature of a zone; none where its sensor does not measure."""
    is_fixed = _text(zone / "type").strip() == FIXED
    numbers = [] if is_fixed else re.findall(r"^-?\d{1,9}$", _text(zone / "temp").strip())
    return [int(text) / 1000 for text in numbers if int(text) // 1000 in CELSIUS]


def _text(path: Path) -> str:
    """The content of a file of the kernel; empty where there is none, or its sensor is off."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""


def why_to_wait(
    readings: Readings, settings: ResourcesConfig, before: Collection[str] = ()
) -> dict[str, str]:
    """What keeps training from going on, with the reason of each; empty if nothing does.

    `before` is what did at the last reading: it ends `COOLER_C` below its limit, or at half of it.
    """
    hot, pressed = settings.temperature_max_c, settings.memory_pressure_max
    reasons = {}
    for what, value, limit, calm, name, unit in (
        (HOT, readings.temperature_c, hot, hot - COOLER_C, "", "C"),
        (SHORT_OF_MEMORY, readings.memory_pressure, pressed, pressed / 2, "memory pressure ", "%"),
    ):
        if limit and value is not None and value > (calm if what in before else limit):
            reasons[what] = f"{name}{value:.0f} {unit}, waits for {calm:.0f} {unit}"
    return reasons


class Throttle:
    """Whether a node may take its next step now: not while there are `causes` to wait."""

    def __init__(self, settings: ResourcesConfig) -> None:
        self.measure: Callable[[], Readings] = measure
        self.readings = Readings()  # the last
        self.causes: Mapping[str, str] = {}
        self._settings = settings
        self._measure_at = -math.inf
        self._retry_at = -math.inf
        self._failures = 0  # in a row, for lack of memory

    @property
    def reason(self) -> str:
        """Why training waits; empty while it need not."""
        return " and ".join(self.causes.values())

    def look(self, now: float) -> None:
        """Measure, at most once in `MEASURE_S`, and decide; a change is logged."""
        if now < self._measure_at:
            return
        is_first = self._measure_at == -math.inf
        self._measure_at = now + MEASURE_S
        self.readings = self.measure()
        is_blind = self.readings.memory_pressure is None
        if is_first and is_blind and self._settings.memory_pressure_max:
            _log.info("this kernel has no PSI: memory pressure does not pause training here")
        causes = why_to_wait(self.readings, self._settings, self.causes)
        if now < self._retry_at:
            text = f"too little for a step, tries again in {self._retry_at - now:.0f} s"
            causes.setdefault(SHORT_OF_MEMORY, text)
        is_news = causes.keys() != self.causes.keys()
        self.causes = causes
        if is_news:
            _log.warning("training %s", f"is paused: {self.reason}" if causes else "goes on")

    def worked(self) -> None:
        """Note a step that succeeded."""
        self._failures = 0

    def failed(self, error: Exception, now: float) -> None:
        """Note a step that failed for lack of memory."""
        self._failures += 1
        self._retry_at = now + (RETRY_S if self._failures < FAILURES else REST_S)
        _log.warning("out of memory, failure %d in a row: %s", self._failures, error)
        self._measure_at = now
        self.look(now)


class BatchSize:
    """How many samples the next batch should have, so that it takes at most about `BATCH_S`."""

    def __init__(self, samples_max: int) -> None:
        self.samples = 1
        self._samples_max = samples_max

    def took(self, samples: int, seconds: float) -> None:
        """Note the time of a batch: twice as many next if that fits, half if it took too long."""
        if seconds > BATCH_S:
            self.samples = max(1, self.samples // 2)
        elif samples == self.samples and seconds < BATCH_S / 2:
            self.samples = min(self._samples_max, 2 * samples)

    def failed(self) -> bool:
        """Note a lack of memory: half from now on. False if there was room for not even one."""
        had_many = self.samples > 1
        self.samples = self._samples_max = max(1, self.samples // 2)
        return had_many
