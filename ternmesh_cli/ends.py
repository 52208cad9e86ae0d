"""What commands need of a host's, node's or gateway's configuration, though the rest be wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ternmesh.config import ConfigError, read_toml
from transports.config_file import control_path


def read_end(path: Path) -> dict[str, Any]:
    """The tables of a configuration; ConfigError where it is no TOML."""
    try:
        return read_toml(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def socket_of(path: Path, content: Mapping[str, Any]) -> Path:
    """Where the process with this configuration answers; ConfigError."""
    state_dir, chosen = content.get("state_dir"), content.get("control_socket")
    if not isinstance(state_dir, str) or not isinstance(chosen, str | None):
        raise ConfigError(f"{path}: state_dir or control_socket is missing or no text")
    return path.resolve().parent / control_path(state_dir, chosen)
