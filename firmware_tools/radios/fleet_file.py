"""The file that says how the radios of a fleet are set up: one for all modems.

region = "EU868"
ebyte_model = "E22-900T22"

[radio]                     # as in [link.serial] of a host or node, without port and addresses
dialect = "ebyte"
frequency_hz = 867125000
air_rate_bps = 9600

[addresses]                 # the boards; the host has 0
board-1 = 1
"""

from dataclasses import dataclass, field, replace

from firmware_tools.errors import FirmwareError
from firmware_tools.radios.ebyte import Settings, wanted_settings
from firmware_tools.radios.ebyte_registers import BANDWIDTH_KHZ, MODELS
from ternmesh.config import ConfigError, Table, choices, read_config
from ternmesh.link.regions import REGIONS, RadioChannel, check
from transports.base import HOST
from transports.serial_lora.settings import SerialLoraSettings, serial_settings

MODEMS_MAX = 255
_NOT_HERE = ("port", "addresses", "role", "queue_max", "speed")


@dataclass(frozen=True, slots=True)
class _File:
    radio: Table
    region: str = field(metadata=choices(*REGIONS))
    ebyte_model: str = field(default="", metadata=choices("", *MODELS))
    addresses: Table = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RadioFleet:
    """What all modems of a fleet are to have; checked against the region's law."""

    ends: dict[str, SerialLoraSettings]  # by name; `host` is one of them
    ebyte_model: str

    def wanted(self, name: str) -> Settings:
        """The settings of one modem; ConfigError for a name that is not in the file."""
        if name not in self.ends:
            allowed = ", ".join(self.ends)
            raise ConfigError(f"{name} is not in [addresses]: it must be one of {allowed}")
        return wanted_settings(self.ends[name], self.ebyte_model)


def read_radio_fleet(text: str) -> RadioFleet:
    """The fleet in a TOML text. ConfigError says what is wrong, also by the law of the region."""
    file = read_config(_File, text)
    for key in _NOT_HERE:
        if key in file.radio:
            raise ConfigError(f"radio.{key} does not belong here: remove it")
    if len(file.addresses) >= MODEMS_MAX:
        raise ConfigError(f"addresses has {len(file.addresses)} boards: {MODEMS_MAX - 1} is most")
    shared = {**file.radio, "port": "-", "addresses": file.addresses}
    ends = {name: serial_settings(shared, name) for name in (HOST, *file.addresses)}
    own, region = ends[HOST], REGIONS[file.region]
    if not own.frequency_hz:
        raise ConfigError("radio.frequency_hz is missing: the middle of the channel, in Hz")
    if own.dialect != "ebyte":
        raise ConfigError(
            f"radio.dialect is {own.dialect!r}, whose modems need no file: docs/firmware.md says "
            "who sets them"
        )
    if not file.ebyte_model:
        allowed = ", ".join(MODELS)
        raise ConfigError(f"ebyte_model is missing: it must be one of {allowed}")
    radio = replace(own.radio, bandwidth_khz=BANDWIDTH_KHZ)
    check(region, RadioChannel(own.frequency_hz, radio, own.power_dbm))
    fleet = RadioFleet(ends, file.ebyte_model)
    try:
        fleet.wanted(HOST)
    except FirmwareError as error:
        raise ConfigError(f"[radio]: {error}") from error
    return fleet
