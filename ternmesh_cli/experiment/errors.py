"""The errors of the experiments.

TernmeshError
└── ExperimentError     the experiment cannot start or go on
    └── PayloadError    a message of a published arm that does not hold what it should
"""

from ternmesh.errors import TernmeshError


class ExperimentError(TernmeshError):
    """The experiment cannot start or go on; the sentence says what to do."""


class PayloadError(ExperimentError):
    """A message that does not hold the tensors of the model."""
