"""A host looks after its boards over the link, sans-I/O. SPEC.md section 6.10.

A board reports when its host asks. The host sets named values on one board, under a number that
rises. `session` carries the messages, and keys sign the settings.

    Joining ── BoardManagement        FleetSession ── FleetManagement
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Final

from ternmesh import __version__
from ternmesh.config import LOG_LEVELS
from ternmesh.errors import WireError
from ternmesh.federated.events import BoardChanged, SettingsTaken
from ternmesh.timers import RateLimiter
from ternmesh.wire.control import (
    INTEGER_MAX,
    Inquiry,
    Numbers,
    Refusal,
    Report,
    Settings,
    write_control,
)

# What a host may set on a board, in the order of the wire: each from 0 to this. Unset: as the
# board's own configuration says.
LIMITS: Final[Mapping[str, int]] = {
    "pause": 1,  # 1: no training
    "pace_s": 86_400,  # the least time between the begin of two rounds
    "log_level": len(LOG_LEVELS) - 1,
    "silence": 1,  # a share, in place of the plan's
    "threshold": 1,  # the least probability of a label, in place of that of [predict]
}
# The values of a report in the order of the wire.
VALUES: Final = (
    "uptime_s",
    "disk_free_mb",
    "memory_mib",
    "temperature_c",  # of the hottest sensor
    "activity",  # the place in ACTIVITIES
    "version",  # of the global adapter
    "rounds_trained",  # in this run, of those that the board remembers
    "rounds_diverged",  # since the program began
    "metric",
    "loss",
    "log_level",
    "airtime_s",  # of its radio, since the program began
    "airtime_left_s",  # of the hour that the law looks at, when its last frame left
)
ACTIVITIES: Final = (
    "joining",
    "waiting for work",
    "training",
    "paused by the host",
    "slowed by the host",
    "waiting for samples",
    "catching up",
    "sending",
    "waiting for the global update",
    "silent in this round",
    "finished",
    "revoked by the host",
    "paused: too hot",
    "paused: short of memory",
)
# The integers of the wire for each unit; 1 for all others
SCALES: Final[Mapping[str, int]] = {
    "silence": 1000,
    "temperature_c": 10,
    "metric": 1000,
    "loss": 1000,
    "threshold": 1000,
    "airtime_s": 10,
    "airtime_left_s": 10,
}
# What 0, 1 ... mean
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "pause": ("off", "on"),
    "log_level": tuple(level.lower() for level in LOG_LEVELS),
    "activity": ACTIVITIES,
}
REPORT_MIN_S = 2.0  # between two reports of a board that are not about new settings
INQUIRIES_MAX = 3  # without a report: the board has an older ternmesh, or is not there
AGAIN_LONGEST_S = 3600.0  # between two messages to a board that does not answer


def pack(names: Iterable[str], values: Mapping[str, float | None]) -> Numbers:
    """Return each value plus 1, the nearest that is possible; 0 for one that is not known."""
    scaled = {
        name: SCALES.get(name, 1) * value
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    }
    return tuple(
        1 + round(min(max(0, scaled[name]), INTEGER_MAX - 1)) if name in scaled else 0
        for name in names
    )


def unpack(names: Iterable[str], numbers: Numbers) -> dict[str, float]:
    """Return the values by name, without those behind that only newer versions know."""
    return {
        name: (number - 1) / SCALES[name] if name in SCALES else number - 1
        for name, number in zip(names, numbers, strict=False)
        if number
    }


def are_allowed(settings: Mapping[str, float]) -> bool:
    """Whether all of these are settings within their bounds."""
    return all(name in LIMITS and 0 <= value <= LIMITS[name] for name, value in settings.items())


def readable(values: Mapping[str, float]) -> dict[str, float | str]:
    """Return values with words in place of the numbers that stand for some."""
    return {
        name: next((word for n, word in enumerate(WORDS.get(name, ())) if n == value), value)
        for name, value in values.items()
    }


def settings_text(settings: Mapping[str, float]) -> str:
    """Return settings as they are typed: `pause=on silence=0.05`, say; empty for none."""
    return " ".join(f"{name}={value}" for name, value in readable(settings).items())


class BoardManagement:
    """The board's side. `number` and `wanted` are what the host has set last, from the disk.

    `allowed` names what it may set. `values` returns the values of a report by name.
    """

    def __init__(
        self,
        number: int = 0,
        wanted: Numbers = (),
        allowed: Collection[str] = (),
        values: Callable[[], Mapping[str, float | None]] = dict,
    ) -> None:
        self.number = number
        self.values = values
        self._allowed = allowed
        self.settings: dict[str, float] = {}  # in force
        self._reports = RateLimiter(REPORT_MIN_S)
        self._use(wanted)

    @property
    def paused(self) -> bool:
        return self.settings.get("pause") == 1

    def receive(self, message: Inquiry | Settings, now: float) -> Iterator[bytes | SettingsTaken]:
        """Yield bodies to send and events to save. Raises WireError after them, for a refusal."""
        number = message.number if isinstance(message, Settings) else self.number
        is_new = number > self.number
        has_taken_all = True
        if isinstance(message, Settings) and is_new:
            if not are_allowed(unpack(LIMITS, message.settings)):
                yield write_control(Refusal(number, "settings"))
                raise WireError("settings", "a setting is out of bounds")
            self.number = number
            has_taken_all = self._use(message.settings)
            yield SettingsTaken(number, message.settings)
        if self._reports.allow("", now) or is_new:
            in_force = pack(LIMITS, self.settings)
            report = Report(__version__, self.number, in_force, pack(VALUES, self.values()))
            yield write_control(report)
        if number < self.number:
            raise WireError("replay", "settings that newer ones have replaced")
        if not has_taken_all:
            raise WireError("settings", "a setting that this board does not let the host choose")

    def _use(self, wanted: Numbers) -> bool:
        """Put the allowed ones in force; return whether these are all."""
        asked = unpack(LIMITS, wanted)
        self.settings = {name: asked[name] for name in asked if name in self._allowed}
        return self.settings == asked


@dataclass(slots=True)
class BoardRecord:
    """What the host wants of a board and knows of it. The first four survive a restart."""

    number: int = 0  # of the settings that the host wants; 0: it has set none
    wanted: Numbers = ()
    report: Report | None = None
    reported_at: float = 0.0
    instance: bytes = b""  # in its last hello
    must_report: bool = False
    tries: int = 0  # messages since it was last heard
    at: float = 0.0  # when to send the next

    @property
    def is_behind(self) -> bool:
        """Whether it has not taken the newest settings yet."""
        return self.number > (0 if self.report is None else self.report.number)

    @property
    def is_waiting(self) -> bool:
        """Whether it has to hear something."""
        # Settings are for boards that know of them: older ones refuse an inquiry only.
        is_asked = self.must_report or self.report is None
        return self.tries < INQUIRIES_MAX if is_asked else self.is_behind

    @property
    def software(self) -> str | None:
        """The version of ternmesh on it, if it has reported."""
        return None if self.report is None else self.report.software

    @property
    def in_force(self) -> dict[str, float]:
        """The settings in force when it last reported, of those that this version knows."""
        values = {} if self.report is None else unpack(LIMITS, self.report.settings)
        return {name: values[name] for name in values if are_allowed({name: values[name]})}


class FleetManagement:
    """The host's side. `first_s` is the wait for an answer; then it doubles."""

    def __init__(self, first_s: float) -> None:
        self.boards: defaultdict[str, BoardRecord] = defaultdict(BoardRecord)
        self._first_s = first_s
        self._turns: list[tuple[float, str]] = []  # a heap: whom to look at when; some are over

    def restore(self, boards: Mapping[str, BoardRecord]) -> None:
        """Continue with what an earlier process has saved."""
        self.boards.update(boards)
        self._turns = sorted((board.at, name) for name, board in boards.items())

    def heard(self, name: str, instance: bytes, now: float) -> None:
        """Note a hello: a board that has begun anew must report, one that is behind is told."""
        if instance != self.boards[name].instance:
            self.inquire(name, now).instance = instance
        elif self.boards[name].is_behind:
            self._wake(name, now)

    def inquire(self, name: str, now: float) -> BoardRecord:
        board = self._wake(name, now)
        board.must_report = True
        return board

    def reported(self, name: str, report: Report, now: float) -> BoardChanged | None:
        """Note a report. Returns what to save; None where nobody asked and little is new.

        Reports that nobody asked for lead to no message: a board could send them without end.
        """
        board = self.boards[name]
        old = board.report
        is_asked, was_behind = board.must_report or old is None, board.is_behind
        if is_asked:
            self._wake(name, now)
        board.report, board.reported_at, board.must_report = report, now, False
        if report.number > board.number:
            # This host was restored from an older copy: what it had set since then stays.
            board.number, board.wanted = report.number, pack(LIMITS, board.in_force)
        elif not board.is_behind and board.in_force.items() - unpack(LIMITS, board.wanted).items():
            # This host has used the number once before, and was then restored from an older copy.
            board.number = min(INTEGER_MAX, 1 + board.number)
        if board.is_behind > was_behind:  # an older report may come late
            heappush(self._turns, (board.at, name))  # no sooner than a message is due
        if is_asked or replace(old or report, values=report.values) != report:
            return BoardChanged(name, board.number, board.wanted, report)
        return None

    def set(self, name: str, settings: Mapping[str, float | None], now: float) -> BoardChanged:
        """Set all settings of a board, None: its own. Returns what to save."""
        board = self._wake(name, now)
        wanted = pack(LIMITS, settings)
        if wanted != (board.wanted or pack(LIMITS, {})):
            board.number, board.wanted = min(INTEGER_MAX, 1 + board.number), wanted
        return BoardChanged(name, board.number, board.wanted, board.report)

    def next_due(self) -> float | None:
        """Return the time when `due` has something to do; None if it has not."""
        while self._turns:
            at, name = self._turns[0]
            board = self.boards[name]
            if at == board.at and board.is_waiting:
                return at
            heappop(self._turns)
        return None

    def due(self, now: float) -> Iterator[tuple[str, Inquiry | Settings]]:
        while (at := self.next_due()) is not None and now >= at:
            _, name = heappop(self._turns)
            board = self.boards[name]
            is_asked = board.must_report or board.report is None
            board.at = now + min(AGAIN_LONGEST_S, self._first_s * 2 ** min(board.tries, 16))
            board.tries += 1
            heappush(self._turns, (board.at, name))
            yield name, Inquiry() if is_asked else Settings(board.number, board.wanted)

    def _wake(self, name: str, now: float) -> BoardRecord:
        board = self.boards[name]
        board.tries, board.at = 0, now
        heappush(self._turns, (now, name))
        return board
