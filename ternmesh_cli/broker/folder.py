"""The folder of a mosquitto deployment on disk: who may read what, and what is added later."""

import os
import secrets
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from ternmesh.config import ConfigError
from ternmesh.errors import TernmeshError
from ternmesh_cli.broker import texts
from ternmesh_cli.broker.certificates import Pair, make_authority, make_server, names_in
from ternmesh_cli.broker.texts import (
    ACCESS,
    CONFIGURATION,
    DATA,
    PASSWORDS,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    Account,
    BrokerSettings,
)
from transports.credentials import Credentials, write_credentials

AUTHORITY, AUTHORITY_KEY, CREDENTIALS = "authority.pem", "authority.key", "credentials"
SUFFIX = ".credentials.toml"  # not host.toml, which is the host's configuration
SECRET_BYTES = 24  # of a password
PRIVATE, PUBLIC = 0o600, 0o644

Made = dict[Account, Credentials]


class BrokerError(TernmeshError):
    """The folder cannot be read or written; the sentence says what to do."""


def begin(folder: Path) -> None:
    """Make the folder, with nobody in it; ConfigError where it has a configuration already."""
    with _told(folder):
        if (folder / CONFIGURATION).exists():
            raise ConfigError(
                f"{folder} has a {CONFIGURATION}: add nodes with `ternmesh broker add`, or choose "
                "another --dir"
            )
        for path in (folder, folder / CREDENTIALS, folder / DATA):
            path.mkdir(0o700, parents=True, exist_ok=True)
    write(folder / PASSWORDS, "")
    write(folder / ACCESS, "# What is not named here is forbidden.\n\n")


def finish(folder: Path, broker: BrokerSettings) -> None:
    """Write the configuration: the last file, so that a folder that has it is whole."""
    write(folder / CONFIGURATION, texts.configuration(broker), PUBLIC)


def certify(folder: Path, names: Sequence[str], now: datetime) -> None:
    """An authority, unless the folder has one, and a certificate of it for the broker's names."""
    if not (folder / AUTHORITY).exists():
        made = make_authority(names[0], now)
        write(folder / AUTHORITY_KEY, made.key.decode())
        write(folder / AUTHORITY, made.certificate.decode(), PUBLIC)
    authority = Pair(_bytes(folder / AUTHORITY), _bytes(folder / AUTHORITY_KEY))
    try:
        made = make_server(names, authority, now)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"no certificate for {', '.join(names)}: {error}") from error
    write(folder / SERVER_KEY, made.key.decode())
    write(folder / SERVER_CERTIFICATE, made.certificate.decode(), PUBLIC)


def server_names(folder: Path) -> list[str]:
    """The names that the broker's certificate in the folder is for."""
    try:
        return names_in(_bytes(folder / SERVER_CERTIFICATE))
    except ValueError as error:
        raise BrokerError(f"{folder / SERVER_CERTIFICATE}: {error}") from error


def known(folder: Path) -> list[Account]:
    """The accounts that the folder has."""
    return texts.accounts(_text(folder / PASSWORDS))


def add(folder: Path, accounts: Iterable[Account]) -> Made:
    """Give each account a password; those that are there stay."""
    made = {
        account: Credentials(account.username, secrets.token_urlsafe(SECRET_BYTES))
        for account in accounts
    }
    lines = "".join(
        texts.password_line(account, own.password or "", secrets.token_bytes(texts.SALT_BYTES))
        for account, own in made.items()
    )
    blocks = "".join(map(texts.access_block, made))
    # Access first: who may log in and has no topics yet would only wait.
    write(folder / ACCESS, _text(folder / ACCESS) + blocks)
    write(folder / PASSWORDS, _text(folder / PASSWORDS) + lines)
    return made


def remove(folder: Path, account: Account) -> None:
    """Take an account away; ConfigError where there is none."""
    if account not in known(folder):
        raise ConfigError(f"{folder} has no account {account.username}")
    write(folder / PASSWORDS, texts.without_line(_text(folder / PASSWORDS), account))
    write(folder / ACCESS, texts.without_block(_text(folder / ACCESS), account))
    _take_back(folder, account)


def _take_back(folder: Path, account: Account) -> None:
    """Drop an account from the credentials file that has it, and the file with its last one."""
    for path in sorted((folder / CREDENTIALS).glob("*.toml")):
        try:
            found = tomllib.loads(_text(path))
            rows = {
                role: Credentials(row["username"], row["password"]) for role, row in found.items()
            }
        except (ValueError, RecursionError, TypeError, KeyError) as error:
            raise BrokerError(f"{path} is damaged ({error}): remove it by hand") from error
        left = {role: own for role, own in rows.items() if own.username != account.username}
        if not left:
            with _told(path):
                path.unlink(missing_ok=True)
        elif len(left) < len(rows):
            write(path, write_credentials(left))


def hand_out(folder: Path, made: Made, gateways: Mapping[str, Sequence[str]]) -> list[Path]:
    """A credentials file for each new end, and for a gateway one with those of its boards."""
    by_role = {account.role: own for account, own in made.items()}
    behind = {board for boards in gateways.values() for board in boards}
    files = {role: {role: own} for role, own in by_role.items() if role not in behind}
    for gateway, boards in gateways.items():
        files[gateway] = {board: by_role[board] for board in boards}
    paths = []
    for name, rows in files.items():
        path = folder / CREDENTIALS / f"{name}{SUFFIX}"
        with _told(path):
            if path.exists():  # of another fleet's end, or of a gateway's earlier boards
                path = path.with_name(f"{secrets.token_hex(2)}.{path.name}")
        write(path, write_credentials(rows))
        paths.append(path)
    return paths


def write(path: Path, text: str, mode: int = PRIVATE) -> None:
    """Put `text` in the file at `path`: a reader sees the old or the new.

    One that is there keeps its owner and mode: the broker's user must still be able to read it.
    """
    unfinished = path.with_name(f"{path.name}.new")
    with _told(path):
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if path.exists():
                before = path.stat()
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """A BrokerError about `path` for what the system refuses."""
    try:
        yield
    except OSError as error:
        raise BrokerError(
            f"cannot write {path} ({error.strerror}): do it as a user who may, or choose another "
            "--dir"
        ) from error


def _text(path: Path) -> str:
    try:
        text = _bytes(path).decode()
    except UnicodeDecodeError as error:
        raise BrokerError(f"{path} is no text: bring back a copy of it") from error
    return text if text.endswith("\n") or not text else f"{text}\n"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BrokerError(
            f"{path} cannot be read ({error.strerror}): `ternmesh broker config` makes it"
        ) from error
