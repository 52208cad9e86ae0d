"""The releases on a board's disk: a folder `VERSION/` for each, and `standing.json`.

A release is checked in another folder, which is then renamed. `standing.json` (the current release,
the last good one) is replaced by a rename too. `ternmesh release install` adds folders while a node
runs, and only the node changes the standing; both hold a lock file while they write.
"""

import fcntl
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from edge.config import NodeConfig
from edge.errors import BoardFault, ModelError, NotSigned
from edge.files import entry_of, read_file, read_optional, unreadable
from edge.onnx.session import LoadedModel, load_model
from ternmesh.config import ConfigError
from ternmesh.errors import TernmeshError, WireError
from ternmesh.release import (
    DESCRIPTION,
    MANIFEST,
    MANIFEST_MAX,
    SIGNATURES,
    SIGNATURES_MAX,
    WITH_FRONT,
    FileEntry,
    ReleaseManifest,
    ReleaseStanding,
    Verify,
    adopt,
    attempt,
    make_manifest,
    read_manifest,
    write_manifest,
)
from ternmesh.security.signatures import Signers, verify_release
from ternmesh_service.keyring import Keyring, NoKeyring
from ternmesh_store.files import copy_file, replace_file, sync_folder

STANDING = "standing.json"
LOCK = "lock"
UNFINISHED = "unfinished"  # the folder of an installation that is not complete
KEPT_MAX = 4  # releases on the disk
STANDING_MAX = 65_536  # bytes
# The errors of damaged JSON and of damaged values in it.
_MALFORMED = (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)

_log = logging.getLogger(__name__)


class Releases:
    """The releases in `folder`; `verify` raises unless enough trusted signers signed a manifest."""

    def __init__(self, folder: Path, verify: Verify) -> None:
        self.folder = folder
        self._verify = verify

    def installed(self) -> list[int]:
        """The versions by the names of the folders, oldest first; their content is not checked."""
        try:
            names = [entry.name for entry in self.folder.iterdir() if entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BoardFault(f"{self.folder} cannot be listed ({error}): check the disk") from error
        return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))

    def survey(self, floor: int) -> tuple[list[int], dict[int, str]]:
        """The versions above `floor` with a signed manifest, and the reasons of those without.

        It reads only the manifests and the signatures.
        """
        signed = []
        refused = {}
        for version in self.installed():
            if version > floor:
                try:
                    self._manifest(version)
                except TernmeshError as error:
                    refused[version] = str(error)
                else:
                    signed.append(version)
        return signed, refused

    def standing(self) -> ReleaseStanding:
        """The stored standing. If it is damaged, the configured model runs, with a warning.

        BoardFault if it cannot be read: then it must not be overwritten.
        """
        path = self.folder / STANDING
        try:
            data = read_optional(path, STANDING_MAX)
            if data is None:
                return ReleaseStanding()
            content = json.loads(data)
            bad = tuple((int(version), str(reason)) for version, reason in content.pop("bad"))
            return ReleaseStanding(**{key: int(value) for key, value in content.items()}, bad=bad)
        except BoardFault:
            raise
        except (ModelError, *_MALFORMED) as error:
            floor = max(self.survey(0)[0], default=0)
            _log.warning("%s is damaged (%s): releases up to %d are ignored", path, error, floor)
            return ReleaseStanding(floor=floor)

    def change(self, change: Callable[[ReleaseStanding], ReleaseStanding]) -> ReleaseStanding:
        """Apply `change` to the stored standing, durably; ModelError if it cannot be written."""
        path = self.folder / STANDING
        with self._locked():
            after = change(self.standing())
            try:
                replace_file(path, json.dumps(asdict(after)).encode())
                sync_folder(self.folder)
            except OSError as error:
                raise ModelError(f"cannot write {path} ({error}): check the disk") from error
            return after

    def begin(self) -> ReleaseStanding:
        """The standing at the start of a node; the attempt of a trial is on disk."""
        return self.change(lambda old: attempt(adopt(old, self.survey(old.floor)[0])))

    def open(self, version: int) -> tuple[LoadedModel, ReleaseManifest]:
        """An installed release; an error unless it is complete, signed and allowed on a board."""
        manifest = self._manifest(version)
        return load_release(self.folder / str(version), manifest), manifest

    def _manifest(self, version: int) -> ReleaseManifest:
        folder = self.folder / str(version)
        manifest = self.read(folder)
        if manifest.version != version:
            raise ModelError(f"{folder} holds version {manifest.version}")
        return manifest

    def read(self, folder: Path) -> ReleaseManifest:
        """The manifest of the release in any folder; an error unless it is signed."""
        content = read_file(folder / MANIFEST, MANIFEST_MAX)
        self._verify(content, read_optional(folder / SIGNATURES, SIGNATURES_MAX) or b"")
        return read_manifest(content)

    def install(self, source: Path) -> ReleaseManifest:
        """Install the release in a folder; if it is bad, nothing changes.

        Only the files of a fixed list are copied. The new folder's name is the version.
        """
        with self._locked():
            unfinished = self.folder / UNFINISHED
            shutil.rmtree(unfinished, ignore_errors=True)
            try:
                manifest = self._copy(source, unfinished)
                self._check_newer(manifest, source)
                load_release(unfinished, manifest)
                self._place(unfinished, manifest)
            except ModelError as error:  # the copy goes; the fault is in what was copied
                raise type(error)(str(error).replace(str(unfinished), str(source))) from error
            except OSError as error:
                raise ModelError(f"cannot install {source} into {self.folder}: {error}") from error
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
        return manifest

    def adopt(self, candidate: Path) -> None:
        """Move the release in `candidate` here, which has passed its trial; OSError."""
        with self._locked():
            manifest = self.read(candidate)
            self._check_newer(manifest, candidate)
            self._place(candidate, manifest)
        self.change(partial(replace, tried=manifest.version))

    def _check_newer(self, manifest: ReleaseManifest, source: Path) -> None:
        floor = self.standing().floor
        newest = max(self.survey(floor)[0], default=floor)
        # Also not one that was bad by mistake: a newer release may have replaced it.
        if manifest.version > newest:
            return
        here = self.folder / str(manifest.version) / MANIFEST
        if read_optional(here, MANIFEST_MAX) == write_manifest(manifest):
            raise ModelError(f"{source} is installed here already: there is nothing to do")
        raise ModelError(
            f"{source} is version {manifest.version} of {manifest.name}: this board has "
            f"had {newest}, and never goes back: make it again with a higher version"
        )

    def _copy(self, source: Path, target: Path) -> ReleaseManifest:
        """Copy a release; its signatures are checked before anything large is copied."""
        target.mkdir()
        copy_file(source / MANIFEST, target / MANIFEST, MANIFEST_MAX)
        if (source / SIGNATURES).exists():
            copy_file(source / SIGNATURES, target / SIGNATURES, SIGNATURES_MAX)
        manifest = self.read(target)
        for name, entry in zip(WITH_FRONT, manifest.files, strict=False):
            copy_file(source / name, target / name, entry.size)
        sync_folder(target)
        return manifest

    def _place(self, checked: Path, manifest: ReleaseManifest) -> None:
        checked.rename(self.folder / str(manifest.version))
        sync_folder(self.folder)
        self._prune(manifest.version)

    def _prune(self, newest: int) -> None:
        """Remove the oldest releases, but not those in use; other folders stay."""
        standing = self.standing()
        signed, _ = self.survey(0)
        kept = {standing.current, standing.last_good, newest}
        spare = [version for version in signed if version not in kept]
        for version in spare[: max(0, len(signed) - KEPT_MAX)]:
            shutil.rmtree(self.folder / str(version), ignore_errors=True)

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
    source: Path,
    target: Path,
    version: int,
    limits: tuple[float, float],
    *,
    new_front: bool = False,
) -> ReleaseManifest:
    """Write the model package in `source` as an unsigned release to the new folder `target`.

    `limits` are the loss and the seconds of a step. ModelError or ModelPackageError.
    """
    package = load_model(source).package
    names = [name for name in WITH_FRONT if name in (DESCRIPTION, *package.files)]
    entries = tuple(entry_of(source / name) for name in names)
    manifest = make_manifest(package, version, entries, limits, new_front=new_front)
    try:
        target.mkdir(parents=True)
        for name, entry in zip(names, entries, strict=True):
            copy_file(source / name, target / name, entry.size)
        (target / MANIFEST).write_bytes(write_manifest(manifest))
    except FileExistsError as error:
        raise ModelError(f"cannot write the release {target}: it exists; name another") from error
    except OSError as error:
        raise ModelError(f"cannot write the release {target}: {error.strerror}") from error
    return manifest


