"""The texts of a mosquitto deployment: configuration, access list, password lines. Pure functions.

They are for mosquitto 2.0 and 2.1. Version 2.1 deprecates `acl_file` and `password_file` in favour
of plugins that 2.0 lacks, but reads both until 3.0. No other deprecated setting is used.
"""

import base64
import hashlib
import string
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from transports.base import HOST, NAME_MAX
from transports.mqtt.settings import MESSAGE_MAX, MqttSettings, packet_max

CONFIGURATION = "mosquitto.conf"
FIREWALL = "connections.nft"
PASSWORDS = "passwords"
ACCESS = "access"
SERVER_CERTIFICATE = "server.pem"
SERVER_KEY = "server.key"
SEPARATOR = "~"  # occurs in no name, and needs no escape in a URL
CONNECTIONS_MAX = 1024  # with clients that have not logged in yet
SALT_BYTES = 12  # required by 2.0
# The default of mosquitto. A password has 192 random bits, so no dictionary contains it, and more
# iterations would only help strangers to keep the broker busy.
ITERATIONS = 101
_HEAD_MAX = packet_max(MqttSettings("mqtt://broker", "x" * NAME_MAX, HOST), 0)


@dataclass(frozen=True, slots=True)
class Account:
    """The account of a board, or of HOST. `settings` checks the names."""

    fleet: str
    role: str

    @property
    def username(self) -> str:
        return f"{self.fleet}{SEPARATOR}{self.role}"

    @property
    def settings(self) -> MqttSettings:
        """Its settings, with any broker; ValueError for a wrong name."""
        return MqttSettings("mqtt://broker", self.fleet, self.role)


def write_text(name: str, folder: PurePosixPath, port: int) -> str:
    """The text of CONFIGURATION or FIREWALL, from the template of that name in this package.

    `folder` is where mosquitto reads the files.
    """
    template = string.Template((Path(__file__).parent / name).read_text())
    return template.substitute(
        folder=folder,
        port=port,
        packet_max=MESSAGE_MAX + _HEAD_MAX,
        connections_max=CONNECTIONS_MAX,
    )


def access_block(account: Account) -> str:
    """The lines of the access list for one account; all other topics are forbidden."""
    end = account.settings
    writes = "".join(f"topic write {topic}\n" for topic in end.publications)
    reads = "".join(f"topic read {topic}\n" for topic in end.subscriptions)
    return f"user {account.username}\n{writes}{reads}\n"


def without_block(text: str, account: Account) -> str:
    """An access list without the lines of one account."""
    kept = []
    is_theirs = False
    for line in text.splitlines(keepends=True):
        if line.split() == ["user", account.username]:
            is_theirs = True
        elif not line.startswith("topic "):
            is_theirs = is_theirs and not line.strip()  # up to the empty line at its end
        if not is_theirs:
            kept.append(line)
    return "".join(kept)


def password_line(account: Account, password: str, salt: bytes) -> str:
    """A line of the password file: PBKDF2 with HMAC-SHA-512, as mosquitto_passwd writes it."""
    assert len(salt) == SALT_BYTES
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
    encoded = (base64.b64encode(part).decode() for part in (salt, digest))
    return f"{account.username}:$7${ITERATIONS}${'$'.join(encoded)}\n"


def without_line(text: str, account: Account) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if _username(line) != account.username)


def accounts(text: str) -> list[Account]:
    """The fleets' accounts in a password file; other lines are ignored."""
    listed = []
    for username in map(_username, text.splitlines()):
        fleet, separator, role = username.partition(SEPARATOR)
        if separator and not username.startswith("#"):
            listed.append(Account(fleet, role))
    return listed


def _username(line: str) -> str:
    """The user of a line of a password file; empty where it has no password."""
    username, colon, _ = line.partition(":")
    return username if colon else ""


def new_accounts(fleet: str, nodes: Iterable[str], present: Iterable[Account]) -> list[Account]:
    """The accounts to add for `nodes`, and for the host of a new fleet; ValueError."""
    new = [Account(fleet, node) for node in nodes]
    for account in new:
        if account.role == HOST:
            raise ValueError(f"{account.username} is the host's account: name the boards alone")
        if account in present:
            raise ValueError(f"{account.username} has an account: remove it first, or name another")
        account.settings  # noqa: B018  (checks the names)
    if len(set(new)) < len(new):
        raise ValueError("a board is named twice: name each once")
    host = Account(fleet, HOST)
    host.settings  # noqa: B018
    return new if host in present else [host, *new]
