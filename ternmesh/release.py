"""Releases of a model: their signed manifest, and which release a board runs.

The manifest is a canonical CBOR array `[tag, name, version, model, files, loss_max, latency_max]`;
`files` is an array of `[size, sha256]` in the order of `WITH_FRONT`, so that no name or path comes
from a peer; the last file is there for a model with a front. An eighth item, 1, allows another
front than the boards have. Versions only grow.

A board puts a new release on trial. If the trial fails it goes back to the last good release.
`ReleaseStanding` is the board's state of this on disk; only the functions here change it, without a
clock. A trial that ends in a crash or a power cut has its attempt on disk already.
"""

import hashlib
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import cbor2

from ternmesh import model_package
from ternmesh.errors import ModelPackageError, WireError
from ternmesh.wire.control import INTEGER_MAX, NAME, read_cbor

TAG: Final = "ternmesh release 1"  # no other signed content begins like this
DESCRIPTION: Final = "model.json"
FILES: Final = (DESCRIPTION, *model_package.FILES)  # of every release
WITH_FRONT: Final = (*FILES, model_package.FRONT)
COUNTS: Final = (len(FILES), len(WITH_FRONT))
MANIFEST, SIGNATURES = "manifest.cbor", "signatures"  # beside the files
MANIFEST_MAX: Final = 1024  # bytes
SIGNATURES_MAX: Final = 16_384  # bytes, all signers together
FILE_BYTES_MAX: Final = (1 << 31) - 1
HASH_SIZE: Final = 32
OBJECT: Final = "ternmesh release object 1"  # how a release as one string of bytes begins
OBJECT_MAX: Final = 1 << 27  # bytes
LOSS_UNIT = 1e-6
LATENCY_UNIT = 1e-3  # seconds
ATTEMPTS_MAX = 3  # trials in which the process may die; one of them may be a power cut
BAD_MAX = 32  # failed versions whose reasons are kept; older ones are still below the floor
REASON_MAX = 300  # characters

