"""Modems are found, compared with what they should be, and changed.

A change ends in one of three ways: the modem has what was wanted, or it has what it had, or the
outcome says why it has neither.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from firmware_tools.errors import FirmwareError, NoAnswer
from firmware_tools.radios.line import Line
from firmware_tools.radios.modems import BY_DIALECT, Modem, Settings
from ternmesh.errors import TernmeshError
from transports.base import TransportError
from transports.serial_lora.port import PortError

BOOT_S = 2.0  # for a board to restart
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
    port: str, kinds: Sequence[type[Modem]], bauds: Sequence[int] = ()
) -> Iterator[tuple[Modem, Found]]:
    """The modem at a port, which no other program can use meanwhile.

    `bauds` are tried before those at which such modems usually are. PortError where the port
    cannot be opened, NoAnswer where there is none of these kinds.
    """
    reasons = []
    rates = list(dict.fromkeys((*bauds, *(baud for kind in kinds for baud in kind.bauds))))
    # Many boards restart when their port is opened: the first rate is tried once more, later.
    for baud, wait_s in (*((baud, 0.0) for baud in rates), (rates[0], BOOT_S)):
        with Line(port, baud) as line:
            time.sleep(wait_s)
            for kind in kinds:
                if baud not in (*kind.bauds, *bauds):
                    continue
                modem = kind(line)
                try:
                    identity = modem.identify()
                    modem_found = Found(port, baud, kind.dialect, identity, modem.read())
                except NoAnswer as error:
                    reasons.append(str(error))
                    continue
                yield modem, modem_found
                return
    names = ", ".join(kind.dialect for kind in kinds)
    reason = f": {reasons[0]}" if len(kinds) == 1 else ""
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


def provision(
    port: str, name: str, kind: type[Modem], wanted: Settings, *, baud: int, is_dry: bool
) -> Outcome:
    """Give a modem its settings; where it is dry, only compare. All failures are in the outcome."""
    outcome = Outcome(port, name, "failed")
    try:
        with opened(port, [kind], (baud,)) as (modem, before):
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
