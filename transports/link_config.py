"""The `[link]` table of a host's or node's configuration, and the transport that it asks for."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from ternmesh.config import ConfigError, Table, choices, needs, read_table
from ternmesh.link.regions import REGIONS
from transports.base import HOST
from transports.mqtt.credentials import Credentials, read_credentials
from transports.mqtt.settings import MESSAGE_MAX, MqttSettings, parse_url
from transports.mqtt.tls import check_ca_file, check_certificate

MAIN = "link"  # what the bearer of `[link]` itself is called where there are several
COMPLETE, UNRELIABLE = "complete", "unreliable"
_FILES = ("ca_file", "certificate_file", "key_file", "credentials_file")
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """A broker and the fleet's name on it, a modem and the law that it is under, or BLE.

    A password may stand in the URL, or in a `credentials_file` that only its owner may read
    (`transports.mqtt.credentials`). `serial` is checked by `transports.serial_lora.settings`, `ble`
    by `transports.ble.config`. `also` holds further bearers by name, each a table like this one;
    `multipath` says that the other end has several. `gateway` is the name of the gateway that a
    board's radio reaches in place of the host: its keys seal the link. `aggregator`, the same on
    both, is the one that a board has in place of the host; of `aggregators`, URLs by name (empty:
    that of `url`), it takes the nearest, and `host` is the host. `radios` says that boards of this
    host have radios, behind gateways or aggregators. `relay` is the radio setting of boards that a
    relay connects to a BLE bridge. `service`, the same on host and boards, is how updates travel
    over radios: whole, with retransmissions, or each frame once.
    For TLS: PEM files of the authorities to trust in place of the system's, and of a certificate
    and its key for a broker that requests them. `message_max` (bytes) is for brokers that cannot
    announce their limit, as with MQTT 3.1.1, and close the connection after a longer message.

    >>> LinkConfig(url="mqtts://broker.local:8883", fleet="attic").radios
    False
    """

    url: str = ""
    fleet: str = "ternmesh"
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    credentials_file: str | None = None
    message_max: int = MESSAGE_MAX
    cleartext: bool = False  # a password may cross the network without TLS
    region: str = field(default="", metadata=choices("", *REGIONS) | needs("serial"))
    serial: Table = field(default_factory=dict)
    ble: Table = field(default_factory=dict)
    also: Table = field(default_factory=dict)
    multipath: bool = False
    gateway: str = ""
    aggregator: str = ""
    aggregators: Table = field(default_factory=dict)
    radios: bool = False
    relay: Table = field(default_factory=dict)
    service: str = field(default=COMPLETE, metadata=choices(COMPLETE, UNRELIABLE))

    def bearers(self) -> dict[str, "LinkConfig"]:
        """Each bearer's own table by name, in order of preference; ConfigError."""
        bearers = {
            MAIN: replace(
                self, also={}, multipath=False, gateway="", radios=False, relay={}, service=COMPLETE
            )
        }
        for name, table in self.also.items():
            where = f"link.also.{name}"
            if not isinstance(table, dict):
                raise ConfigError(f"{where} is {table!r}: it must be a table, written [{where}]")
            if name == MAIN or not name.replace("-", "").isalnum():
                raise ConfigError(f"{where}: call it something else, of letters, digits and -")
            for key in (
                "also", "multipath", "gateway", "aggregator", "aggregators", "radios", "relay",
                "service",
            ):  # fmt: skip
                if key in table:
                    raise ConfigError(f"{where}.{key} is not a setting: it belongs into [link]")
            own = read_table(LinkConfig, {"fleet": self.fleet, **table}, where)
            bearers[name] = replace(own, aggregator=self.aggregator)
        return bearers

    def toward(self, name: str) -> "LinkConfig":
        """The link of a board to one of its `aggregators`, or to the host itself."""
        url, aggregator = self.aggregators[name] or self.url, "" if name == HOST else name
        return replace(self, url=url, aggregator=aggregator, aggregators={})

    @property
    def is_loopback(self) -> bool:
        """Whether nothing of it leaves this machine."""
        urls = [one.url for one in self.bearers().values()]
        urls += filter(None, self.aggregators.values())
        return all(url and parse_url(url).host in LOOPBACK for url in urls)

    @property
    def has_radio(self) -> bool:
        """Whether a radio's airtime is among what it takes."""
        return any(one.serial for one in self.bearers().values())

    def anchored(self, folder: Path) -> "LinkConfig":
        """The same with its relative paths made absolute from `folder`."""

        def paths(table: Table) -> Table:
            named = {key: table[key] for key in _FILES if isinstance(table.get(key), str)}
            return table | {key: str(folder / name) for key, name in named.items()}

        also = {n: paths(t) if isinstance(t, dict) else t for n, t in self.also.items()}
        return replace(self, also=also, **paths({key: getattr(self, key) for key in _FILES}))


def link_settings(link: LinkConfig, role: str, table: str = "link") -> MqttSettings:
    """The end of the fleet for `role`, a node's name or HOST; ConfigError, which names `table`."""
    try:
        if link.ca_file is not None:
            check_ca_file(link.ca_file)
        own = Credentials()
        if link.credentials_file is not None:
            if parse_url(link.url).username is not None:
                raise ValueError(
                    "url has a user name and there is a credentials_file: keep one of them"
                )
            own = read_credentials(Path(link.credentials_file), role)
        settings = MqttSettings(
            url=link.url,
            fleet=f"{link.fleet}.{link.aggregator}" if link.aggregator else link.fleet,
            role=role,
            username=own.username,
            password=own.password,
            ca_file=link.ca_file,
            certificate_file=link.certificate_file,
            key_file=link.key_file,
            message_max=link.message_max,
        )
        _check_cleartext(link, settings)
        if link.certificate_file is not None and link.key_file is not None:
            check_certificate(link.certificate_file, link.key_file)
        return settings
    except ValueError as error:
        raise ConfigError(f"[{table}]: {error}") from error


def _check_cleartext(link: LinkConfig, settings: MqttSettings) -> None:
    """ValueError where `mqtt://` makes a file for TLS useless, or shows a password to others."""
    if settings.broker.tls:
        return
    for key in ("ca_file", "certificate_file", "key_file"):
        if getattr(link, key) is not None:
            raise ValueError(f"{key} has no effect with mqtt://: write mqtts://, or leave it out")
    has_password = (settings.password or settings.broker.password) is not None
    if has_password and not (link.cleartext or settings.broker.host in LOOPBACK):
        raise ValueError(
            f"the password would go to {settings.broker} in the clear: write mqtts://, or set "
            "cleartext = true"
        )
