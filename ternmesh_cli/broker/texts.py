"""The texts of a mosquitto deployment: configuration, access list, password lines. Pure functions.

They are for mosquitto 2.0 and 2.1. Version 2.1 deprecates `acl_file` and `password_file` in favour
of plugins that 2.0 lacks, but reads both until 3.0. No other deprecated setting is used.
"""

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from transports.base import HOST, NAME_MAX
from transports.mqtt.settings import MESSAGE_MAX, MqttSettings, packet_max

CONFIGURATION = "mosquitto.conf"
FIREWALL = "connections.nft"
PASSWORDS = "passwords"
ACCESS = "access"
SERVER_CERTIFICATE = "server.pem"
SERVER_KEY = "server.key"
DATA = "data"
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
        """Its name at the broker."""
        return f"{self.fleet}{SEPARATOR}{self.role}"

    @property
    def settings(self) -> MqttSettings:
        """Its settings, with any broker; ValueError for a wrong name."""
        return MqttSettings("mqtt://broker", self.fleet, self.role)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """A broker for fleets. Sizes are in bytes."""

    folder: PurePosixPath  # with mosquitto's files
    certificate: str = ""  # a path; empty for the folder's own
    key: str = ""  # likewise
    port: int = 8883
    user: str = "mosquitto"  # mosquitto switches to this user when root starts it
    address_max: int = 32  # of these, from one address
    address_rate: int = 128  # what one address may send, in 1,000 bytes a second


def configuration(broker: BrokerSettings) -> str:
    """The text of mosquitto.conf."""
    folder = broker.folder
    return f"""\
# Written by `ternmesh broker config`. Accounts are in {PASSWORDS}, their topics in {ACCESS}.
listener {broker.port}
certfile {broker.certificate or folder / SERVER_CERTIFICATE}
keyfile {broker.key or folder / SERVER_KEY}
tls_version tlsv1.2
# The account is the client id: no client can disconnect another or take over its session.
use_username_as_clientid true
max_connections {CONNECTIONS_MAX}
max_qos 1

user {broker.user}
allow_anonymous false
password_file {folder / PASSWORDS}
acl_file {folder / ACCESS}
# A fleet needs no retained messages; a client that sends one is disconnected.
retain_available false

# Limits of one client, and of all together.
max_packet_size {MESSAGE_MAX + _HEAD_MAX}
max_inflight_messages 20
max_queued_messages 10000
max_queued_bytes {64 << 20}
max_keepalive 600
memory_limit {512 << 20}

# Sessions survive a restart. A power cut loses messages since the last save, so boards keep each
# update until the host has confirmed it.
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


def firewall(broker: BrokerSettings) -> str:
    """The text of nftables rules that limit connections and bytes by address, before any login.

    mosquitto keeps a connection that says nothing for 90 s, and has no setting for that time. It
    mixes the messages of all members for the host, who takes some thousands in a second: a flood
    of empty ones displaces updates, and mosquitto has no setting for that either. IPv6 is counted
    by /64, of which a stranger often has every address.
    """
    table = f"inet ternmesh_{broker.port}"
    to_broker = f"tcp dport {broker.port}"
    limited = f"ct count over {broker.address_max} }} reject with tcp reset"
    rate = broker.address_rate
    slowed = f"limit rate over {rate} kbytes/second burst {8 * rate} kbytes }} drop"
    return f"""\
# Written by `ternmesh broker config`; load it with `nft -f`. Silent connections must not fill the
# places of the broker, nor a flood displace the messages of others. An address gets
# {broker.address_max} of {CONNECTIONS_MAX} places.
# It sends {rate} kB/s, and the bytes of 8 s at once.
table {table}
delete table {table}
table {table} {{
    set ipv4 {{ type ipv4_addr; size 65535; flags dynamic; }}
    set ipv6 {{ type ipv6_addr; size 65535; flags dynamic; }}
    set rate4 {{ type ipv4_addr; size 65535; flags dynamic, timeout; timeout 1m; }}
    set rate6 {{ type ipv6_addr; size 65535; flags dynamic, timeout; timeout 1m; }}
    chain arriving {{
        type filter hook input priority filter; policy accept;
        iif lo accept
        {to_broker} ct state new add @ipv4 {{ ip saddr {limited}
        {to_broker} ct state new add @ipv6 {{ ip6 saddr & ffff:ffff:ffff:ffff:: {limited}
        {to_broker} update @rate4 {{ ip saddr {slowed}
        {to_broker} update @rate6 {{ ip6 saddr & ffff:ffff:ffff:ffff:: {slowed}
    }}
}}
"""


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
    """A password file without the line of one account."""
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
