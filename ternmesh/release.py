"""The manifest of a model release: what is signed before a board runs a model.

The manifest is a canonical CBOR array `[tag, name, version, model, files, loss_max, latency_max,
previous]`; `files` is an array of `[size, sha256]` in the order of `FILES`, so that no name or path
comes from a peer. Versions only grow. `previous` is the SHA-256 of the manifest that this one
replaces, empty for the first.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import cbor2

from ternmesh import bundle
from ternmesh.errors import BundleError, WireError
from ternmesh.wire.control import INTEGER_MAX, NAME, read_cbor

TAG: Final = "ternmesh release 1"  # what else a signer signs never begins like this
DESCRIPTION: Final = "model.json"
FILES: Final = (DESCRIPTION, *bundle.FILES)
MANIFEST_MAX: Final = 1024  # bytes
SIGNATURES_MAX: Final = 16_384  # bytes, all signers together
FILE_BYTES_MAX: Final = (1 << 31) - 1
HASH_SIZE: Final = 32
LOSS_UNIT, LATENCY_UNIT = 1e-6, 1e-3  # what the two limits are whole numbers of: seconds for time

# Raises an error of its own unless enough signers that it trusts have signed the content.
Verify = Callable[[bytes, bytes], None]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size in bytes and SHA-256 of one file of a release."""

    size: int
    sha256: bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a release promises; `model` is the bundle's model hash.

    On a board's own held-out data the loss must be at most `loss_max` millionths, and a step take
    at most `latency_max` milliseconds.
    """

    name: str
    version: int
    model: bytes
    files: tuple[FileEntry, ...]
    loss_max: int
    latency_max: int
    previous: bytes = b""


def write_manifest(manifest: Manifest) -> bytes:
    """The bytes that are signed."""
    files = [[entry.size, entry.sha256] for entry in manifest.files]
    fields = (manifest.name, manifest.version, manifest.model, files)
    limits = (manifest.loss_max, manifest.latency_max)
    content: bytes = cbor2.dumps([TAG, *fields, *limits, manifest.previous], canonical=True)
    return content


def manifest_hash(content: bytes) -> bytes:
    """What the next manifest names as its `previous`."""
    return hashlib.sha256(content).digest()


def read_manifest(content: bytes) -> Manifest:
    """The manifest in `content`, or BundleError; whether it is signed is another question."""
    if len(content) > MANIFEST_MAX:
        raise BundleError(f"a release's manifest has at most {MANIFEST_MAX} bytes")
    try:
        found = read_cbor(content)
    except WireError as error:
        raise BundleError("this is not the manifest of a release of this version") from error
    match found:
        case (tag, str(name), int(version), bytes(model), tuple(rows), int(loss), int(late), last):
            sizes = len(model) == HASH_SIZE and type(last) is bytes and len(last) in (0, HASH_SIZE)
            numbers = version > 0 and loss > 0 and late > 0
            if tag == TAG and NAME.match(name) and sizes and numbers and len(rows) == len(FILES):
                files = tuple(map(_read_entry, rows))
                return Manifest(name, version, model, files, loss, late, last)
    raise BundleError("this is not the manifest of a release of this version")


def _read_entry(row: object) -> FileEntry:
    match row:
        case (int(size), bytes(digest)) if size <= FILE_BYTES_MAX and len(digest) == HASH_SIZE:
            return FileEntry(size, digest)
    raise BundleError("a release's manifest has a file entry that is none")


def make_manifest(
    loaded: bundle.Bundle,
    version: int,
    files: tuple[FileEntry, ...],
    limits: tuple[float, float],
    previous: bytes = b"",
) -> Manifest:
    """The manifest of a bundle; `limits` are loss and seconds. BundleError for what it cannot say.

    `previous` is the content of the manifest that this one replaces, if there is one.
    """
    loss_max, latency_max = round(limits[0] / LOSS_UNIT), round(limits[1] / LATENCY_UNIT)
    if not all(0 < value <= INTEGER_MAX for value in (version, loss_max, latency_max)):
        raise BundleError("a release's version, loss and latency are more than 0 and not enormous")
    if previous and read_manifest(previous).version >= version:
        raise BundleError(f"version {version} is not above that of the release it replaces")
    if not NAME.match(loaded.name):
        raise BundleError(f"a release's name is 1 to 32 of A-Z a-z 0-9 _ . -, not {loaded.name!r}")
    last = manifest_hash(previous) if previous else b""
    return Manifest(loaded.name, version, loaded.model_hash(), files, loss_max, latency_max, last)
