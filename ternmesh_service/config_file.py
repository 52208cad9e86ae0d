"""Configuration files of the programs: how they are read, and settings that all of them have."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from models.zoo import package_path
from ternmesh.config import ConfigError, read_config
from ternmesh.model_package import ModelPackage, read_model_package
from ternmesh_service.control_socket import PATH_MAX
from ternmesh_store.files import read_file, read_text
from transports.base import check_node
from transports.link_config import LinkConfig

CONTROL = "control.sock"  # in the state_dir
DESCRIPTION = "model.json"  # in the folder of a model package
SETTINGS_MAX, DESCRIPTION_MAX = 1 << 18, 4 << 20  # bytes of these files
# Metadata of fields: a path that starts from the folder of the file; a model, which may be one.
PATH: Final = {"path": True}
MODEL: Final = {"model": True}

T = TypeVar("T")


def read_config_file(kind: type[T], path: Path, finish: Callable[[T], T]) -> T:
    """The settings of class `kind` in a TOML file; ConfigError with the name of the file.

    Paths (`PATH`) start from the folder of the file. `finish` checks and completes the settings.
    """
    text = read_settings(path)
    try:
        made: Any = finish(_anchored(read_config(kind, text), path.resolve().parent))
        if hasattr(made, "control_socket"):
            control_path(made.state_dir, made.control_socket)
        return made  # type: ignore[no-any-return]
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_settings(path: Path) -> str:
    """The text of a settings file; ConfigError."""
    try:
        return read_text(path, SETTINGS_MAX)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from error


def _anchored(table: Any, folder: Path) -> Any:
    """A table with its paths made absolute from `folder`. An empty optional path counts as none."""
    changes: dict[str, Any] = {}
    for item in fields(table):
        value = getattr(table, item.name)
        if isinstance(value, LinkConfig):
            changes[item.name] = value.anchored(folder)
        elif is_dataclass(value):
            changes[item.name] = _anchored(value, folder)
        elif PATH.items() <= item.metadata.items():
            is_given = value or item.default is MISSING
            path = str(anchored(value, folder, item.name)) if is_given else item.default
            changes[item.name] = path
        elif MODEL.items() <= item.metadata.items() and value is not None:
            is_folder = (folder / value).is_dir() or not _is_shipped(value)
            changes[item.name] = str(folder / value) if is_folder else value
    return replace(table, **changes)


def _is_shipped(model: str) -> bool:
    with suppress(ValueError):
        return bool(package_path(model))
    return False


def anchored(value: str, folder: Path, name: str) -> Path:
    """The path in the setting `name`, which starts from `folder`; ConfigError."""
    if not value or value.startswith("~"):
        raise ConfigError(f"{name} is {value!r}: write a path, from / or from {folder} on")
    return folder / value


def package_folder(model: str, key: str = "model") -> Path:
    """The folder of a shipped model, or `model` itself; ConfigError, which names the `key`."""
    try:
        return package_path(model)
    except ValueError as error:
        folder = Path(model)
        if not folder.is_dir():
            choice = str(error).rpartition(": ")[2]
            raise ConfigError(
                f"{key} is {folder.name!r}: no such folder as {folder.absolute()}, and no model is "
                f"called so: {choice}"
            ) from error
        return folder


def load_model_package(model: str) -> ModelPackage:
    """The description of a shipped model or of a folder; ConfigError or ModelPackageError."""
    folder = package_folder(model)
    try:
        return read_model_package(read_file(folder / DESCRIPTION, DESCRIPTION_MAX))
    except OSError as error:
        raise ConfigError(f"model is {model!r}: its {DESCRIPTION} cannot be read") from error


def control_path(state_dir: str, chosen: str | None) -> Path:
    """The control socket: the chosen one, or else the one in `state_dir`; ConfigError."""
    path = Path(chosen or Path(state_dir) / CONTROL)
    if len(os.fsencode(path)) > PATH_MAX:
        key = "control_socket" if chosen else "state_dir"
        raise ConfigError(
            f"{key}: {path} is longer than the {PATH_MAX} bytes of a socket's path: choose a "
            "shorter one"
        )
    return path


def check_name(name: str) -> None:
    """ConfigError unless `name` is allowed for a node or gateway."""
    try:
        check_node(name)
    except ValueError as error:
        raise ConfigError(f"name: {error}") from error
