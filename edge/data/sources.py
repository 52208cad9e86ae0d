"""Samples from .npz files on disk, or from a class that the user supplies."""

import importlib
import math
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge.errors import DataError, NoData
from ternmesh.config import Table, limits
from ternmesh.model_package import ModelPackage, TensorSpec

FILES_MAX = 1024
BYTES_MAX = 1 << 28  # of all arrays in memory
# The errors of zipfile and numpy for damaged files, and for arrays that numpy cannot read.
DAMAGED = (OSError, EOFError, zlib.error, zipfile.BadZipFile)
UNREADABLE = (
    *(ValueError, LookupError, TypeError, SyntaxError, RuntimeError),
    *(MemoryError, OverflowError, struct.error, tokenize.TokenError),
)
_READ_HEADER = {  # of an array in an .npz, by the version of its format
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

Array = NDArray[Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Sample:
    """The model's inputs of one sample, by name and without a batch axis."""

    key: str  # unique
    inputs: Arrays


@dataclass(frozen=True, slots=True)
class Label:
    """The targets of the sample with the same key, by name."""

    key: str
    targets: Arrays


class Source(Protocol):
    """A class that `data.source` may name; it is made with `data.options`."""

    def poll(self, now: float) -> Sequence[Sample | Label]:
        """The new samples and labels at `now` (seconds, monotonic); it must not wait."""


@dataclass(frozen=True, slots=True)
class NpzSettings:
    """How the arrays of .npz files become the tensors of a model.

    `arrays` maps a tensor's name to the array's name, if they differ. Only samples whose arrays
    equal the values in `where` are read; a text is looked up in the array `<name>_names` of the
    file. Inputs are divided by `divide_by` when they become floats (255 for bytes).
    """

    arrays: Table = field(default_factory=dict)
    where: Table = field(default_factory=dict)
    divide_by: float = field(default=1.0, metadata=limits(1e-12, 1e12))


def input_specs(package: ModelPackage) -> tuple[TensorSpec, ...]:
    """The tensors of a batch that are inputs of the model."""
    inputs = {spec.name for spec in package.inputs}
    return tuple(spec for spec in package.batch_inputs if spec.name in inputs)


def target_specs(package: ModelPackage) -> tuple[TensorSpec, ...]:
    """The tensors of a batch that are targets: not inputs of the model."""
    inputs = {spec.name for spec in package.inputs}
    return tuple(spec for spec in package.batch_inputs if spec.name not in inputs)


def sample_bytes(package: ModelPackage) -> int:
    """The bytes of one sample with its targets."""
    return sum(
        math.prod(spec.shape[1:]) * np.dtype(spec.dtype).itemsize for spec in package.batch_inputs
    )


def convert(array: Array, spec: TensorSpec, what: str, divide_by: float = 1.0) -> Array:
    """`array` in the dtype of `spec`; DataError if values would change, or are not finite."""
    wanted = np.dtype(spec.dtype)
    if array.dtype == wanted == np.bool_:
        return array
    to_float = wanted.kind == "f" and array.dtype.kind in "iufb"
    to_integer = wanted.kind in "iu" and array.dtype.kind in "iub"
    if not to_float and not to_integer:
        raise DataError(f"{what} is {array.dtype}: {spec.name} must be {spec.dtype}")
    if to_integer:
        limits = np.iinfo(wanted)
        if array.size and not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
            raise DataError(f"{what} has values that {spec.dtype} cannot hold")
        return array.astype(wanted)
    with np.errstate(over="ignore"):  # an overflow is refused below
        values = array.astype(wanted)
    if divide_by != 1.0:
        values /= wanted.type(divide_by)
    if not np.isfinite(values).all():
        raise DataError(f"{what} holds NaN or infinity: leave such samples out")
    return values


class FolderData:
    """The samples of one .npz file or of all in a folder, in memory in their stored dtypes."""

    def __init__(self, package: ModelPackage, arrays: dict[str, Array], divide_by: float) -> None:
        self._specs = package.batch_inputs
        self._inputs = {spec.name for spec in package.inputs}
        self._arrays = arrays
        self._divide_by = divide_by

    def __len__(self) -> int:
        return len(self._arrays[self._specs[0].name])

    def batch(self, indexes: NDArray[np.int64]) -> dict[str, Array]:
        """The arrays of some samples by name, in the model's dtypes."""
        return {spec.name: self._part(spec, indexes) for spec in self._specs}

    def check(self) -> None:
        """DataError if any sample does not fit the model."""
        for spec in self._specs:
            for start in range(0, len(self), 256):  # in parts: floats need more memory
                self._part(spec, slice(start, start + 256))

    def _part(self, spec: TensorSpec, indexes: NDArray[np.int64] | slice) -> Array:
        divide_by = self._divide_by if spec.name in self._inputs else 1.0
        return convert(self._arrays[spec.name][indexes], spec, spec.name, divide_by)


def open_folder(path: Path, package: ModelPackage, settings: NpzSettings) -> FolderData:
    """The samples in the file or folder `path`, checked against the model package; DataError."""
    names = {spec.name for spec in package.batch_inputs}
    if unknown := set(settings.arrays) - names:
        raise DataError(
            f"{', '.join(sorted(unknown))} is no tensor of {package.name}: "
            f"arrays may map {', '.join(sorted(names))}"
        )
    try:
        files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    except OSError as error:
        raise NoData(f"{path} cannot be read: {error}") from error
    if not 0 < len(files) <= FILES_MAX:
        raise NoData(f"{path} holds {len(files)} .npz files: it must hold 1 to {FILES_MAX}")
    parts = [_read_npz(file, package, settings) for file in files]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in names}
    if sum(array.nbytes for array in arrays.values()) > BYTES_MAX:
        raise DataError(f"{path} holds more than {BYTES_MAX} bytes, the limit of a node")
    data = FolderData(package, arrays, settings.divide_by)
    if not len(data):
        wanted = " and ".join(f"{name} = {value!r}" for name, value in settings.where.items())
        raise NoData(f"{path} holds no sample" + (f" where {wanted}" if wanted else ""))
    try:
        data.check()
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return data


def make_source(name: str, options: Mapping[str, Any], folder: Path | None = None) -> Source:
    """The source of class `package.module:ClassName`, made with `options`; DataError.

    The module and its imports are also searched in `folder`.
    """
    if folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))
    module_name, _, class_name = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # TypeError: "..:Name"
        raise DataError(
            f"source {name!r} cannot be found ({error}): write package.module:ClassName"
        ) from error
    try:
        source = kind(**options)
    except (TypeError, ValueError) as error:
        raise DataError(f"source {name} does not take its options: {error}") from error
    if not callable(getattr(source, "poll", None)):
        raise DataError(f"source {name} has no method poll(now)")
    made: Source = source
    return made


