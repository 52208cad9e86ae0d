"""A host looks after its boards over the link, sans-I/O. SPEC.md section 6.10.

A board reports when its host asks. The host sets named values on one board, under a number that
rises. `session` carries the messages, and keys sign the settings.

    NodeSession ── BoardManagement        HostSession ── FleetManagement
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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

# What a host may set on a board, in the order of the wire, with bounds. Unset: as the board's own
# configuration says.
LIMITS: Final[Mapping[str, tuple[int, int]]] = {
    "pause": (0, 1),  # 1: no training
    "pace_s": (0, 86_400),  # the least time between the begin of two rounds
    "log_level": (0, len(LOG_LEVELS) - 1),
    "silence": (0, 1000),  # in place of the plan's `silence_permille`
}
# The values of a report in the order of the wire.
VALUES: Final = (
    "uptime_s",
    "disk_free_mb",
    "memory_mib",
    "temperature_dc",  # of the processor, in tenths of a degree Celsius
    "activity",  # the place in ACTIVITIES
    "version",  # of the global adapter
    "rounds_trained",  # in this run, of those that the board remembers
    "rounds_diverged",  # since the program began
    "metric_milli",
    "loss_milli",
    "log_level",
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
)
REPORT_MIN_S = 2.0  # between two reports of a board that are not about new settings
HELLO_MIN_S = 2.0  # between two hellos of a board that lead to an inquiry
INQUIRIES_MAX = 3  # without a report: the board has an older ternmesh, or is not there
AGAIN_LONGEST_S = 3600.0  # between two messages to a board that does not answer


def pack(names: Iterable[str], values: Mapping[str, int]) -> Numbers:
    """Return each value plus 1, and 0 for one that is missing; the nearest that is possible."""
    return tuple(
        1 + min(max(0, values[name]), INTEGER_MAX - 1) if name in values else 0 for name in names
    )


def unpack(names: Iterable[str], numbers: Numbers) -> dict[str, int]:
    """Return the values by name, without those behind that only newer versions know."""
    return {name: number - 1 for name, number in zip(names, numbers, strict=False) if number}


def are_allowed(settings: Mapping[str, int]) -> bool:
    """Whether all of these are settings within their bounds."""
    return all(
        name in LIMITS and LIMITS[name][0] <= value <= LIMITS[name][1]
        for name, value in settings.items()
    )


def settings_text(settings: Mapping[str, int]) -> str:
    """Return settings as they are typed: `pause=on silence=0.05`, say; empty for none."""
    shown: dict[str, object] = dict(settings)
    if "pause" in settings:
        shown["pause"] = "on" if settings["pause"] else "off"
    if "log_level" in settings:
        shown["log_level"] = LOG_LEVELS[settings["log_level"]].lower()
    if "silence" in settings:
        shown["silence"] = settings["silence"] / 1000
    return " ".join(f"{name}={value}" for name, value in shown.items())


class BoardManagement:
    """The board's side. `number` and `wanted` are what the host has set last, from the disk.

    `allowed` names what it may set. `values` returns the values of a report by name.
    """

    def __init__(
        self,
        number: int = 0,
        wanted: Numbers = (),
        allowed: Collection[str] = (),
        values: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.number = number
        self.values = values
        self.began_at = -math.inf  # when the board has begun its last round
        self._allowed = allowed
        self.settings: dict[str, int] = {}  # in force
        self._reports = RateLimiter(REPORT_MIN_S)
        self._use(wanted)

    @property
    def paused(self) -> bool:
        """Whether the board must not train."""
        return self.settings.get("pause") == 1

    @property
    def begin_at(self) -> float:
        """The time before which the board must not begin a round."""
        return self.began_at + self.settings.get("pace_s", 0)

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
            yield write_control(
                Report(__version__, self.number, in_force, pack(VALUES, self.values()))
            )
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
class Board:
    """What the host wants of a board and knows of it. The first four survive a restart."""

    number: int = 0  # of the settings that the host wants; 0: it has set none
    wanted: Numbers = ()
    report: Report | None = None
    reported_at: float = 0.0
    instance: bytes = b""  # in its last hello
    must_report: bool = False
    refused: int = 0  # the number of settings that it has refused
    tries: int = 0  # messages since it was last heard
    at: float = 0.0  # when to send the next

    @property
    def is_behind(self) -> bool:
        """Whether it has not taken the newest settings yet."""
        taken = 0 if self.report is None else self.report.number
        return max(taken, self.refused) < self.number

    @property
    def software(self) -> str | None:
        """The version of ternmesh on it, if it has reported."""
        return None if self.report is None else self.report.software

    @property
    def in_force(self) -> dict[str, int]:
        """The settings in force when it last reported."""
        return {} if self.report is None else unpack(LIMITS, self.report.settings)

    @property
    def is_mute(self) -> bool:
        """Whether it leaves inquiries unanswered."""
        return self.must_report and self.tries >= INQUIRIES_MAX


class FleetManagement:
    """The host's side. `first_s` is the wait for an answer; then it doubles."""

    def __init__(self, first_s: float) -> None:
        self.boards: dict[str, Board] = {}
        self._first_s = first_s
        self._waiting: dict[str, Board] = {}  # those that have to hear something
        self._hellos = RateLimiter(HELLO_MIN_S)
        self._saves = RateLimiter(REPORT_MIN_S)

    def restore(self, boards: Mapping[str, Board]) -> None:
        """Continue with what an earlier process has saved."""
        self.boards.update(boards)
        self._waiting.update(boards)

    def board(self, name: str) -> Board:
        """Return what is known of a board."""
        return self.boards.get(name, Board())

    def heard(self, name: str, instance: bytes, now: float) -> None:
        """Note a hello: a board that has begun anew must report, one that is behind is told."""
        if instance != self.board(name).instance and self._hellos.allow(name, now):
            self.inquire(name, now).instance = instance
        elif self.board(name).is_behind:
            self._wake(name, now)

    def inquire(self, name: str, now: float) -> Board:
        """Ask a board for a report."""
        board = self._wake(name, now)
        board.must_report = True
        return board

    def reported(self, name: str, report: Report, now: float) -> BoardChanged | None:
        """Note a report. Returns what to save; None where it is much like one just saved.

        Reports that nobody asked for lead to no message: a board could send them without end.
        """
        board = self.boards.setdefault(name, Board())
        if board.must_report:
            self._wake(name, now)
        old = replace(board.report or report, values=report.values)
        is_alike = board.report is not None and old == report
        board.report, board.reported_at, board.must_report = report, now, False
        if not self._saves.allow(name, now) and is_alike:
            return None
        return BoardChanged(name, board.number, board.wanted, report)

    def refused(self, name: str, number: int) -> None:
        """Note that a board has refused settings: it is not sent these again."""
        board = self.board(name)
        board.refused = max(board.refused, min(number, board.number))

    def set(self, name: str, settings: Mapping[str, int], now: float) -> BoardChanged | None:
        """Set all settings of a board. Returns what to save; None where nothing changes."""
        board = self._wake(name, now)
        board.must_report |= board.report is None
        wanted = pack(LIMITS, settings)
        if wanted == (board.wanted or pack(LIMITS, {})):
            return None
        taken = 0 if board.report is None else board.report.number
        board.number = min(INTEGER_MAX, 1 + max(board.number, taken))
        board.wanted = wanted
        return BoardChanged(name, board.number, wanted, board.report)

    def due(self, now: float) -> Iterator[tuple[str, Inquiry | Settings]]:
        """Yield what to send now, by board."""
        for name, board in list(self._waiting.items()):
            if board.is_mute or not (board.must_report or board.is_behind):
                del self._waiting[name]
            elif now >= board.at:
                board.at = now + min(AGAIN_LONGEST_S, self._first_s * 2 ** min(board.tries, 16))
                board.tries += 1
                # Settings are for boards that know of them: older ones refuse an inquiry only.
                yield name, Inquiry() if board.must_report else Settings(board.number, board.wanted)

    def _wake(self, name: str, now: float) -> Board:
        board = self.boards.setdefault(name, Board())
        board.tries, board.at = 0, now
        self._waiting[name] = board
        return board
