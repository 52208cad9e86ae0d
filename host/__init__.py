"""The host program. The names in `__all__` are public; each is loaded at its first use."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from host.config import HostConfig as HostConfig
    from host.config import RunConfig as RunConfig
    from host.config import read_host_config as read_host_config
    from host.service import run_host as run_host
    from ternmesh_service.keyring import SecurityConfig as SecurityConfig
    from transports.link_config import LinkConfig as LinkConfig

_MODULES = {
    "HostConfig": "host.config",
    "RunConfig": "host.config",
    "read_host_config": "host.config",
    "run_host": "host.service",
    "LinkConfig": "transports.link_config",
    "SecurityConfig": "ternmesh_service.keyring",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