def _read_npz(path: Path, package: ModelPackage, settings: NpzSettings) -> dict[str, Array]:
    if not zipfile.is_zipfile(path):
        raise NoData(f"{path} is missing, or not an .npz file")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return _select(path, archive, package, settings)
    except DAMAGED as error:
        raise NoData(f"{path} cannot be read: {error}") from error
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read as .npz: {error}") from error


def _select(
    path: Path, archive: Any, package: ModelPackage, settings: NpzSettings
) -> dict[str, Array]:
    """The arrays of the samples that `settings` selects, by tensor name."""
    arrays = {}
    count = -1
    for spec in package.batch_inputs:
        name = settings.arrays.get(spec.name, spec.name)
        array = _array(path, archive, name)
        arrays[spec.name] = array
        if array.shape[1:] != spec.shape[1:] or array.ndim != len(spec.shape):
            shape = ("samples", *spec.shape[1:])
            raise DataError(f"{path}: {name} has shape {array.shape}, {package.name} needs {shape}")
        if count not in (-1, len(array)):
            raise DataError(f"{path}: {name} has {len(array)} samples, other arrays have {count}")
        count = len(array)
    chosen = np.ones(count, dtype=np.bool_)
    for name, wanted in settings.where.items():
        column = _array(path, archive, name)
        if column.shape != (count,):
            raise DataError(f"{path}: {name} does not hold one value for each sample")
        chosen &= column == _look_up(path, archive, name, wanted)
    return {name: array[chosen] for name, array in arrays.items()}


def _array(path: Path, archive: Any, name: str) -> Array:
    if name not in archive.files:
        raise DataError(f"{path} has no array {name}: it has {', '.join(archive.files)}")
    size = archive.zip.getinfo(f"{name}.npy").file_size
    if size > BYTES_MAX:
        raise DataError(f"{path}: {name} has {size} bytes, more than the {BYTES_MAX} allowed")
    if (claimed := _claimed_bytes(archive, name)) > size:
        raise DataError(f"{path}: {name} has {size} bytes, and its shape needs {claimed}")
    array: Array = archive[name]
    return array


def _claimed_bytes(archive: Any, name: str) -> int:
    """The bytes that numpy would allocate before it reads; ValueError for another format.

    Items of no bytes (empty texts) count as one each: a mask has a byte for each sample.
    """
    with archive.zip.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        if version not in _READ_HEADER:
            raise ValueError(f"{name} is in the .npy format {version}, not in 1.0 or 2.0")
        shape, _, dtype = _READ_HEADER[version](file)
    return math.prod(shape) * max(1, int(dtype.itemsize))


def _look_up(path: Path, archive: Any, name: str, wanted: object) -> object:
    """The value that stands for `wanted` in the array `name`: the index of a text in its names."""
    names = f"{name}_names"
    if not isinstance(wanted, str) or names not in archive.files:
        return wanted
    known = _array(path, archive, names).tolist()
    if wanted not in known:
        raise NoData(f"{path}: {name} {wanted!r} is none of {', '.join(map(str, known))}")
    return known.index(wanted)
