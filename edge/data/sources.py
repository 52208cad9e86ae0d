"""Samples from .npz files on disk, or from a class that the user supplies."""

import importlib
import inspect
import logging
import math
import os
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge.data.gate import SetAside
from edge.data.live.options import BUILT_IN, read_options
from edge.errors import DataError, NoData
from ternmesh.config import Table, limits
from ternmesh.model_package import ModelPackage, TensorSpec
from ternmesh_store.files import open_regular

HISTORY, TRAIN, HELD_OUT = "history", "train.npz", "held_out.npz"  # in a state folder
FILES_MAX = 1024
BYTES_MAX = 1 << 28  # of all arrays in memory
DIRECTORY_MAX = 1 << 20  # bytes of the names in an .npz file
BYTE_MIN = 100  # largest value, from which on an input may have another scale than the model's
CHECKED = 256  # samples at once: floats need more memory than bytes
SHOWN_MAX = 20  # names in a message
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

_log = logging.getLogger(__name__)

Array = NDArray[Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Sample:
    """The model's inputs of one sample, by name and without a batch axis.

    >>> Sample("pump-17", {"features": np.zeros((50, 32), np.float32)}).key
    'pump-17'
    """

    key: str  # unique
    inputs: Arrays
    file: str = ""  # its name, with which the key begins: its content is stored once, if it moves
    raw: Arrays | None = None  # what a front has made `inputs` of


@dataclass(frozen=True, slots=True)
class Label:
    """The targets of the sample with the same key, by name.

    >>> Label("pump-17", {"target": np.array(3)}).targets["target"].item()
    3
    """

    key: str
    targets: Arrays


class Source(Protocol):
    """A class that `data.source` may name; it is made with `data.options`.

    >>> class Thermometer:
    ...     def poll(self, now: float) -> list[Sample | Label]:
    ...         return [Sample(f"t{now}", {"features": np.array([21.5], np.float32)})]
    >>> Thermometer().poll(3.0)[0].key
    't3.0'
    """

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


def label_classes(package: ModelPackage) -> dict[str, int]:
    """The number of classes by the name of the target that holds labels, if the model has one."""
    targets = target_specs(package)
    if package.metric != "accuracy" or not targets:
        return {}
    classes = (0, *package.outputs[0].shape)[-1]
    return {targets[0].name: classes} if classes > 0 else {}


def value_counts(package: ModelPackage) -> dict[str, int]:
    """How many whole numbers, from 0 on, a tensor may hold, by its name; others hold any."""
    return {**package.table_sizes, **label_classes(package)}


def class_count(package: ModelPackage) -> int:
    """The number of classes where the class of a sample is its only target; else 0."""
    targets = target_specs(package)
    is_one = len(targets) == 1 and len(targets[0].shape) == 1
    return label_classes(package).get(targets[0].name, 0) if is_one else 0


def class_names(package: ModelPackage) -> list[str]:
    """The names of the classes, or else their numbers; none where people cannot label samples."""
    names = package.labels
    return [*names, *map(str, range(len(names), class_count(package)))]


def as_number(value: Any) -> float:
    """`value` as float; ValueError also for what Python alone takes for a number: True, "2_9"."""
    # As text: a whole number that no float holds is then infinite, and no OverflowError.
    return float("" if isinstance(value, bool) or "_" in str(value) else str(value))


def label_arrays(package: ModelPackage, value: Any) -> dict[str, Array]:
    """The targets for a class, by its name or number, or for a value; DataError."""
    spec, names = target_specs(package)[0], package.labels
    try:
        number = names.index(value) if value in names else as_number(value)
        if np.dtype(spec.dtype).kind != "f" and number != (number := int(number)):
            raise ValueError("not a whole number")
        count = label_classes(package).get(spec.name)
        array = convert(np.asarray(number), spec, f"{value!r:.100}", count=count)
        return {spec.name: array.reshape(spec.shape[1:])}
    except (ValueError, TypeError, OverflowError) as error:
        labels = ", ".join(class_names(package)) or "no classes"
        raise DataError(f"{value!r:.100} is no label of {package.name}: it has {labels}") from error


def convert(
    array: Array, spec: TensorSpec, what: str, divide_by: float = 1.0, count: int | None = None
) -> Array:
    """`array` in the dtype of `spec`; DataError if values would change, or are not finite.

    `count`: as in `value_counts`. A graph reads -1 as the last class or row, and stops at others.
    It is NoData where no model could use the values.
    """
    if count is not None and array.dtype.kind in "iu":
        wrong = array[(array < 0) | (array >= count)]
        if wrong.size:
            raise (NoData if wrong.min() < 0 else DataError)(
                f"{what} holds {wrong.flat[0]}: {spec.name} of this model is 0 to {count - 1}"
            )
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
        raise (DataError if np.isfinite(array).all() else NoData)(
            f"{what} holds NaN or infinity: leave such samples out"
        )
    return values


class FolderData:
    """The samples of one .npz file or of all in a folder, in memory in their stored dtypes.

    `rows` are the files, and the places in each of those samples that are used.
    """

    def __init__(
        self,
        package: ModelPackage,
        arrays: dict[str, Array],
        divide_by: float,
        rows: Sequence[tuple[Path, NDArray[np.int64]]] = (),
    ) -> None:
        self.aside = SetAside()
        self.remark = ""  # what its owner should look at
        self._specs = package.batch_inputs
        self._inputs = {spec.name for spec in package.inputs}
        self._arrays = arrays
        self._divide_by = divide_by
        self._rows = rows
        # What is read in place of each sample: itself, until it is set aside
        self._read = np.arange(len(self._arrays[self._specs[0].name]))

    def __len__(self) -> int:
        return self._read.size

    def batch(self, indexes: NDArray[np.int64]) -> dict[str, Array]:
        """The arrays of some samples by name, in the model's dtypes."""
        return {spec.name: self._part(spec, self._read[indexes]) for spec in self._specs}

    def set_aside(self, reasons: Mapping[int, str]) -> None:
        """Read another sample in place of each of these; without another one, none is left."""
        for index, reason in reasons.items():
            self.aside.add(name := self._name(int(self._read[index])), reason)
            _log.warning("%s is set aside: %s", name, reason)
        bad = self._read[list(reasons)]
        good = np.setdiff1d(self._read, bad)
        if good.size:
            self._read = np.where(np.isin(self._read, bad), good[0], self._read)
        else:
            self._read = good

    def with_inputs(self, package: ModelPackage, inputs: dict[str, Array]) -> "FolderData":
        """The same samples for the package of a tail, with these inputs, an item for each."""
        targets = {spec.name: self._part(spec, self._read) for spec in target_specs(package)}
        made = FolderData(package, targets | inputs, 1.0, self._rows)
        made.aside, made.remark = self.aside, self.remark
        return made

    def _name(self, index: int) -> str:
        for path, places in self._rows:
            if index < places.size:
                return f"{path}: sample {places[index]}"
            index -= places.size
        return f"sample {index}"

    def _part(self, spec: TensorSpec, indexes: NDArray[np.int64]) -> Array:
        divide_by = self._divide_by if spec.name in self._inputs else 1.0
        return convert(self._arrays[spec.name][indexes], spec, spec.name, divide_by)


def open_folder(
    path: Path, package: ModelPackage, settings: NpzSettings, *, needs_all: bool = False
) -> FolderData:
    """The samples in the file or folder `path`, checked against the model package; DataError.

    Single samples that the model does not take are set aside, unless it `needs_all`.
    """
    names = {spec.name for spec in package.batch_inputs}
    if unknown := set(settings.arrays) - names:
        raise DataError(
            f"{', '.join(sorted(unknown))} is no tensor of {package.name}: "
            f"arrays may map {', '.join(sorted(names))}"
        )
    specs = package.batch_inputs
    parts: list[_Part] = []
    bad: list[tuple[str, DataError]] = []  # names of files and samples, and what is wrong with them
    count, files = 0, _files(path)
    for file in files:
        with _listed(bad, file), opened_npz(file) as archive:
            parts.append(_survey(file, archive, package, settings))
        count = sum(int(part.chosen.sum()) for part in parts)
        dtypes = [np.result_type(*kinds) for kinds in zip(*(p.dtypes for p in parts), strict=True)]
        sample = sum(
            math.prod(s.shape[1:]) * d.itemsize for s, d in zip(specs, dtypes, strict=False)
        )
        # Before any sample is read, as a small file may hold much; the masks count, too.
        if count * sample + sum(part.chosen.size for part in parts) > BYTES_MAX:
            raise DataError(f"{path} holds more than {BYTES_MAX} bytes, the limit of a node")
    if bad and (needs_all or not count):
        raise bad[0][1]
    if not count:
        if not any(part.chosen.size for part in parts):
            raise NoData(f"{path} holds no sample: its arrays are empty")
        wanted = " and ".join(f"{name} = {value!r}" for name, value in settings.where.items())
        raise NoData(f"{path} holds no sample where {wanted}")
    for spec, dtype in zip(specs, dtypes, strict=True):
        convert(np.empty(0, dtype), spec, f"{path}: {spec.name} of all files together")
    read = []
    for part in parts:
        with _listed(bad, part.path), opened_npz(part.path) as archive:
            read.append((part.path, *_samples(part, archive, package, settings, bad)))
    places = [(path, rows) for path, _, rows in read]
    if bad and (needs_all or not any(rows.size for _, rows in places)):
        raise bad[0][1]
    arrays = {name: np.concatenate([samples[name] for _, samples, _ in read]) for name in names}
    data = FolderData(package, arrays, settings.divide_by, places)
    whole = {*map(str, files)}
    for name, error in sorted(bad, key=lambda one: one[0] in whole):  # of many samples, files stay
        data.aside.add(name, str(error).removeprefix(name).lstrip(": "), is_file=name in whole)
    for name, reason in data.aside.newest:
        _log.warning("%s is set aside: %s", name, reason)
    floats = [spec.name for spec in input_specs(package) if "float" in spec.dtype]
    if settings.divide_by == 1.0 and len(data):
        data.remark = next(filter(None, (_bytes_remark(n, arrays[n]) for n in floats)), "")
    if data.remark:
        _log.warning("%s: %s", path, data.remark)
    return data


def make_source(
    name: str,
    options: Mapping[str, Any],
    folder: Path | None = None,
    package: ModelPackage | None = None,
) -> Source:
    """A built-in source, or one of class `package.module:ClassName`, made with `options`.

    A class may also take `package`. Its module and imports are also searched in `folder`.
    DataError; ConfigError for options of a built-in source.
    """
    if name in BUILT_IN:
        options = {"options": read_options(name, dict(options))}
        name = BUILT_IN[name][1]
    if folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))
    module_name, _, class_name = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # TypeError: "..:Name"
        raise DataError(
            f"source {name!r} cannot be found ({error}): write package.module:ClassName, or one of "
            f"{', '.join(BUILT_IN)}"
        ) from error
    try:
        given = {"package": package} if _takes_package(kind) else {}
        source = kind(**(given | dict(options)))
    except (TypeError, ValueError) as error:
        raise DataError(f"source {name} does not take its options: {error}") from error
    if not callable(getattr(source, "poll", None)):
        raise DataError(f"source {name} has no method poll(now)")
    made: Source = source
    return made


