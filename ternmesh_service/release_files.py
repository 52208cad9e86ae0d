"""A release as files in a folder, and as the one object that travels: ternmesh.release.

Errors are ModelPackageError for a release, OSError for the disk.
"""

import hashlib
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from ternmesh import release
from ternmesh.errors import ModelPackageError
from ternmesh_store.files import (
    copy_file,
    open_regular,
    read_file,
    replace_file,
    sync_folder,
    too_large,
)


def pack_folder(folder: Path, held: Collection[release.FileEntry] = ()) -> bytes:
    """The object of the release in `folder`, without the files that are `held` by all receivers."""
    content = read_file(folder / release.MANIFEST, release.MANIFEST_MAX)
    signed = (folder / release.SIGNATURES).exists()
    signatures = read_file(folder / release.SIGNATURES, release.SIGNATURES_MAX) if signed else b""
    files = []
    for name, entry in zip(release.WITH_FRONT, release.read_manifest(content).files, strict=False):
        files.append(b"" if entry in held else read_file(folder / name, entry.size))
    return release.write_object(content, signatures, files)


def entries_of(folder: Path) -> list[release.FileEntry]:
    """Size and SHA-256 of the files of a model package."""
    return [entry_of(path) for name in release.WITH_FRONT if (path := folder / name).exists()]


def entry_of(path: Path) -> release.FileEntry:
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > release.FILE_BYTES_MAX:
            raise too_large(path, release.FILE_BYTES_MAX)
        digest = hashlib.file_digest(file, "sha256").digest()
        return release.FileEntry(file.tell(), digest)


def extract(
    data: bytes, target: Path, held: Sequence[Path], verify: release.Verify
) -> release.ReleaseManifest:
    """Write the release in an object to the folder `target`, anew; `verify` comes first.

    Files that the object leaves out are taken from the folders `held`.
    """
    content, signatures, packed = release.read_object(data)
    verify(content, signatures)
    manifest = release.read_manifest(content)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    if len(packed) != len(manifest.files):
        raise ModelPackageError("the release has not as many files as its manifest: pack it again")
    for name, entry, part in zip(release.WITH_FRONT, manifest.files, packed, strict=False):
        if part:
            replace_file(target / name, release.unpack(part, entry))
        else:
            copy_file(_find(name, entry, held), target / name, release.FILE_BYTES_MAX)
    replace_file(target / release.MANIFEST, content)
    replace_file(target / release.SIGNATURES, signatures)
    sync_folder(target)
    sync_folder(target.parent)
    return manifest


class FileMissing(ModelPackageError):
    """A release leaves out a file that is not here, either: the place is at fault."""


def _find(name: str, entry: release.FileEntry, held: Sequence[Path]) -> Path:
    for folder in held:
        path = folder / name
        if path.is_file() and path.stat().st_size == entry.size and entry_of(path) == entry:
            return path
    raise FileMissing(
        f"the release leaves out {name}, which is not here: install it whole, from a file, or "
        "publish the next one"
    )
