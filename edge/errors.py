"""The errors of the board's program. Each message is one sentence that says what to do.

TernmeshError
└── EdgeError
    ├── MissingExtra        an optional dependency is not installed
    ├── ModelError          a model package or adapter that this board cannot load or run
    │   ├── BoardFault      the board failed, not the model: a bad disk, or no memory
    │   └── NotSigned       a release without the signatures that this board requires
    └── DataError           training or evaluation data that does not fit the model
        └── NoData          data that no model could use: missing, damaged or empty
"""

from ternmesh.errors import TernmeshError


class EdgeError(TernmeshError):
    """The base of all errors of the board's program."""


class MissingEdgeExtra(EdgeError):
    """An optional dependency is not installed; the message names the extra."""


class ModelError(EdgeError):
    """A model package or an adapter that this board cannot load or run."""


class BoardFault(ModelError):
    """The board cannot read or try a model: this proves nothing about the model."""


class NotSigned(ModelError):
    """A release without the signatures that this board requires."""


class DataError(EdgeError):
    """Data that does not fit the model; the message names the file or the sample."""


class NoData(DataError):
    """Data that is missing, damaged or empty: no model could use it."""
