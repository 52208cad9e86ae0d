"""A release as files in a folder, and as the one object that travels: ternmesh.release.

Errors are ModelPackageError for a release, OSError for the disk.
"""

import hashlib
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from ternmesh.errors import ModelPackageError
from ternmesh.release import (
    FILE_BYTES_MAX,
    FILES,
    MANIFEST,
    MANIFEST_MAX,
    SIGNATURES,
    SIGNATURES_MAX,
    FileEntry,
    ReleaseManifest,
    Verify,
    read_manifest,
    read_object,
    unpack,
    write_object,
)
from ternmesh_store.files import (
    copy_file,
    open_regular,
    read_file,
    replace_file,
    sync_folder,
    too_large,
)


def pack_folder(folder: Path, held: Collection[FileEntry] = ()) -> bytes:
    """The object of the release in `folder`, without the files that are `held` by all receivers."""
    content = read_file(folder / MANIFEST, MANIFEST_MAX)
    signed = (folder / SIGNATURES).exists()
    signatures = read_file(folder / SIGNATURES, SIGNATURES_MAX) if signed else b""
    files = []
    for name, entry in zip(FILES, read_manifest(content).files, strict=True):
        files.append(b"" if entry in held else read_file(folder / name, entry.size))
    return write_object(content, signatures, files)


def entries_of(folder: Path) -> list[FileEntry]:
    """Size and SHA-256 of the files of a model package."""
    return [entry_of(folder / name) for name in FILES]


def entry_of(path: Path) -> FileEntry:
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > FILE_BYTES_MAX:
            raise too_large(path, FILE_BYTES_MAX)
        digest = hashlib.file_digest(file, "sha256").digest()
        return FileEntry(file.tell(), digest)


def extract(data: bytes, target: Path, held: Sequence[Path], verify: Verify) -> ReleaseManifest:
    """Write the release in an object to the folder `target`, anew; `verify` comes first.

    Files that the object leaves out are taken from the folders `held`.
    """
    content, signatures, packed = read_object(data)
    verify(content, signatures)
    manifest = read_manifest(content)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name, entry, part in zip(FILES, manifest.files, packed, strict=True):
        if part:
            replace_file(target / name, unpack(part, entry))
        else:
            copy_file(_find(name, entry, held), target / name, FILE_BYTES_MAX)
    replace_file(target / MANIFEST, content)
    replace_file(target / SIGNATURES, signatures)
    sync_folder(target)
    sync_folder(target.parent)
    return manifest


def _find(name: str, entry: FileEntry, held: Sequence[Path]) -> Path:
    for folder in held:
        path = folder / name
        if path.is_file() and path.stat().st_size == entry.size and entry_of(path) == entry:
            return path
    raise ModelPackageError(
        f"the release leaves out {name}, which is not here: install it whole, from a file"
    )
