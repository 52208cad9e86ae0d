"""TOML text to frozen dataclasses, with one clear sentence for a wrong key or value.

A settings class is a frozen dataclass whose fields are str, int, float, bool, optional str, tuples
of str, free tables (`Table`, checked by the code that uses one), or other settings classes. A field
may have limits: `field(metadata=limits(1, 10))`, choices: `choices("a", "b")`, or another field
without which it has no effect: `needs("mode", "a")`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

from ternmesh.errors import TernmeshError

T = TypeVar("T")
Table = dict[str, Any]
DOTS_MAX = 100  # in a line: tomllib takes time and memory for the square of the names in a key
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class ConfigError(TernmeshError):
    """A configuration cannot be used; the message has the key, its value and what is allowed.

    >>> from ternmesh.config import ConfigError, read_toml
    >>> try:
    ...     read_toml("rounds = twenty")
    ... except ConfigError as error:
    ...     print(str(error)[:16])
    this is not TOML
    """


def limits(low: float, high: float) -> dict[str, Any]:
    """Field metadata: the smallest and the largest allowed number."""
    return {"limits": (low, high)}


def choices(*allowed: str) -> dict[str, Any]:
    """Field metadata: the allowed texts; capitals and small letters count as the same."""
    return {"choices": allowed}


def needs(other: str, value: object = None) -> dict[str, Any]:
    """Field metadata: the field has an effect only where the field `other` is set (to `value`)."""
    return {"needs": (other, value)}


def read_config(kind: type[T], text: str) -> T:
    """The settings of class `kind` in a TOML text, or ConfigError."""
    return _table(kind, read_toml(text), "")


def read_toml(text: str) -> Table:
    """The content of a TOML text; ConfigError, also for a string with a NUL character in it."""
    try:
        if any(line.count(".") > DOTS_MAX for line in text.splitlines()):
            raise ValueError(f"a line has more than {DOTS_MAX} dots")
        content = tomllib.loads(text.removeprefix("\ufeff"))  # some editors begin a file so
        _refuse_nul(content, "")
    except (ValueError, RecursionError) as error:  # ValueError also for a number of 4300 digits
        raise ConfigError(f"this is not TOML: {error}") from error
    return content


def read_table(kind: type[T], content: Mapping[str, Any], name: str) -> T:
    """The settings of class `kind` in the free table `name`, or ConfigError."""
    return _table(kind, content, f"{name}.")


def is_whole(value: object) -> bool:
    """Whether a value is an integer that TOML guarantees to carry (64 bits)."""
    return type(value) is int and abs(value) < 1 << 63


def _refuse_nul(value: Any, name: str) -> None:
    """ConfigError for a NUL character in any string: system calls reject it."""
    match value:
        case str() if "\0" in value:
            raise ConfigError(f"{name} is {value!r}: remove the character \\u0000")
        case dict():
            for key, item in value.items():
                _refuse_nul(item, f"{name}.{key}" if name else key)
        case list():
            for item in value:
                _refuse_nul(item, name)


def _table(kind: type[T], content: Mapping[str, Any], prefix: str) -> T:
    assert is_dataclass(kind)
    known = {item.name: item for item in fields(kind)}
    types = get_type_hints(kind)
    for key in content:
        if key not in known:
            allowed = ", ".join(sorted(known))
            where = f"[{prefix[:-1]}]" if prefix else "the file"
            raise ConfigError(f"{prefix}{key} is not a setting: {where} allows {allowed}")
    values = {}
    for name, item in known.items():
        if name in content:
            values[name] = _value(types[name], item, content[name], prefix + name)
        elif item.default is MISSING and item.default_factory is MISSING:
            if not is_dataclass(types[name]):
                raise ConfigError(f"{prefix}{name} is missing: it has no default")
            values[name] = _table(types[name], {}, f"{prefix}{name}.")
    made = kind(**values)
    for name, item in known.items():
        default = item.default if item.default_factory is MISSING else item.default_factory()
        if "needs" in item.metadata and getattr(made, name) != default:
            other, value = item.metadata["needs"]
            if not (getattr(made, other) if value is None else getattr(made, other) == value):
                wanted = "" if value is None else f' = "{value}"'
                raise ConfigError(
                    f"{prefix}{name} has no effect without {prefix}{other}{wanted}: remove it, or "
                    "set that"
                )
    return made


def _value(wanted: Any, item: Field[Any], value: Any, name: str) -> Any:
    if is_dataclass(wanted):
        if not isinstance(value, dict):
            raise ConfigError(f"{name} is {value!r}: it must be a table, written [{name}]")
        return _table(wanted, value, f"{name}.")  # type: ignore[arg-type]
    if wanted is float and is_whole(value):
        value = float(value)
    if wanted == tuple[str, ...] and type(value) is list:
        value = tuple(value)
    if not _has_type(wanted, value):
        shown = str(value).lower() if type(value) is bool else repr(value)
        raise ConfigError(f"{name} is {shown}: it must be {_type_name(wanted)}")
    if "limits" in item.metadata:
        low, high = item.metadata["limits"]
        if not low <= value <= high:  # also for NaN
            raise ConfigError(f"{name} is {value!r}: it must be {low:.15g} to {high:.15g}")
    if "choices" in item.metadata:
        by_lower = {choice.lower(): choice for choice in item.metadata["choices"]}
        if value.lower() not in by_lower:
            allowed = ", ".join(filter(None, item.metadata["choices"]))
            raise ConfigError(f"{name} is {value!r}: it must be one of {allowed}")
        return by_lower[value.lower()]
    return value


def _has_type(wanted: Any, value: Any) -> bool:
    if wanted == tuple[str, ...]:
        return type(value) is tuple and all(type(item) is str for item in value)
    if wanted == str | None:
        return type(value) is str
    if wanted == Table:
        return type(value) is dict
    return type(value) is wanted


def _type_name(wanted: Any) -> str:
    if wanted == Table:
        return "a table of options"
    if wanted == tuple[str, ...]:
        return "a list of texts"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(wanted, "text")
