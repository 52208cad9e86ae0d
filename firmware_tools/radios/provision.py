"""Modems are found, compared with what they should be, changed, and brought back.

A change ends in one of three ways: the modem has what was wanted, or it has what it had, or the
outcome says what it was left with. Before anything is written, the settings are kept in a file.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from firmware_tools.errors import FirmwareError, NoAnswer
from firmware_tools.radios.line import Line
from firmware_tools.radios.modems import BY_DIALECT, Modem, Settings
from ternmesh.errors import TernmeshError
from ternmesh_store.files import make_private_folder
from transports.base import TransportError
from transports.serial_lora.port import PortError

BOOT_S = 2.0  # for a board to restart
FAILURES = (TernmeshError, TransportError, OSError, ValueError)  # of one modem
BACKUP_BYTES_MAX = 65_536
FORMAT, BACKUPS_MAX = 1, 10_000
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
    backup: str = ""  # the file with the settings that it had

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
    port: str,
    name: str,
    kind: type[Modem],
    wanted: Settings,
    keep: Callable[[Found], Path] | None,
    *,
    baud: int = 0,
    identity: str = "",
) -> Outcome:
    """Give a modem its settings; `keep` stores what it had. None: only compare (a dry run).

    `identity`: what the modem must say that it is. Whatever goes wrong is in the outcome.
    """
    outcome = Outcome(port, name, "failed")
    try:
        with opened(port, [kind], (baud,) if baud else ()) as (modem, before):
            if identity and before.identity != identity:
                raise FirmwareError(f"{port} is {before.identity}, not {identity}: another modem")
            outcome = replace(outcome, changes=differences(before.settings, wanted))
            if not outcome.changes:
                return replace(outcome, result="unchanged")
            if keep is None:
                return replace(outcome, result="differs")
            outcome = replace(outcome, backup=str(keep(before)))
            try:
                _change(modem, outcome.changes, wanted)
            except PortError:
                raise
            except FAILURES as error:
                return _taken_back(modem, before, replace(outcome, reason=str(error)))
        return replace(outcome, result="changed")
    except FAILURES as error:
        hint = f"; {_restore_hint(outcome)}" if outcome.backup else ""
        return replace(outcome, reason=f"{error}{hint}")


def restore(
    port: str, kept: Found, keep: Callable[[Found], Path], *, is_same: bool = True
) -> Outcome:
    """Bring the settings of a backup back, by default to the very modem that had them."""
    kind, identity = BY_DIALECT[kept.dialect], kept.identity if is_same else ""
    settings = kept.settings
    return provision(port, "", kind, settings, keep, baud=kept.baud, identity=identity)


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
        ending = f"what it had could not be brought back ({second}): {_restore_hint(failed)}"
    return replace(failed, reason=f"{failed.reason}; {ending}")


def _restore_hint(outcome: Outcome) -> str:
    where = f"{outcome.backup} --port {outcome.port}"
    return f"run `ternmesh firmware restore {where}` when it is back"


# Backups


def write_backup(folder: Path, found: Found, name: str) -> Path:
    """Keep a modem's settings in a file of its own, readable for its owner alone; OSError."""
    make_private_folder(folder)
    text = json.dumps({"format": FORMAT, **asdict(found)}, indent=2) + "\n"
    for number in range(1, BACKUPS_MAX):
        path = folder / f"{name}-{number}.json"
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            continue  # an older backup stays
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return path
    raise FirmwareError(f"{folder} is full of backups of {name}: move some of them elsewhere")


def read_backup(path: Path) -> Found:
    """The settings in a backup; FirmwareError, OSError."""
    text = path.read_bytes()[: BACKUP_BYTES_MAX + 1]
    try:
        content: Any = json.loads(text)
        format_number = content.pop("format")
        kept = Found(**content)
        sound = format_number == FORMAT and kept.dialect in BY_DIALECT
        if len(text) > BACKUP_BYTES_MAX or not sound or type(kept.baud) is not int:
            raise ValueError("it has another form")
        BY_DIALECT[kept.dialect].check(kept.settings)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FirmwareError(f"{path} is not a backup of a modem's settings") from error
    except FirmwareError as error:
        raise FirmwareError(f"{path} is not a backup of a modem's settings: {error}") from error
    return kept
