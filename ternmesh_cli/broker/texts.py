"""The texts of a mosquitto deployment: configuration, access list, password lines. Pure functions.

For mosquitto 2.0 and 2.1. The latter calls `acl_file` and `password_file` deprecated, until 3.0,
in favour of plugins that 2.0 has not; both read them, in one format. Nothing else that it renamed
or deprecated (`per_listener_settings`) is used here.
"""

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from transports.base import HOST, NAME_MAX
from transports.mqtt_settings import MESSAGE_MAX, MqttSettings, packet_max

CONFIGURATION, PASSWORDS, ACCESS = "mosquitto.conf", "passwords", "access"
SERVER_CERTIFICATE, SERVER_KEY, DATA = "server.pem", "server.key", "data"
SEPARATOR = "~"  # stands in no name, and needs no escape in a URL
SALT_BYTES = 12  # what 2.0 demands
# mosquitto's own default. Passwords are made by us, of 192 random bits: no dictionary has them, and
# more iterations would only let strangers keep the broker busy.
ITERATIONS = 101
_HEAD_MAX = packet_max(MqttSettings("mqtt://broker", "x" * NAME_MAX, HOST), 0)


@dataclass(frozen=True, slots=True)
class Account:
    """One end of a fleet at the broker: a node, or HOST. Names as `MqttSettings` checks them."""

    fleet: str
    role: str

    @property
    def username(self) -> str:
        """What it calls itself at the broker."""
        return f"{self.fleet}{SEPARATOR}{self.role}"

    @property
    def settings(self) -> MqttSettings:
        """That end, on whatever broker; ValueError for a name that may not be."""
        return MqttSettings("mqtt://broker", self.fleet, self.role)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """A broker for fleets. `folder` is where mosquitto finds its files; sizes are in bytes.

    `certificate` and `key` are paths too, empty for those that the folder holds. `bind` is an
    address of the machine, empty for all. `user` is whom mosquitto becomes where root starts it.
    `connections_max` counts also those who have not said who they are.
    """

    folder: PurePosixPath
    certificate: str = ""
    key: str = ""
    port: int = 8883
    bind: str = ""
    user: str = "mosquitto"
    message_max: int = MESSAGE_MAX
    connections_max: int = 1024
    queued_messages_max: int = 10_000  # for each client that is away or slow
    queued_bytes_max: int = 64 << 20  # likewise
    memory_max: int = 512 << 20


def configuration(broker: BrokerSettings) -> str:
    """The text of mosquitto.conf."""
    folder = broker.folder
    return f"""\
# Written by `ternmesh broker config`. Who may log in: {PASSWORDS}; to which topics: {ACCESS}.
{f"listener {broker.port} {broker.bind}".rstrip()}
certfile {broker.certificate or folder / SERVER_CERTIFICATE}
keyfile {broker.key or folder / SERVER_KEY}
tls_version tlsv1.2
# A client is who its password says: nobody can throw another out or take up its session.
use_username_as_clientid true
max_connections {broker.connections_max}
max_qos 1

user {broker.user}
allow_anonymous false
password_file {folder / PASSWORDS}
acl_file {folder / ACCESS}
# No part of a fleet needs retained messages; who sends one is disconnected.
retain_available false

# What one client, and what all together, may cost.
max_packet_size {broker.message_max + _HEAD_MAX}
max_inflight_messages 20
max_queued_messages {broker.queued_messages_max}
max_queued_bytes {broker.queued_bytes_max}
max_keepalive 600
memory_limit {broker.memory_max}

# Sessions survive a restart, but what came since the last save does not survive a power cut: nodes
# keep each packet until the host has confirmed it.
persistence true
persistence_location {folder / DATA}
autosave_interval 60
persistent_client_expiration 1d

set_tcp_nodelay true
log_dest stderr
log_type error
log_type warning
log_type notice
"""


def access_block(account: Account) -> str:
    """The lines of the access list for one account; whatever they do not name is forbidden."""
    end = account.settings
    writes = "".join(f"topic write {topic}\n" for topic in end.publications)
    reads = "".join(f"topic read {topic}\n" for topic in end.subscriptions)
    return f"user {account.username}\n{writes}{reads}\n"


def without_block(text: str, account: Account) -> str:
    """An access list without the lines of one account."""
    kept, is_theirs = [], False
    for line in text.splitlines(keepends=True):
        if line.split() == ["user", account.username]:
            is_theirs = True
        elif not line.startswith("topic "):
            is_theirs = is_theirs and not line.strip()  # the empty line at the end, too
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
    """A password file without the line of one account."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if _username(line) != account.username)


def accounts(text: str) -> list[Account]:
    """The accounts of ours in a password file; lines of anybody else are passed over."""
    found = []
    for username in map(_username, text.splitlines()):
        fleet, separator, role = username.partition(SEPARATOR)
        if separator and not username.startswith("#"):
            found.append(Account(fleet, role))
    return found


def _username(line: str) -> str:
    """Whose line of a password file this is; nobody's where it has no password."""
    username, colon, _ = line.partition(":")
    return username if colon else ""


def wanted(fleet: str, nodes: Iterable[str], known: Iterable[Account]) -> list[Account]:
    """The accounts to make for `nodes`, with the host's where its fleet is new; ValueError."""
    found = [Account(fleet, node) for node in nodes]
    for account in found:
        if account.role == HOST or account in known:
            raise ValueError(f"{account.username} has an account: remove it first, or name another")
        account.settings  # noqa: B018  (checks the names)
    if len(set(found)) < len(found):
        raise ValueError("a node is named twice: name each once")
    host = Account(fleet, HOST)
    host.settings  # noqa: B018
    return found if host in known else [host, *found]
