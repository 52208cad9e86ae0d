"""The releases on a board's disk: `VERSION/` with the files of each, and `standing.json`.

A folder appears by one rename, whole and checked; `standing.json` (which one is current, which was
the last good one) is replaced in one rename too. `ternmesh release install` adds folders while a
node runs, and the node alone changes the standing: a lock file keeps them apart.
"""

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from edge.errors import BoardFault, ModelError, unreadable
from edge.session import LoadedBundle, load_bundle
from ternmesh.errors import TernmeshError
from ternmesh.release import (
    DESCRIPTION,
    FILES,
    MANIFEST_MAX,
    SIGNATURES_MAX,
    FileEntry,
    Manifest,
    Verify,
    make_manifest,
    read_manifest,
    write_manifest,
)
from ternmesh.rollout import Standing, adopt, attempt
from ternmesh_store.files import replace_file, sync_folder

MANIFEST, SIGNATURES, STANDING, LOCK = "manifest.cbor", "signatures", "standing.json", "lock"
UNFINISHED = "unfinished"
KEPT_MAX = 4  # releases on the disk
CHUNK = 1 << 20
STANDING_MAX = 65_536  # bytes
# What readers of JSON and of its values raise.
_MALFORMED = (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)

_log = logging.getLogger(__name__)


class Releases:
    """The releases in `folder`; `verify` says whether enough trusted signers signed a manifest."""

    def __init__(self, folder: Path, verify: Verify) -> None:
        self.folder = folder
        self._verify = verify

    def installed(self) -> list[int]:
        """The versions that folders are named by, oldest first; a name proves nothing."""
        try:
            names = [entry.name for entry in self.folder.iterdir() if entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BoardFault(f"{self.folder} cannot be listed ({error}): check the disk") from error
        return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))

    def survey(self, floor: int) -> tuple[list[int], dict[int, str]]:
        """The versions above `floor` with a signed manifest that says so, and why others have none.

        Cheap: of a release's files it reads the manifest and the signatures alone.
        """
        signed, refused = [], {}
        for version in self.installed():
            if version > floor:
                try:
                    self._manifest(version)
                except TernmeshError as error:
                    refused[version] = str(error)
                else:
                    signed.append(version)
        return signed, refused

    def standing(self) -> Standing:
        """What is on disk. A damaged one leads back to the configured bundle, and says so.

        BoardFault where it cannot be read: what it says is not to be overwritten then.
        """
        path = self.folder / STANDING
        try:
            content = json.loads(_read(path, STANDING_MAX))
            bad = tuple((int(version), str(reason)) for version, reason in content.pop("bad"))
            return Standing(**{key: int(value) for key, value in content.items()}, bad=bad)
        except FileNotFoundError:
            return Standing()
        except OSError as error:
            raise unreadable(path, error) from error
        except (ModelError, *_MALFORMED) as error:
            floor = max(self.survey(0)[0], default=0)
            _log.warning("%s is damaged (%s): releases up to %d are left", path, error, floor)
            return Standing(floor=floor)

    def change(self, change: Callable[[Standing], Standing]) -> Standing:
        """Change the standing, on disk before this returns; ModelError where it cannot be kept."""
        with self._locked():
            after = change(self.standing())
            self._write(json.dumps(asdict(after)).encode())
            return after

    def begin(self) -> Standing:
        """Which release to start with; the attempt is on disk if it is on trial."""
        return self.change(lambda old: attempt(adopt(old, self.survey(old.floor)[0])))

    def open(self, version: int) -> tuple[LoadedBundle, Manifest]:
        """An installed release; an error unless it is whole, signed and fit for a board."""
        manifest = self._manifest(version)
        return load_release(self.folder / str(version), manifest), manifest

    def _manifest(self, version: int) -> Manifest:
        folder = self.folder / str(version)
        manifest = self.read(folder)
        if manifest.version != version:
            raise ModelError(f"{folder} holds version {manifest.version}")
        return manifest

    def read(self, folder: Path) -> Manifest:
        """The manifest in any folder, if it is signed."""
        content = _read_file(folder / MANIFEST, MANIFEST_MAX)
        path = folder / SIGNATURES
        try:
            signatures = _read(path, SIGNATURES_MAX)
        except FileNotFoundError:
            signatures = b""
        except OSError as error:
            raise unreadable(path, error) from error
        self._verify(content, signatures)
        return read_manifest(content)

    def install(self, source: Path) -> Manifest:
        """Copy the release in `source` to the disk; an error, and nothing changed, if it is bad.

        Only the files of a fixed list are copied, under their own names, into a folder named by the
        version's number.
        """
        manifest = self.read(source)
        with self._locked():
            floor = self.standing().floor
            known = max(self.survey(floor)[0], default=floor)
            # Not even one that was bad by mistake: it may be one that a newer one has replaced.
            if manifest.version <= known:
                raise ModelError(
                    f"{source} is version {manifest.version} of {manifest.name}: this board has "
                    f"had {known}, and never goes back: make it again with a higher version"
                )
            unfinished = self.folder / UNFINISHED
            try:
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                self._copy(source, unfinished, manifest)
                if self.read(unfinished) != manifest:
                    raise ModelError(f"{source} has changed while it was copied: try again")
                load_release(unfinished, manifest)
                unfinished.rename(self.folder / str(manifest.version))
                sync_folder(self.folder)
            except OSError as error:
                raise ModelError(f"cannot install {source} into {self.folder}: {error}") from error
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
            self._prune(manifest.version)
        return manifest

    def _copy(self, source: Path, target: Path, manifest: Manifest) -> None:
        for name, entry in zip(FILES, manifest.files, strict=True):
            _copy(source / name, target / name, entry.size)
        _copy(source / MANIFEST, target / MANIFEST, MANIFEST_MAX)
        if (source / SIGNATURES).exists():
            _copy(source / SIGNATURES, target / SIGNATURES, SIGNATURES_MAX)
        sync_folder(target)

    def _prune(self, newest: int) -> None:
        """Remove the oldest releases that are neither in use nor the way back; nothing else."""
        standing, signed = self.standing(), self.survey(0)[0]
        kept = {standing.current, standing.last_good, newest}
        spare = [version for version in signed if version not in kept]
        for version in spare[: max(0, len(signed) - KEPT_MAX)]:
            shutil.rmtree(self.folder / str(version), ignore_errors=True)

    def _write(self, content: bytes) -> None:
        path = self.folder / STANDING
        try:
            replace_file(path, content)
            sync_folder(self.folder)
        except OSError as error:
            raise ModelError(f"cannot write {path} ({error}): check the disk") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / LOCK).open("ab")
        except OSError as error:
            raise ModelError(f"cannot use {self.folder} for releases: {error}") from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def make_release(
    source: Path, target: Path, version: int, limits: tuple[float, float], previous: Path | None
) -> Manifest:
    """Write the bundle in `source` as an unsigned release to the new folder `target`.

    `limits` are loss and seconds of a step; `previous` is the folder of the release that this one
    replaces. ModelError or BundleError with a sentence.
    """
    loaded = load_bundle(source)
    before = b"" if previous is None else _read_file(previous / MANIFEST, MANIFEST_MAX)
    entries = tuple(entry_of(source / name) for name in FILES)
    manifest = make_manifest(loaded.bundle, version, entries, limits, before)
    try:
        target.mkdir(parents=True)
        for name, entry in zip(FILES, entries, strict=True):
            _copy(source / name, target / name, entry.size)
        (target / MANIFEST).write_bytes(write_manifest(manifest))
    except OSError as error:
        raise ModelError(f"cannot write the release {target}: {error}") from error
    return manifest


