"""The tree of errors of pipeline training.

TernmeshError
└── PipelineError       ranks, checkpoints or texts that do not fit together; the sentence says why
"""

from ternmesh.errors import TernmeshError


class PipelineError(TernmeshError):
    """Something that a restart cannot mend: all ranks end with the sentence."""
