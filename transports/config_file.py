"""Configuration files: every program reads its own in the same way."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ternmesh.config import ConfigError, read_config

T = TypeVar("T")


def read_config_file(kind: type[T], path: Path, finish: Callable[[T, Path], T]) -> T:
    """The settings of class `kind` in a TOML file; ConfigError, whose sentence names the file.

    `finish` checks them, and makes relative paths absolute from the file's folder, its second
    argument.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        return finish(read_config(kind, text), path.resolve().parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
