"""Configuration files: every program reads its own in the same way.

What the files of all programs have alike stands here too: a name, paths, the control socket.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ternmesh.config import ConfigError, read_config
from transports.base import check_node

CONTROL = "control.sock"  # in the state_dir

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


def anchored(path: str | None, folder: Path) -> str | None:
    """A relative path from `folder`."""
    return None if path is None else str(folder / path)


def control_path(state_dir: str, chosen: str | None) -> Path:
    """The socket that `ternmesh status` asks: the one that was chosen, or that of the folder."""
    return Path(chosen or Path(state_dir) / CONTROL)


def check_name(name: str) -> None:
    """ConfigError unless a node, board or gateway may be called this."""
    try:
        check_node(name)
    except ValueError as error:
        raise ConfigError(f"name: {error}") from error
