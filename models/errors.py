"""The tree of errors of this room.

TernmeshError
├── ExportError         a module that cannot become a bundle; the sentence says why
└── BottleneckError     a payload between two stages that cannot be used
"""

from ternmesh.errors import TernmeshError


class ExportError(TernmeshError):
    """A torch module that cannot be exported, or whose export does not compute the same."""


class BottleneckError(TernmeshError):
    """A payload between two stages that is damaged, not finite or of another size."""
