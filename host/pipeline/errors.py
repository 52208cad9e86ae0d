"""The error of pipeline training."""

from ternmesh.errors import TernmeshError


class PipelineError(TernmeshError):
    """Ranks, checkpoints or texts do not fit together; a restart cannot help, and all ranks end."""