def _takes_package(kind: Any) -> bool:
    try:
        return "package" in inspect.signature(kind).parameters
    except (TypeError, ValueError):  # a class of C, which takes none
        return False


@dataclass(frozen=True, slots=True)
class _Part:
    """What one file holds, before its samples are read."""

    path: Path
    chosen: NDArray[np.bool_]  # for each sample, whether it is wanted
    dtypes: list[np.dtype[Any]]  # of the arrays, in the order of the model's tensors


def _files(path: Path) -> list[Path]:
    """The file `path`, or the .npz files in the folder `path`."""
    try:
        if not path.is_dir():
            return [path]
        # No hidden files, such as those of macOS, and each file once, however many links it has.
        shown = sorted(file for file in path.iterdir() if not file.name.startswith("."))
        found = [file for file in shown if file.suffix.lower() == ".npz"]
        files = [*{os.path.realpath(file): file for file in reversed(found)}.values()][::-1]
        if others := [file.name for file in shown if file not in files]:
            others[SHOWN_MAX:] = ["..."] * (len(others) > SHOWN_MAX)
            _log.warning("%s: entries that are not read: %s", path, ", ".join(others))
    except OSError as error:
        raise _unreadable(path, error) from error
    if not 0 < len(files) <= FILES_MAX:
        raise NoData(f"{path} is a folder of {len(files)} .npz files: it needs 1 to {FILES_MAX}")
    return files


