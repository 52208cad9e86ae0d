"""Modems are found, compared with what they should be, and changed.

A change ends in one of three ways: the modem has what was wanted, or it has what it had, or the
outcome says why it has neither.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from firmware_tools.errors import FirmwareError, NoAnswer
from firmware_tools.radios.ebyte import BAUD, EbyteProvisioner, Settings
from firmware_tools.radios.fleet_file import RadioFleet
from ternmesh.errors import TernmeshError
from transports.base import TransportError
from transports.serial_lora.port import BOTH_ON, Lines, PortError

BOOT_S = 8.0  # for a board to restart
FAILURES = (TernmeshError, TransportError, OSError, ValueError)  # of one modem
Changes = dict[str, tuple[str, str]]  # before and after, to be shown


@dataclass(frozen=True, slots=True)
class Found:
    """A modem at a port."""

    port: str
    settings: Settings
    baud: int = BAUD
    dialect: str = "ebyte"
    identity: str = "EBYTE E22 in configuration mode"


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
def opened(port: str, lines: Lines = BOTH_ON) -> Iterator[tuple[EbyteProvisioner, Settings]]:
    """The modem at a port, which no other program can use meanwhile, and its settings.

    PortError where the port cannot be opened, NoAnswer where there is no such modem.
    """
    with EbyteProvisioner(port, lines) as modem:
        # Many boards restart when their port is opened: it stays open, and they get time.
        ends_at = time.monotonic() + BOOT_S
        while True:
            is_last = time.monotonic() >= ends_at
            try:
                settings = modem.read()
                break
            except NoAnswer:
                if is_last:
                    raise
        yield modem, settings


def probe(port: str) -> Found:
    """The modem at a port, and its settings; PortError, FirmwareError."""
    with opened(port) as (_, settings):
        return Found(port, settings)


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
        end = fleet.ends[name]
        with opened(port, (end.dtr, end.rts)) as (modem, before):
            outcome = replace(outcome, changes=differences(before, wanted))
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


def _change(modem: EbyteProvisioner, changes: Changes, wanted: Settings) -> None:
    """Write, then read whether the modem shows what was written; FirmwareError, PortError."""
    modem.write({name: wanted[name] for name in changes})
    if left := differences(modem.read(), wanted):
        raise FirmwareError(f"the modem has not kept {', '.join(left)}")


def _taken_back(modem: EbyteProvisioner, before: Settings, failed: Outcome) -> Outcome:
    """Give the modem what it had before a change that failed, and say whether that worked."""
    try:
        if left := differences(modem.read(), before):
            _change(modem, left, before)
        ending = "it has again what it had before"
    except FAILURES as second:
        ending = f"what it had could not be brought back ({second}): provision it again"
    return replace(failed, reason=f"{failed.reason}; {ending}")
