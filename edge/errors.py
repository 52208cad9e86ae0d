"""The tree of errors of this room; each message is one sentence that says what to do.

TernmeshError
└── EdgeError
    ├── MissingExtra        an optional dependency is not installed
    ├── ModelError          a model bundle or adapter that this board cannot load or run
    └── DataError           training or evaluation data that does not fit the model
"""

from ternmesh.errors import TernmeshError


class EdgeError(TernmeshError):
    """The base of every error that this room raises."""


class MissingExtra(EdgeError):
    """An optional dependency is not installed; the sentence names the extra."""


class ModelError(EdgeError):
    """A bundle or an adapter that cannot be used here."""


class DataError(EdgeError):
    """Data that does not fit the model; the sentence names the file or the sample."""