def load_release(folder: Path, manifest: Manifest) -> LoadedBundle:
    """The bundle in `folder`; ModelError unless it is what the manifest promises."""
    entries = dict(zip(FILES, manifest.files, strict=True))
    if entry_of(folder / DESCRIPTION) != entries[DESCRIPTION]:
        raise ModelError(f"{folder / DESCRIPTION} is not the file that the manifest promises")
    loaded = load_bundle(folder)  # the files are what model.json promises
    bundle = loaded.bundle
    for name, digest in bundle.files.items():
        if FileEntry(_size(folder / name), bytes.fromhex(digest)) != entries[name]:
            raise ModelError(f"{folder / name} is not the file that the manifest promises")
    if (bundle.model_hash(), bundle.name) != (manifest.model, manifest.name):
        raise ModelError(f"{folder} holds another model than its manifest says")
    return loaded


def accept_unsigned(_content: bytes, _signatures: bytes) -> None:
    """The check of signatures where the owner has switched it off."""


def entry_of(path: Path) -> FileEntry:
    """Size and SHA-256 of a file; ModelError where it cannot be read."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
            return FileEntry(file.tell(), digest)
    except OSError as error:
        raise unreadable(path, error) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error


def _copy(source: Path, target: Path, size_max: int) -> None:
    """Copy a file of at most `size_max` bytes and make it durable."""
    left = size_max
    with source.open("rb") as reading, target.open("xb") as writing:
        while chunk := reading.read(min(CHUNK, left + 1)):
            left -= len(chunk)
            if left < 0:
                raise ModelError(f"{source} has more than the {size_max} bytes that it may have")
            writing.write(chunk)
        writing.flush()
        os.fsync(writing.fileno())


def _read(path: Path, size_max: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(size_max + 1)
    if len(data) > size_max:
        raise ModelError(f"{path} has more than the {size_max} bytes that it may have")
    return data


def _read_file(path: Path, size_max: int) -> bytes:
    try:
        return _read(path, size_max)
    except OSError as error:
        raise unreadable(path, error) from error
