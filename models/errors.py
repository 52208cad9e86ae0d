"""The errors of models/.

TernmeshError
├── ExportError         a torch module that cannot become a model package
└── BottleneckError     a payload between two stages that cannot be used
"""

from ternmesh.errors import TernmeshError


class ExportError(TernmeshError):
    """A torch module cannot be exported, or its export computes something else."""


class BottleneckError(TernmeshError):
    """A payload between two stages is damaged, not finite, or of another size."""