@contextmanager
def _listed(bad: list[tuple[str, DataError]], path: Path) -> Iterator[None]:
    """Add to `bad` what is wrong with the file."""
    try:
        yield
    except DataError as error:
        bad.append((str(path), error))


@contextmanager
def opened_npz(path: Path) -> Iterator[Any]:
    """The archive of an .npz file; what goes wrong inside is one sentence about the file."""
    try:
        with open_regular(path) as file:
            if not zipfile.is_zipfile(file):
                raise NoData(f"{path} is not an .npz file: write it with numpy.savez")
            # What `ZipFile` reads first. It would then read the names, however many there are.
            if zipfile._EndRecData(file)[5] > DIRECTORY_MAX:  # type: ignore[attr-defined]
                raise NoData(f"{path} holds too many arrays: write those alone that are needed")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                names = [name.removesuffix(".npy") for name in archive.zip.namelist()]
                if len(set(names)) < len(names):
                    raise NoData(f"{path} holds two arrays of one name: write it again")
                yield archive
    except OSError as error:
        raise _unreadable(path, error) from error
    except DAMAGED as error:
        raise NoData(f"{path} is damaged ({error}): write it again") from error
    except MemoryError as error:
        raise NoData(f"{path} needs more memory than is free: use fewer samples") from error
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read as .npz: {error}") from error


