"""The `[link]` table of a host's or node's configuration, and the transport that it asks for."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from ternmesh.config import ConfigError, Table, choices
from ternmesh.link.regions import REGIONS
from transports.mqtt_settings import MESSAGE_MAX, MqttSettings
from transports.mqtt_tls import check_ca_file, check_certificate


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """A broker and the fleet's name on it, or a modem and the law that it is under.

    A password may stand in the URL. `serial` is checked by `transports.serial_lora.config`.
    For TLS: PEM files of the authorities to trust in place of the system's, and of a certificate
    and its key for a broker that asks for them. `message_max` (bytes) is for brokers that do not
    tell their limit, as with MQTT 3.1.1, and hang up on what is longer.
    """

    url: str = ""
    fleet: str = "ternmesh"
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    message_max: int = MESSAGE_MAX
    region: str = field(default="", metadata=choices("", *REGIONS))
    serial: Table = field(default_factory=dict)

    def anchored(self, folder: Path) -> "LinkConfig":
        """The same with its relative paths made absolute from `folder`."""

        def path(name: str | None) -> str | None:
            return None if name is None else str(folder / name)

        return replace(
            self,
            ca_file=path(self.ca_file),
            certificate_file=path(self.certificate_file),
            key_file=path(self.key_file),
        )


def link_settings(link: LinkConfig, role: str) -> MqttSettings:
    """The end of the fleet for `role`, a node's name or HOST; ConfigError with a sentence."""
    try:
        if link.ca_file is not None:
            check_ca_file(link.ca_file)
        settings = MqttSettings(
            url=link.url,
            fleet=link.fleet,
            role=role,
            ca_file=link.ca_file,
            certificate_file=link.certificate_file,
            key_file=link.key_file,
            message_max=link.message_max,
        )
        if link.certificate_file is not None and link.key_file is not None:
            check_certificate(link.certificate_file, link.key_file)
        return settings
    except ValueError as error:
        raise ConfigError(f"[link]: {error}") from error
