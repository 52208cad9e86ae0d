"""The `[link.serial]` table of a host's or node's configuration."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ternmesh.config import ConfigError, is_whole
from ternmesh.link.airtime import LoraSetting
from transports.serial_lora.settings import SerialLoraSettings

# What the table may hold, with a value of the right kind. Those of `radio` stand beside the others.
_RADIO: dict[str, object] = {item.name: 0 for item in fields(LoraSetting)}
_FIRST: dict[str, object] = {"port": "", "dialect": "", "addresses": {}}
_OTHERS: dict[str, object] = {
    item.name: item.default
    for item in fields(SerialLoraSettings)
    if item.name not in (*_FIRST, "role", "radio")
}
_ALLOWED = _FIRST | _OTHERS | _RADIO


def serial_settings(table: Mapping[str, Any], role: str) -> SerialLoraSettings:
    """The end of the fleet for `role`, a node's name or HOST; ConfigError with a sentence."""
    for key, value in table.items():
        if key not in _ALLOWED:
            allowed = ", ".join(sorted(_ALLOWED))
            raise ConfigError(f"link.serial.{key} is not a setting: [link.serial] allows {allowed}")
        _check(f"link.serial.{key}", value, _ALLOWED[key])
    for name, address in table.get("addresses", {}).items():
        _check(f"link.serial.addresses.{name}", address, 0)
    if missing := [key for key in _FIRST if key not in table]:
        raise ConfigError(f"link.serial.{missing[0]} is missing: it has no default")
    radio = {key: value for key, value in table.items() if key in _RADIO}
    others = {key: value for key, value in table.items() if key not in _RADIO}
    try:
        settings = SerialLoraSettings(role=role, **others)
        return replace(settings, radio=replace(settings.radio, **radio))
    except ValueError as error:
        raise ConfigError(f"[link.serial]: {error}") from error


def _check(name: str, value: object, example: object) -> None:
    """ConfigError unless `value` is of the kind of `example`."""
    words = {str: "text", int: "a whole number", float: "a number", dict: "a table"}
    kind = type(example)
    if type(value) is not kind and not (kind is float and is_whole(value)):
        raise ConfigError(f"{name} is {value!r}: it must be {words[kind]}")
