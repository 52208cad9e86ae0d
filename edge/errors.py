"""The tree of errors of this room; each message is one sentence that says what to do.

TernmeshError
└── EdgeError
    ├── MissingExtra        an optional dependency is not installed
    ├── ModelError          a model bundle or adapter that this board cannot load or run
    │   ├── BoardFault      the board cannot read or try it: nothing is known of the model
    │   └── NotSigned       a release that too few trusted signers have signed
    └── DataError           training or evaluation data that does not fit the model
        └── NoData          data that is missing, damaged or empty, whatever the model
"""

from pathlib import Path

from ternmesh.errors import TernmeshError


class EdgeError(TernmeshError):
    """The base of every error that this room raises."""


class MissingExtra(EdgeError):
    """An optional dependency is not installed; the sentence names the extra."""


class ModelError(EdgeError):
    """A bundle or an adapter that cannot be used here."""


class BoardFault(ModelError):
    """A file that the disk does not give, a process that does not start, a changed [trust]."""


class NotSigned(ModelError):
    """A release without the signatures that this board asks for."""


class DataError(EdgeError):
    """Data that does not fit the model; the sentence names the file or the sample."""


class NoData(DataError):
    """Data of the board's own that no model could use."""


def unreadable(path: Path, error: OSError) -> ModelError:
    """What to raise for a model's file: one that is not there is the model's own fault."""
    if isinstance(error, FileNotFoundError):
        return ModelError(f"{path} cannot be read: {error.strerror}")
    return BoardFault(f"{path} cannot be read ({error.strerror}): check the disk and its rights")
