"""The `[link]` table of a host's or node's configuration, and the transport that it asks for."""

from dataclasses import dataclass

from ternmesh.config import ConfigError
from transports.mqtt_settings import MqttSettings, check_ca_file


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """The broker, and the fleet's name on it. A password may stand in the URL."""

    url: str
    fleet: str = "ternmesh"
    ca_file: str | None = None


def link_settings(link: LinkConfig, role: str) -> MqttSettings:
    """The end of the fleet for `role`, a node's name or HOST; ConfigError with a sentence."""
    try:
        if link.ca_file is not None:
            check_ca_file(link.ca_file)
        return MqttSettings(url=link.url, fleet=link.fleet, role=role, ca_file=link.ca_file)
    except ValueError as error:
        raise ConfigError(f"[link]: {error}") from error
