"""All fuzz targets by name.

A module of its own: a process that fuzzes imports it while atheris instruments the imports.
"""

from collections.abc import Mapping

from fuzz import federated, files, links, security, split, voters, wire
from fuzz.target import Target

_MODULES = (wire, federated, voters, links, split, security, files)
TARGETS: Mapping[str, Target] = {
    target.name: target for module in _MODULES for target in module.TARGETS
}
