"""Modems are found, compared with what they should be, changed, and brought back.

A change ends in one of three ways: the modem has what was wanted, or it has what it had, or the
outcome says what it was left with. Before anything is written, the settings are kept in a file.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from firmware_tools.errors import FirmwareError, NoAnswer
from firmware_tools.radios.line import Line
from firmware_tools.radios.modems import BY_DIALECT, MODEMS, Modem, Settings
from transports.base import TransportError
from transports.serial_lora.port import PortError

SETTLE_TRIES = 5
SECRET = ("key",)  # settings that are not shown
BACKUP_BYTES_MAX = 65_536
FORMAT = 1


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

    `changed`, `unchanged`, `accepted` (it keeps no settings, but takes them), `differs` (nothing
    was written) or `failed`.
    """

    port: str
    name: str
    result: str
    changes: dict[str, tuple[str, str]] = field(default_factory=dict)  # before and after
    reason: str = ""
    backup: str = ""  # the file with the settings that it had

    @property
    def is_right(self) -> bool:
        """Whether the modem has now what it should have."""
        return self.result in ("changed", "unchanged", "accepted")


@contextmanager
def opened(port: str, kinds: Sequence[type[Modem]]) -> Iterator[tuple[Modem, Found]]:
    """The modem at a port, which no other program can use meanwhile.

    PortError where it cannot be opened, NoAnswer where it is none of these kinds.
    """
    reasons = []
    for baud in dict.fromkeys(baud for kind in kinds for baud in kind.bauds):
        with Line(port, baud) as line:
            for kind in kinds:
                if baud not in kind.bauds:
                    continue
                modem = kind(line)
                try:
                    identity = modem.identify()
                except NoAnswer as error:
                    reasons.append(str(error))
                    continue
                yield modem, Found(port, baud, kind.dialect, identity, modem.read())
                return
    if len(kinds) == 1:
        raise NoAnswer(reasons[-1])
    names = ", ".join(kind.dialect for kind in kinds)
    raise NoAnswer(
        f"{port}: no modem of a known dialect answers ({names}); an EBYTE must be in configuration "
        "mode (M1 high), others need their power and the right wires"
    )


def probe(port: str) -> Found:
    """Which modem is at a port, and its settings; PortError, FirmwareError."""
    with opened(port, MODEMS) as (_, found):
        return found


def differences(have: Settings, wanted: Settings) -> dict[str, tuple[str, str]]:
    """The settings to change, with what they are and what they should be."""
    return {
        name: (have.get(name, "?"), value)
        for name, value in wanted.items()
        if have.get(name) != value
    }


def provision(
    port: str, name: str, kind: type[Modem], wanted: Settings, keep: Callable[[Found], Path] | None
) -> Outcome:
    """Give a modem its settings; `keep` stores what it had. None: only compare (a dry run)."""
    changes: dict[str, tuple[str, str]] = {}
    backup = ""
    try:
        with opened(port, [kind]) as (modem, found):
            changes = differences(found.settings, wanted)
            if not changes:
                return Outcome(port, name, "unchanged")
            if keep is None:
                return Outcome(port, name, "differs", changes)
            backup = str(keep(found)) if kind.keeps else ""
            try:
                _change(modem, {key: after for key, (_, after) in changes.items()}, wanted)
            except FirmwareError as error:
                failed = Outcome(port, name, "failed", changes, str(error), backup)
                return _taken_back(modem, found, failed)
        return Outcome(port, name, "changed" if kind.keeps else "accepted", changes, "", backup)
    except PortError as error:
        hint = f"; {_restore_hint(backup, port)}" if backup else ""
        return Outcome(port, name, "failed", changes, f"{error}{hint}", backup)
    except (FirmwareError, TransportError) as error:
        return Outcome(port, name, "failed", changes, str(error), backup)


def restore(port: str, found: Found) -> Outcome:
    """Bring the settings of a backup back."""
    kind = BY_DIALECT[found.dialect]
    return provision(port, "", kind, found.settings, lambda _: Path())


def _change(modem: Modem, changes: Settings, wanted: Settings) -> None:
    """Write, then read until the modem shows what was written; FirmwareError."""
    modem.write(changes)
    if not modem.keeps and not modem.read():
        return  # such a modem shows nothing: it has confirmed each setting
    for attempt in range(SETTLE_TRIES):
        if attempt or modem.settles_s:
            time.sleep(modem.settles_s)
        try:
            left = differences(modem.read(), wanted)
        except NoAnswer:
            if attempt == SETTLE_TRIES - 1:
                raise
            continue
        if not left:
            return
    names = ", ".join(left)
    raise FirmwareError(f"the modem has not kept {names}")


def _taken_back(modem: Modem, found: Found, failed: Outcome) -> Outcome:
    """Give the modem what it had before a change that failed, and say whether that worked."""
    before = found.settings
    try:
        left = differences(modem.read(), before)
        if left:
            _change(modem, {name: after for name, (_, after) in left.items()}, before)
        ending = "it has again what it had before" if modem.keeps else "it keeps no settings"
    except (FirmwareError, PortError) as second:
        hint = _restore_hint(failed.backup, failed.port)
        ending = f"what it had could not be brought back ({second}): {hint}"
    return replace(failed, reason=f"{failed.reason}; {ending}")


def _restore_hint(backup: str, port: str) -> str:
    return f"run `ternmesh firmware restore {backup} --port {port}` when it is back"


# Backups


def write_backup(folder: Path, found: Found, name: str) -> Path:
    """Keep a modem's settings in a file of its own, readable for its owner alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        path = folder / f"{name}-{number}.json"
        try:
            with path.open("x") as file:
                path.chmod(0o600)
                json.dump({"format": FORMAT, **asdict(found)}, file, indent=2)
                file.write("\n")
            return path
        except FileExistsError:
            continue  # an older backup stays
    raise FirmwareError(f"{folder} is full of backups of {name}: move some of them elsewhere")


def read_backup(path: Path) -> Found:
    """The settings in a backup; FirmwareError, OSError."""
    text = path.read_bytes()[: BACKUP_BYTES_MAX + 1]
    try:
        content: Any = json.loads(text)
        format_number = content.pop("format")
        found = Found(**content)
        sound = format_number == FORMAT and found.dialect in BY_DIALECT
        sound = sound and all(type(v) is str for v in found.settings.values())
        if len(text) > BACKUP_BYTES_MAX or not sound:
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FirmwareError(f"{path} is not a backup of a modem's settings") from error
    return found