def _unreadable(path: Path, error: OSError) -> NoData:
    why = error.strerror or error
    return NoData(f"{path} cannot be read ({why}): check that it exists and that you may read it")


def _survey(path: Path, archive: Any, package: ModelPackage, settings: NpzSettings) -> _Part:
    """What the heads of the arrays say; only the arrays in `where` are read."""
    dtypes = []
    count = -1
    for spec in package.batch_inputs:
        name = settings.arrays.get(spec.name, spec.name)
        shape, dtype = array_head(path, archive, name)
        if dtype.kind == "U" and spec.name in label_classes(package):
            dtype = np.dtype(spec.dtype)  # names of classes become their numbers
        convert(np.empty(0, dtype), spec, f"{path}: {name}")
        if shape[1:] != spec.shape[1:] or len(shape) != len(spec.shape):
            wanted = ", ".join(map(str, ("samples", *spec.shape[1:])))
            raise DataError(f"{path}: {name} has shape {shape}, {package.name} needs ({wanted})")
        if count not in (-1, shape[0]):
            raise DataError(f"{path}: {name} has {shape[0]} samples, other arrays have {count}")
        count = shape[0]
        dtypes.append(dtype)
    chosen = np.ones(count, dtype=np.bool_)
    for name, value in settings.where.items():
        if array_head(path, archive, name)[0] != (count,):
            raise DataError(f"{path}: {name} does not hold one value for each sample")
        chosen &= archive[name] == _look_up(path, archive, name, value)
    return _Part(path, chosen, dtypes)


