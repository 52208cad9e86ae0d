"""The folder of a model package: written whole, and only where nothing else is lost."""

from collections.abc import Mapping
from pathlib import Path

from models.errors import ExportError
from ternmesh.model_package import FILES

DESCRIPTION = "model.json"
FRONT = "front.onnx"  # the frozen part, of format 2


def check_folder(folder: Path, *, replace: bool = False) -> None:
    """ExportError if files would be overwritten that are no earlier package to `replace`."""
    try:
        found = {path.name for path in folder.iterdir()} if folder.exists() else set()
    except OSError as error:
        raise ExportError(f"cannot write the model package: {error}") from error
    if others := found.difference(FILES, {DESCRIPTION, FRONT}):
        raise ExportError(f"{folder} holds {min(others)}, no part of a package: give a new folder")
    if found and not replace:
        raise ExportError(f"{folder} holds a package: give another folder, or replace=True")


def write_folder(folder: Path, description: bytes, contents: Mapping[str, bytes]) -> None:
    """Write the files, model.json last; ExportError where the system refuses."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in {**contents, DESCRIPTION: description}.items():
            (folder / file).write_bytes(data)
    except OSError as error:
        raise ExportError(f"cannot write the model package: {error}") from error
