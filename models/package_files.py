"""The folder of a model package: written whole, and only where nothing else is lost."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.errors import ExportError
from ternmesh.model_package import (
    FILES,
    FRONT,
    ModelPackage,
    read_model_package,
    write_model_package,
)

DESCRIPTION = "model.json"


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


def write_folder(folder: Path, contents: Mapping[str, bytes], **fields: Any) -> ModelPackage:
    """Write the files of a package, and model.json last, with these fields and their hashes.

    ModelPackageError where a board would refuse it; ExportError where the system refuses.
    """
    files = {file: hashlib.sha256(data).hexdigest() for file, data in contents.items()}
    package = ModelPackage(files=files, **fields)
    description = write_model_package(package)
    read_model_package(description)  # as a board does: the labels are the caller's
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in {**contents, DESCRIPTION: description}.items():
            (folder / file).write_bytes(data)
    except OSError as error:
        raise ExportError(f"cannot write the model package: {error}") from error
    return package
