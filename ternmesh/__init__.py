"""The core: bytes and arrays in, bytes and arrays out; no file, socket, clock or thread.

The names in `__all__` are public. Each is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ternmesh.config import ConfigError as ConfigError
    from ternmesh.errors import TernmeshError as TernmeshError
    from ternmesh.errors import WireError as WireError
    from ternmesh.federated.host import HostProtocol as HostProtocol
    from ternmesh.federated.joining import NodeSettings as NodeSettings
    from ternmesh.federated.node import NodeProtocol as NodeProtocol
    from ternmesh.federated.state import HostSettings as HostSettings
    from ternmesh.model_package import ModelPackage as ModelPackage
    from ternmesh.model_package import read_model_package as read_model_package
    from ternmesh.plan import Plan as Plan
    from ternmesh.plan import make_plan as make_plan

__version__ = "0.2.0"

_MODULES = {
    "ConfigError": "ternmesh.config",
    "TernmeshError": "ternmesh.errors",
    "WireError": "ternmesh.errors",
    "HostProtocol": "ternmesh.federated.host",
    "NodeProtocol": "ternmesh.federated.node",
    "NodeSettings": "ternmesh.federated.joining",
    "HostSettings": "ternmesh.federated.state",
    "ModelPackage": "ternmesh.model_package",
    "read_model_package": "ternmesh.model_package",
    "Plan": "ternmesh.plan",
    "make_plan": "ternmesh.plan",
}
__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
