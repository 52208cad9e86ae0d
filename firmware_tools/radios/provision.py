"""Modems are found, compared with what they should be, and changed.

A change ends in one of three ways: the modem has what was wanted, or it has what it had, or the
outcome says why it has neither.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from firmware_tools.errors import FirmwareError, NoAnswer
from firmware_tools.radios.fleet_file import RadioFleet
from firmware_tools.radios.modems import BY_DIALECT, SHORT_S, Line, Modem, Settings
from ternmesh.errors import TernmeshError
from transports.base import TransportError
from transports.serial_lora.port import BOTH_ON, PortError
from transports.serial_lora.settings import SerialLoraSettings

BOOT_S = 8.0  # for a board to restart
FAILURES = (TernmeshError, TransportError, OSError, ValueError)  # of one modem
Changes = dict[str, tuple[str, str]]  # before and after, to be shown


@dataclass(frozen=True, slots=True)
class Found:
    """A modem at a port."""

    port: str
    baud: int
    dialect: str
    identity: str
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one modem.

    `changed`, `unchanged`, `differs` (nothing was written) or `failed`.
    """

    port: str
    name: str
    result: str
    changes: Changes = field(default_factory=dict)
    reason: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the modem has now what it should have."""
        return self.result in ("changed", "unchanged")


@contextmanager
def opened(
    port: str, kinds: Sequence[type[Modem]], end: SerialLoraSettings | None = None
) -> Iterator[tuple[Modem, Found]]:
    """The modem at a port, which no other program can use meanwhile.

    The rate in `end` is tried before those at which such modems usually are. PortError where the
    port cannot be opened, NoAnswer where there is none of these kinds.
    """
    own = () if end is None else (end.baud,)
    rates = dict.fromkeys((*own, *(baud for kind in kinds for baud in kind.bauds)))
    tries = [(rate, kind) for rate in rates for kind in kinds if rate in (*kind.bauds, *own)]
    lines = BOTH_ON if end is None else (end.dtr, end.rts)
    with Line(port, tries[0][0], lines) as line:
        # Many boards restart when their port is opened: it stays open, and they get time.
        ends_at = time.monotonic() + BOOT_S
        answer_s, reason, is_last = SHORT_S, "", False
        while not is_last:
            is_last = time.monotonic() >= ends_at
            for baud, kind in tries:
                line.set_baud(baud)
                modem = kind(line, answer_s)
                try:
                    identity = modem.identify()
                    found = Found(port, baud, kind.dialect, identity, modem.read())
                except NoAnswer as error:
                    reason = reason or str(error)
                    continue
                yield modem, found
                return
            answer_s *= 2
    names = ", ".join(kind.dialect for kind in kinds)
    reason = f": {reason}" if len(kinds) == 1 else ""
    raise NoAnswer(
        f"{port}: no modem of a known dialect answers ({names}){reason}; check its power and "
        "wires; an EBYTE must be in configuration mode (M1 high, M0 low)"
    )


def probe(port: str) -> Found:
    """Which modem is at a port, and its settings; PortError, FirmwareError."""
    with opened(port, tuple(BY_DIALECT.values())) as (_, found):
        return found


def differences(have: Settings, wanted: Settings) -> Changes:
    """The settings to change, with what they are and what they should be."""
    return {
        name: (have.get(name, "?"), value)
        for name, value in wanted.items()
        if have.get(name) != value
    }


def provision(port: str, name: str, fleet: RadioFleet, *, is_dry: bool) -> Outcome:
    """Give a modem its settings; where it is dry, only compare. All failures are in the outcome."""
    outcome = Outcome(port, name, "failed")
    try:
        wanted = fleet.wanted(name)
        with opened(port, [fleet.modem], fleet.ends[name]) as (modem, before):
            outcome = replace(outcome, changes=differences(before.settings, wanted))
            if not outcome.changes:
                return replace(outcome, result="unchanged")
            if is_dry:
                return replace(outcome, result="differs")
            try:
                _change(modem, outcome.changes, wanted)
            except PortError:
                raise
            except FAILURES as error:
                return _taken_back(modem, before, replace(outcome, reason=str(error)))
        return replace(outcome, result="changed")
    except FAILURES as error:
        return replace(outcome, reason=str(error))


def _change(modem: Modem, changes: Changes, wanted: Settings) -> None:
    """Write, then read whether the modem shows what was written; FirmwareError, PortError."""
    modem.write({name: wanted[name] for name in changes})
    if left := differences(modem.read(), wanted):
        raise FirmwareError(f"the modem has not kept {', '.join(left)}")


def _taken_back(modem: Modem, before: Found, failed: Outcome) -> Outcome:
    """Give the modem what it had before a change that failed, and say whether that worked."""
    try:
        if left := differences(modem.read(), before.settings):
            _change(modem, left, before.settings)
        ending = "it has again what it had before"
    except FAILURES as second:
        ending = f"what it had could not be brought back ({second}): provision it again"
    return replace(failed, reason=f"{failed.reason}; {ending}")