def _samples(
    part: _Part,
    archive: Any,
    package: ModelPackage,
    settings: NpzSettings,
    bad: list[tuple[str, DataError]],
) -> tuple[dict[str, Array], NDArray[np.int64]]:
    """The wanted samples of a file by tensor name, and their places; `bad` ones are left out."""
    arrays = {}
    counts, inputs = value_counts(package), input_specs(package)
    places = np.flatnonzero(part.chosen)
    errors: dict[int, DataError] = {}
    for spec in package.batch_inputs:
        name = settings.arrays.get(spec.name, spec.name)
        divide_by = settings.divide_by if spec in inputs else 1.0
        check = partial(convert, spec=spec, divide_by=divide_by, count=counts.get(spec.name))
        values = archive[name][part.chosen]
        if values.dtype.kind == "U":
            values, unknown = _numbers(values, package)
            errors |= unknown
        arrays[spec.name] = values
        for start in range(0, len(values), CHECKED):
            block = values[start : start + CHECKED]
            try:
                check(block, what=name)
            except DataError:
                errors |= _bad_rows(block, start, partial(check, what=name))
    for row, error in sorted(errors.items()):
        name = f"{part.path}: sample {places[row]}"
        bad.append((name, type(error)(f"{name}: {error}")))
    good = np.setdiff1d(np.arange(places.size), list(errors))
    return {name: values[good] for name, values in arrays.items()}, places[good]


def _numbers(texts: Array, package: ModelPackage) -> tuple[Array, dict[int, DataError]]:
    """The numbers of classes by their names, and what is wrong, by row."""
    names = class_names(package)
    known = {str(number): number for number in range(len(names))}
    known |= {name: number for number, name in enumerate(names)}
    wrong = {
        row: DataError(f"{text!r:.100} is no label of {package.name}: it has {', '.join(names)}")
        for row, text in enumerate(texts.tolist())
        if text not in known
    }
    return np.array([known.get(text, 0) for text in texts.tolist()], np.int64), wrong


def _bytes_remark(name: str, array: Array) -> str:
    """A sentence where an input that nothing divides is far from 0 to 1."""
    most = max(float(array.max()), -float(array.min()))
    if most <= BYTE_MIN:
        return ""
    divide_by = 255 if most <= 255 else f"{most:.3g}"
    return (
        f"{name} holds numbers up to {most:.5g}, and divide_by is 1: if the model "
        f"learned from 0 to 1, set divide_by = {divide_by}"
    )


def _bad_rows(block: Array, start: int, check: Callable[[Array], Array]) -> dict[int, DataError]:
    found = {}
    for row, value in enumerate(block, start):
        try:
            check(value)
        except DataError as error:
            found[row] = error
    return found


def array_head(path: Path, archive: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of an array that may be read: no file needs more memory than is allowed."""
    if name not in archive.files:
        names = ", ".join(archive.files[:SHOWN_MAX]) or "none"
        raise DataError(f"{path} has no array {name}: it has {names}")
    size = archive.zip.getinfo(f"{name}.npy").file_size
    if size > BYTES_MAX:
        raise DataError(f"{path}: {name} has {size} bytes, more than the {BYTES_MAX} allowed")
    with archive.zip.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        if version not in _READ_HEADER:
            raise ValueError(f"{name} is in the .npy format {version}, not in 1.0 or 2.0")
        shape, _, dtype = _READ_HEADER[version](file)
    if any(axis < 0 for axis in shape):
        raise ValueError(f"{name} has the shape {shape}")
    if dtype.hasobject:
        raise DataError(f"{path}: {name} holds Python objects: save an array of plain numbers")
    # Items of no bytes (empty texts) count as one each: a mask has a byte for each sample.
    claimed = math.prod(shape) * max(1, int(dtype.itemsize))
    if claimed > size:
        raise DataError(f"{path}: {name} has {size} bytes, and its shape needs {claimed}")
    return shape, dtype


def _look_up(path: Path, archive: Any, name: str, wanted: object) -> object:
    """The value that stands for `wanted` in the array `name`: the index of a text in its names."""
    names = f"{name}_names"
    if not isinstance(wanted, str) or names not in archive.files:
        return wanted
    array_head(path, archive, names)
    texts = archive[names]
    indexes = np.flatnonzero(texts == wanted)
    if not indexes.size:
        shown = ", ".join(map(str, texts.ravel()[:SHOWN_MAX]))
        raise NoData(f"{path}: {name} {wanted!r} is none of {shown}")
    return indexes[0]
