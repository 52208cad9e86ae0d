"""The errors of pipeline training.

TernmeshError
└── PipelineError       ranks, checkpoints or texts that do not fit together
"""

from ternmesh.errors import TernmeshError


class PipelineError(TernmeshError):
    """A restart cannot help: all ranks end with this reason."""
