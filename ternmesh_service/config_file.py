"""Configuration files of the programs: how they are read, and settings that all of them have."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from models.zoo import package_path
from ternmesh.config import ConfigError, read_config
from transports.base import check_node

CONTROL = "control.sock"  # in the state_dir

T = TypeVar("T")


def read_config_file(kind: type[T], path: Path, finish: Callable[[T, Path], T]) -> T:
    """The settings of class `kind` in a TOML file; ConfigError with the name of the file.

    `finish` checks them and makes paths absolute; its second argument is the folder of the file.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        return finish(read_config(kind, text), path.resolve().parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def anchored(path: str | None, folder: Path) -> str | None:
    """`path` taken relative to `folder`."""
    return None if path is None else str(folder / path)


def package_folder(model: str, key: str = "model") -> Path:
    """The folder of a shipped model, or `model` itself; ConfigError, which names the `key`."""
    try:
        return package_path(model)
    except ValueError as error:
        folder = Path(model)
        if not folder.is_dir():
            raise ConfigError(f"{key} is {model!r}: no such folder, and {error}") from error
        return folder


def anchored_model(model: str, folder: Path) -> str:
    """`model` as a path from `folder` if that is a folder; otherwise it names a shipped model."""
    return str(folder / model) if (folder / model).is_dir() else model


def control_path(state_dir: str, chosen: str | None) -> Path:
    """The control socket: the chosen one, or else the one in `state_dir`."""
    return Path(chosen or Path(state_dir) / CONTROL)


def check_name(name: str) -> None:
    """ConfigError unless `name` is allowed for a node or gateway."""
    try:
        check_node(name)
    except ValueError as error:
        raise ConfigError(f"name: {error}") from error