def load_release(folder: Path, manifest: ReleaseManifest) -> LoadedModel:
    """The model in `folder`; ModelError unless its files are those of the manifest."""
    entries = dict(zip(WITH_FRONT, manifest.files, strict=False))
    if entry_of(folder / DESCRIPTION) != entries[DESCRIPTION]:
        raise ModelError(f"{folder / DESCRIPTION} is not the file of the manifest")
    loaded = load_model(folder)  # also checks the hashes in model.json
    package = loaded.package
    for name, digest in package.files.items():
        if FileEntry(_size(folder / name), bytes.fromhex(digest)) != entries.get(name):
            raise ModelError(f"{folder / name} is not the file of the manifest")
    if (package.model_hash(), package.name) != (manifest.model, manifest.name):
        raise ModelError(f"{folder} holds another model than its manifest says")
    return loaded


def accept_unsigned(_content: bytes, _signatures: bytes) -> None:
    """Accept a release without checking its signatures, if the owner has configured that."""


def release_check(config: NodeConfig, keyring: Keyring | NoKeyring) -> Verify:
    """The check of a release's signatures; ConfigError if the node has no keys for it."""
    if config.releases.insecure:
        return accept_unsigned
    if isinstance(keyring, NoKeyring):
        raise ConfigError(
            "releases.dir needs keys: without them, anyone who may write there could run a model "
            "here; if that is intended, set releases.insecure = true"
        )

    def check(content: bytes, signatures: bytes) -> None:  # the host's key may change meanwhile
        signed_by(keyring.signers, keyring.member_list.fleet)(content, signatures)

    return check


def signed_by(signers: Signers, fleet: bytes) -> Verify:
    """The check that enough of `signers` have signed; it raises NotSigned."""
    who = "the host of this fleet"
    if len(signers.keys) > 1:
        who = f"{signers.needed} of the {len(signers.keys)} signers of this fleet"

    def check(content: bytes, signatures: bytes) -> None:
        try:
            verify_release(signers, fleet, content, signatures)
        except WireError as error:
            raise NotSigned(f"this release is not signed by {who}: {error}") from error

    return check


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error
