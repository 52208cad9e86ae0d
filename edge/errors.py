"""The errors of the board's program. Each message is one sentence that says what to do."""

from ternmesh.errors import TernmeshError


class EdgeError(TernmeshError):
    """The base of all errors of the board's program.

    >>> from pathlib import Path
    >>> import edge
    >>> try:
    ...     edge.load_model(Path("/nowhere"))
    ... except edge.EdgeError as error:
    ...     print(type(error).__name__)
    ModelError
    """


class MissingEdgeExtra(EdgeError, ImportError):
    """An optional dependency is not installed; the message names the extra."""


class ModelError(EdgeError):
    """A model package or an adapter that this board cannot load or run."""


class BoardFault(ModelError):
    """The board failed, not the model: a bad disk, or no memory. It proves nothing of the model."""


class OutOfMemory(BoardFault):
    """A model needs more memory than the process may have."""


class NotSigned(ModelError):
    """A release without the signatures that this board requires."""


class DataError(EdgeError):
    """Training or evaluation data that does not fit the model; names the file or the sample."""


class NoData(DataError):
    """Data that is missing, damaged or empty: no model could use it."""
