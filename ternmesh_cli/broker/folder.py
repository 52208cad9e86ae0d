"""Write and change the folder of a mosquitto deployment: configuration, accounts, certificates."""

import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path, PurePosixPath

from ternmesh.config import ConfigError
from ternmesh.errors import TernmeshError
from ternmesh_cli.broker import texts
from ternmesh_cli.broker.certificates import Certificate, make_authority, make_server, names_in
from ternmesh_cli.broker.texts import (
    ACCESS,
    CONFIGURATION,
    FIREWALL,
    PASSWORDS,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    Account,
)
from ternmesh_store.files import PRIVATE, make_private_folder, read_file, unfinished_file
from transports.mqtt.credentials import Credentials, write_credentials

AUTHORITY = "authority.pem"
AUTHORITY_KEY = "authority.key"
CREDENTIALS, DATA = "credentials", "data"
# What the broker reads again after a change of accounts, or of its certificate.
ACCOUNTS, CERTIFICATE = (PASSWORDS, ACCESS), (SERVER_CERTIFICATE, SERVER_KEY)
SUFFIX = ".credentials.toml"  # host.toml is the configuration of the host
SECRET_BYTES = 24  # random bytes in a password
PUBLIC = 0o644
FILE_MAX = 64 << 20  # bytes; an account has about 600 in all files

NewAccounts = dict[Account, Credentials]


class BrokerError(TernmeshError):
    """The folder cannot be read or written. The message says what to do."""


def begin(folder: Path) -> None:
    """Make a folder without accounts. Raises ConfigError where it has any of the files already."""
    with _writing(folder):
        for name in (CONFIGURATION, *ACCOUNTS, *CERTIFICATE, FIREWALL):
            if (folder / name).exists():
                raise ConfigError(
                    f"{folder} has a {name}: add boards with `ternmesh broker add`, or choose "
                    "another --dir"
                )
        make_private_folder(folder)
        for path in (folder / CREDENTIALS, folder / DATA):
            path.mkdir(0o700, exist_ok=True)
    write(folder / PASSWORDS, "")
    write(folder / ACCESS, "# What is not named here is forbidden.\n\n")


def finish(folder: Path, place: PurePosixPath, port: int) -> None:
    """Write the configuration for a broker at `place`. Call this last: then all is complete."""
    for name in (FIREWALL, CONFIGURATION):
        write(folder / name, texts.write_text(name, place, port), PUBLIC)


def certify(folder: Path, names: Sequence[str], now: datetime) -> None:
    """Write a certificate for the broker's names, and make an authority if there is none."""
    if not (folder / AUTHORITY).exists():
        made = make_authority(names[0], now)
        write(folder / AUTHORITY_KEY, made.key.decode())
        write(folder / AUTHORITY, made.public.decode(), PUBLIC)
    authority = Certificate(_bytes(folder / AUTHORITY), _bytes(folder / AUTHORITY_KEY))
    try:
        made = make_server(names, authority, now)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"no certificate for {', '.join(names)}: {error}") from error
    write(folder / SERVER_KEY, made.key.decode())
    write(folder / SERVER_CERTIFICATE, made.public.decode(), PUBLIC)


def server_names(folder: Path) -> list[str]:
    try:
        return names_in(_bytes(folder / SERVER_CERTIFICATE))
    except ValueError as error:
        raise BrokerError(f"{folder / SERVER_CERTIFICATE}: {error}") from error


def place(folder: Path) -> PurePosixPath:
    """Return the folder in which the broker reads the files: that of its password file."""
    path = folder / CONFIGURATION
    text = _text(path) if path.exists() else ""
    match = re.search(r"^password_file (.+)$", text, re.MULTILINE)
    return PurePosixPath(match[1]).parent if match else PurePosixPath(folder)


def accounts(folder: Path) -> list[Account]:
    return texts.accounts(_text(folder / PASSWORDS))


def add(folder: Path, new: Iterable[Account]) -> NewAccounts:
    """Add accounts. Return the new password of each account."""
    made = {
        account: Credentials(account.username, secrets.token_urlsafe(SECRET_BYTES))
        for account in new
    }
    lines = "".join(
        texts.password_line(account, own.password or "", secrets.token_bytes(texts.SALT_BYTES))
        for account, own in made.items()
    )
    blocks = "".join(map(texts.access_block, made))
    # Write the access rules first: a client that can log in but has no topics would wait forever.
    write(folder / ACCESS, _text(folder / ACCESS) + blocks)
    write(folder / PASSWORDS, _text(folder / PASSWORDS) + lines)
    return made


def remove(folder: Path, account: Account) -> None:
    """Remove an account. Raises ConfigError if the account does not exist."""
    if account not in accounts(folder):
        raise ConfigError(f"{folder} has no account {account.username}")
    write(folder / PASSWORDS, texts.without_line(_text(folder / PASSWORDS), account))
    write(folder / ACCESS, texts.without_block(_text(folder / ACCESS), account))
    for path in (folder / CREDENTIALS).glob("*.toml"):
        if f'"{account.username}"' in _text(path):
            with _writing(path):
                path.unlink(missing_ok=True)


def hand_out(folder: Path, made: NewAccounts) -> list[Path]:
    """Write a credentials file for each new account, and return the paths."""
    paths = []
    for account, own in made.items():
        path = folder / CREDENTIALS / f"{account.role}{SUFFIX}"
        with _writing(path):
            if path.exists():  # from another fleet
                path = path.with_name(f"{secrets.token_hex(2)}.{path.name}")
        write(path, write_credentials({account.role: own}))
        paths.append(path)
    return paths


def write(path: Path, text: str, mode: int = PRIVATE) -> None:
    """Replace the file at `path` atomically: a reader sees the old text or the new text.

    An existing file keeps its owner and mode, so that the broker's user can still read it.
    """
    with _writing(path):
        unfinished = unfinished_file(path, mode)
        with unfinished.open("w", encoding="utf-8") as file:
            if path.exists():
                before = path.stat()
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an OSError in the block into a BrokerError about `path`."""
    try:
        yield
    except OSError as error:
        raise BrokerError(
            f"cannot write {path} ({error.strerror}): run this as another user, or choose another "
            "--dir"
        ) from error


def _text(path: Path) -> str:
    try:
        text = _bytes(path).decode()
    except UnicodeDecodeError as error:
        raise BrokerError(f"{path} is not a text file: restore a backup of the file") from error
    return text if text.endswith("\n") or not text else f"{text}\n"


def _bytes(path: Path) -> bytes:
    try:
        return read_file(path, FILE_MAX)
    except OSError as error:
        raise BrokerError(
            f"{path} cannot be read ({error.strerror}): `ternmesh broker config` makes it"
        ) from error
