"""The core: bytes and arrays in, bytes and arrays out; no file, socket, clock or thread.

The names in `__all__` are public. Each is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ternmesh.config import ConfigError
    from ternmesh.errors import TernmeshError, WireError
    from ternmesh.federated.coordinator import Coordinator
    from ternmesh.federated.node import NodeProtocol
    from ternmesh.federated.state import CoordinatorSettings
    from ternmesh.model_package import ModelPackage, read_model_package
    from ternmesh.plan import Plan, make_plan

__version__ = "0.1.0"

_MODULES = {
    "ConfigError": "ternmesh.config",
    "TernmeshError": "ternmesh.errors",
    "WireError": "ternmesh.errors",
    "Coordinator": "ternmesh.federated.coordinator",
    "NodeProtocol": "ternmesh.federated.node",
    "CoordinatorSettings": "ternmesh.federated.state",
    "ModelPackage": "ternmesh.model_package",
    "read_model_package": "ternmesh.model_package",
    "Plan": "ternmesh.plan",
    "make_plan": "ternmesh.plan",
}
__all__ = [
    "ConfigError",
    "Coordinator",
    "CoordinatorSettings",
    "ModelPackage",
    "NodeProtocol",
    "Plan",
    "TernmeshError",
    "WireError",
    "__version__",
    "make_plan",
    "read_model_package",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
