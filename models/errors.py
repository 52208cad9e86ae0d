"""The tree of errors of this room.

TernmeshError
└── ExportError         a module that cannot become a bundle; the sentence says why
"""

from ternmesh.errors import TernmeshError


class ExportError(TernmeshError):
    """A torch module that cannot be exported, or whose export does not compute the same."""
