"""Files of a model, read with a size limit.

A file that is missing or unfit is a ModelError, a failure of the disk a BoardFault.
"""

from pathlib import Path

from edge.errors import BoardFault, ModelError
from ternmesh.release import FileEntry
from ternmesh_service import release_files
from ternmesh_store import files
from ternmesh_store.files import UnfitFile


def read_file(path: Path, size_max: int) -> bytes:
    """The content of a file of at most `size_max` bytes."""
    try:
        return files.read_file(path, size_max)
    except OSError as error:
        raise unreadable(path, error) from error


def read_optional(path: Path, size_max: int) -> bytes | None:
    """The same, or None if there is no such file."""
    try:
        return read_file(path, size_max)
    except ModelError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def entry_of(path: Path) -> FileEntry:
    try:
        return release_files.entry_of(path)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> ModelError:
    """The error for a file that cannot be read; one that is missing or unfit is the model's."""
    if isinstance(error, FileNotFoundError | UnfitFile):
        return ModelError(f"{path} cannot be read: {error.strerror}")
    return BoardFault(f"{path} cannot be read ({error.strerror}): check the disk and its rights")