# Called with content and signatures; raises an error unless enough trusted signers have signed.
Verify = Callable[[bytes, bytes], None]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size in bytes and SHA-256 of one file of a release."""

    size: int
    sha256: bytes


@dataclass(frozen=True, slots=True)
class ReleaseManifest:
    """The description of a release: its files, and the limits that it must keep on a board."""

    name: str
    version: int
    model: bytes  # the model hash, 32 bytes
    files: tuple[FileEntry, ...]
    loss_max: int  # on the board's own held-out data, in millionths
    latency_max: int  # of one step, in milliseconds
    new_front: bool = False  # boards may take it that have another front, and lose their rows


def write_manifest(manifest: ReleaseManifest) -> bytes:
    """The bytes of a manifest, which are signed."""
    fields = [
        TAG,
        manifest.name,
        manifest.version,
        manifest.model,
        [[entry.size, entry.sha256] for entry in manifest.files],
        manifest.loss_max,
        manifest.latency_max,
        *([1] if manifest.new_front else ()),
    ]
    return cbor2.dumps(fields, canonical=True)


def read_manifest(content: bytes) -> ReleaseManifest:
    """The manifest in `content`, or ModelPackageError. Its signatures are not checked here."""
    if len(content) > MANIFEST_MAX:
        raise ModelPackageError(f"a release's manifest has at most {MANIFEST_MAX} bytes")
    try:
        fields = read_cbor(content)
    except WireError as error:
        raise ModelPackageError("this is not the manifest of a release of this version") from error
    match fields:
        case (tag, str(name), int(version), bytes(model), tuple(rows), int(loss), int(late), *more):
            is_sized = len(model) == HASH_SIZE and len(rows) in COUNTS
            is_sized &= more in ([], [1])
            numbers = version > 0 and loss > 0 and late > 0
            if tag == TAG and NAME.match(name) and numbers and is_sized:
                files = tuple(map(_read_entry, rows))
                return ReleaseManifest(name, version, model, files, loss, late, bool(more))
    raise ModelPackageError("this is not the manifest of a release of this version")


def _read_entry(row: object) -> FileEntry:
    match row:
        case (int(size), bytes(digest)) if size <= FILE_BYTES_MAX and len(digest) == HASH_SIZE:
            return FileEntry(size, digest)
    raise ModelPackageError("a file entry in a release's manifest is not valid")


def make_manifest(
    loaded: model_package.ModelPackage,
    version: int,
    files: tuple[FileEntry, ...],
    limits: tuple[float, float],
    *,
    new_front: bool = False,
) -> ReleaseManifest:
    """The manifest of a model package; `limits` are loss and seconds. ModelPackageError."""
    loss_max = round(limits[0] / LOSS_UNIT)
    latency_max = round(limits[1] / LATENCY_UNIT)
    if not all(0 < value <= INTEGER_MAX for value in (version, loss_max, latency_max)):
        raise ModelPackageError(
            f"a release's version, loss and latency must be more than 0 and at most {INTEGER_MAX} "
            "units"
        )
    if not NAME.match(loaded.name):
        raise ModelPackageError(
            f"a release's name has 1 to 32 of A-Z a-z 0-9 _ . -, not {loaded.name!r}"
        )
    return ReleaseManifest(
        loaded.name, version, loaded.model_hash(), files, loss_max, latency_max, new_front
    )


def write_object(content: bytes, signatures: bytes, files: Sequence[bytes]) -> bytes:
    """A release as one string of bytes; a file that its receivers hold already is empty."""
    packed = [zlib.compress(data, 9) if data else b"" for data in files]
    return cbor2.dumps([OBJECT, content, signatures, packed], canonical=True)


def read_object(data: bytes) -> tuple[bytes, bytes, tuple[bytes, ...]]:
    """Manifest, signatures and compressed files of an object; ModelPackageError."""
    try:
        fields = read_cbor(data) if len(data) <= OBJECT_MAX else ()
    except WireError as error:
        raise ModelPackageError(f"this is not a release in one file: {error}") from error
    match fields:
        case (tag, bytes(content), bytes(signatures), tuple(files)):
            if tag == OBJECT and len(files) in COUNTS and {*map(type, files)} == {bytes}:
                return content, signatures[:SIGNATURES_MAX], files
    raise ModelPackageError("this is not a release in one file, of this version")


def unpack(packed: bytes, entry: FileEntry) -> bytes:
    """A file of an object; ModelPackageError unless it is the one of the manifest."""
    try:
        data = zlib.decompressobj().decompress(packed, entry.size + 1)
    except zlib.error as error:
        raise ModelPackageError(f"a file of the release is damaged: {error}") from error
    if FileEntry(len(data), hashlib.sha256(data).digest()) != entry:
        raise ModelPackageError("a file of the release is not the one of its manifest")
    return data


@dataclass(frozen=True, slots=True)
class ReleaseStanding:
    """Which release a board runs. Version 0 is the model package of the board's configuration."""

    current: int = 0
    last_good: int = 0
    floor: int = 0  # versions up to this one are not tried (again)
    attempts: int = 0  # trials of the current release that have begun
    bad: tuple[tuple[int, str], ...] = ()  # failed versions with the reason
    tried: int = 0  # a version that has passed its trial before it was installed

    @property
    def on_trial(self) -> bool:
        return self.current != self.last_good


def adopt(standing: ReleaseStanding, installed: Collection[int]) -> ReleaseStanding:
    """Put the newest release on trial, if it is newer than every release tried so far."""
    newest = max(installed, default=0)
    if newest <= standing.floor:
        return standing
    return replace(standing, current=newest, floor=newest, attempts=0)


def attempt(standing: ReleaseStanding) -> ReleaseStanding:
    """Count the beginning of a trial, or go back if too many have died. Store it, then begin."""
    if not standing.on_trial:
        return standing
    if standing.attempts >= ATTEMPTS_MAX:
        return fail(standing, f"the node died in {standing.attempts} trials of it")
    return replace(standing, attempts=standing.attempts + 1)


def excuse(standing: ReleaseStanding) -> ReleaseStanding:
    """Take back the last attempt: the trial could not run, for a reason outside the release."""
    return replace(standing, attempts=max(0, standing.attempts - 1))


def succeed(standing: ReleaseStanding) -> ReleaseStanding:
    """The trial has passed: the current release becomes the last good one."""
    return replace(standing, last_good=standing.current, attempts=0)


def fail(standing: ReleaseStanding, reason: str) -> ReleaseStanding:
    """Go back to the last good release; if that one has failed, to the configured package."""
    version = standing.last_good if standing.on_trial else 0
    bad = (*standing.bad, (standing.current, reason[:REASON_MAX]))[-BAD_MAX:]
    return replace(standing, current=version, last_good=version, attempts=0, bad=bad)
