"""Credentials for a broker: a file of user names and passwords that only its owner may read.

    ["board-1"]
    username = "attic~board-1"
    password = "..."

A gateway's file has such a table for each of its boards.
"""

import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FILE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user name and its password; None where the broker needs neither."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)


def write_credentials(credentials: Mapping[str, Credentials]) -> str:
    """The text of a file with the credentials of each role, a checked name."""
    return "\n".join(
        f'["{role}"]\nusername = "{own.username}"\npassword = "{own.password}"\n'
        for role, own in credentials.items()
    )


def read_credentials(path: Path, role: str) -> Credentials:
    """The credentials of `role` in a file; ValueError, also where others may read the file."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES_MAX:
            raise ValueError(
                f"credentials_file {path} is no file of at most {FILE_BYTES_MAX} bytes"
            )
        text = path.read_bytes()
    except OSError as error:
        raise ValueError(f"credentials_file {path} cannot be read: {error.strerror}") from error
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(f"others may use credentials_file {path}: chmod 600 {path}")
    return parse_credentials(text, role)


def parse_credentials(text: bytes, role: str) -> Credentials:
    """The credentials of `role` in a text; ValueError. No error shows any content."""
    try:
        content = tomllib.loads(text.decode())
    except (ValueError, RecursionError):
        raise ValueError("credentials_file is no TOML") from None
    row = content.get(role)
    if not isinstance(row, dict):
        raise ValueError(f"credentials_file has no table [{role!r}]")
    username, password = row.get("username"), row.get("password")
    if not (isinstance(username, str) and username and isinstance(password, str) and password):
        raise ValueError(f"credentials_file: [{role!r}] needs username and password, both text")
    return Credentials(username, password)
