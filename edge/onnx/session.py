"""Models in onnxruntime, which is imported only here: inference, adapter files, training steps.

Sessions are created at first use and can be released, so that an idle node needs little memory.
"""

import contextlib
import ctypes
import mmap
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import MissingEdgeExtra, ModelError, OutOfMemory
from edge.files import entry_of, read_file
from edge.onnx.check import check_file
from ternmesh.errors import ModelPackageError
from ternmesh.model_package import (
    ADAPTER,
    FILES,
    FORWARD,
    TRAIN_STEP,
    ModelPackage,
    read_model_package,
)
from ternmesh_store.files import PRIVATE, unfinished_file

# Read at the import: without it, onnxruntime keeps a device id and reports to its maker.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
try:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as _state
except ImportError as error:
    raise MissingEdgeExtra("a node needs onnxruntime: pip install 'ternmesh[node]'") from error

DESCRIPTION = "model.json"
DESCRIPTION_BYTES_MAX = 4 << 20
DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
SILENT = 4  # onnxruntime would warn of each overridable initializer; its errors are raised as well
PROVIDERS = ["CPUExecutionProvider"]  # onnxruntime's own first choice is a cloud service

# onnxruntime's errors have no common base.
_ORT_ERRORS: tuple[type[Exception], ...] = (
    _state.EPFail,
    _state.EngineError,
    _state.Fail,
    _state.InvalidArgument,
    _state.InvalidGraph,
    _state.InvalidProtobuf,
    _state.NoModel,
    _state.NoSuchFile,
    _state.NotImplemented,
    _state.RuntimeException,
    MemoryError,
    RuntimeError,  # a damaged adapter
    ValueError,  # a missing input
)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
# In /proc/self/maps. Nothing ever writes there, so no change of it can be lost.
_CODE = re.compile(r"^(\w+)-(\w+) r-xp .*/onnxruntime_pybind11_state", re.MULTILINE)
_OUT_OF_MEMORY = ("bad_alloc", "Failed to allocate memory")  # in errors of onnxruntime

Vector = NDArray[np.float32]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model package whose files were checked."""

    folder: Path
    package: ModelPackage
    initial: Vector  # the initial adapter (float32, D)


def load_model(folder: Path) -> LoadedModel:
    """Read and check the model package in `folder`; ModelError if a file is missing or changed."""
    try:
        package = read_model_package(read_file(folder / DESCRIPTION, DESCRIPTION_BYTES_MAX))
    except ModelPackageError as error:
        raise ModelError(f"{folder / DESCRIPTION}: {error}") from error
    for spec in (*package.inputs, *package.batch_inputs):
        if spec.dtype not in DTYPES:
            allowed = ", ".join(DTYPES)
            raise ModelError(f"{package.name} takes {spec.dtype}: a node allows {allowed}")
    for file in FILES:
        if entry_of(folder / file).sha256.hex() != package.files[file]:
            raise ModelError(
                f"{folder / file} is not what {DESCRIPTION} describes: copy the package again"
            )
    for file in (FORWARD, TRAIN_STEP):
        check_file(folder / file)
    return LoadedModel(folder, package, _read_adapter(folder / ADAPTER, package.dimension))


class _Session:
    """An onnxruntime session that is created at first use and can be released."""

    def __init__(self, path: Path, package: ModelPackage, options: Any) -> None:
        self._path = path
        self._package = package
        self._options = options
        self._session: Any = None

    def release(self) -> None:
        """Free the session's memory; the next run creates a new session."""
        self._session = None

    def _run(self, names: list[str], inputs: Arrays, run_options: Any = None) -> list[Any]:
        """The outputs by `names`; ModelError if onnxruntime cannot load or run the model."""
        if self._session is None:
            keep_memory()
            try:
                self._session = onnxruntime.InferenceSession(
                    str(self._path), self._options, providers=PROVIDERS
                )
            except _ORT_ERRORS as error:
                raise self._failure("load", error) from error
        try:
            # run_with_iobinding would silently ignore the adapter in the run options.
            values: list[Any] = self._session.run(names, inputs, run_options)
        except _ORT_ERRORS as error:
            raise self._failure("run", error) from error
        return values

    def _failure(self, verb: str, error: Exception) -> ModelError:
        if isinstance(error, MemoryError) or any(word in str(error) for word in _OUT_OF_MEMORY):
            return OutOfMemory(
                f"{self._path} needs more memory than is free: use a smaller model or batch"
            )
        return ModelError(f"onnxruntime cannot {verb} {self._path}: {error}")


class Inference(_Session):
    """forward.onnx with an adapter that can be exchanged without a new session."""

    def __init__(self, folder: Path, package: ModelPackage, threads: int = 1) -> None:
        super().__init__(folder / FORWARD, package, session_options(threads, is_training=False))
        self._adapter: Any = None
        self._run_options: Any = None

    def use_adapter(self, path: Path) -> None:
        """Predict with the `.onnx_adapter` file at `path` from now on; ModelError if it is bad.

        The file is mapped, not copied: replace it as `write_adapter` does, never write into it.
        """
        adapter = onnxruntime.LoraAdapter()
        options = onnxruntime.RunOptions()
        try:
            adapter.Load(str(path.resolve()))
            options.add_active_adapter(adapter)
        except _ORT_ERRORS as error:
            raise ModelError(
                f"{path} is not an adapter that onnxruntime can load: {error}"
            ) from error
        self._adapter = adapter  # the options refer to it
        self._run_options = options

    def predict(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """The outputs by name for `inputs` by name, of any batch size."""
        names = [output.name for output in self._package.outputs]
        return dict(zip(names, self._run(names, inputs, self._run_options), strict=True))


class TrainStep(_Session):
    """train_step.onnx: loss and gradient of one batch."""

    def __init__(self, folder: Path, package: ModelPackage, threads: int = 1) -> None:
        super().__init__(folder / TRAIN_STEP, package, session_options(threads, is_training=True))

    def run(self, adapter: Vector, batch: Arrays) -> tuple[float, Vector]:
        """Loss and gradient (float32, D) at `adapter` (float32, D) for one batch by name."""
        loss, gradient = self._run(["loss", "gradient"], {"adapter": adapter, **batch})
        return float(loss), gradient


def write_adapter(path: Path, package: ModelPackage, vector: Vector, version: int) -> None:
    """Replace the `.onnx_adapter` file at `path` with `vector` (float32, D) in one rename.

    Only its owner may read it. ModelError if it cannot be written.
    """
    tensors = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(tensor))
        for name, tensor in package.split(vector).items()
    }
    content = onnxruntime.AdapterFormat()
    content.set_adapter_version(version)
    content.set_model_version(package.version)
    content.set_parameters(tensors)
    try:
        unfinished = unfinished_file(path, PRIVATE)  # onnxruntime keeps the mode
        content.export_adapter(str(unfinished.resolve()))
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror}") from error
    except _ORT_ERRORS as error:  # their text names no reason, and it has two lines
        raise ModelError(f"cannot write {path}: is the disk full? Make room and restart") from error


def adapter_version(path: Path) -> int:
    """The `version` in an adapter file; ModelError if the file is bad."""
    try:
        return int(onnxruntime.AdapterFormat.read_adapter(str(path)).get_adapter_version())
    except _ORT_ERRORS as error:
        raise ModelError(f"onnxruntime cannot read the adapter {path}: {error}") from error


def session_options(threads: int, *, is_training: bool) -> Any:
    """Options for a small board: no busy waiting, one graph at a time, little memory.

    Three ways to save time keep memory. With a memory pattern, onnxruntime allocates one block for
    the largest batch so far and keeps it: never here. With an arena, it keeps what one run has
    allocated, for the next run: never here, as the C library does it with less (`keep_memory`).
    With prepacking, it keeps a second, packed copy of the frozen weights: not for the training
    step, where the copies take a fifth more memory to save a few percent of time.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False
    if is_training:
        options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def keep_memory() -> None:
    """Let the C library keep what one run frees for the next run, until `trim_memory` (glibc)."""
    with contextlib.suppress(AttributeError, OSError):
        system = ctypes.CDLL(None)
        system.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        system.mallopt(_M_TRIM_THRESHOLD, 256 << 20)


def trim_memory() -> None:
    """Return freed memory to the system at once, if the C library can do that (glibc).

    The code of onnxruntime is unmapped too (15 MiB): the system may then drop it as any file that
    is not in use, and the next run maps it again.
    """
    with contextlib.suppress(AttributeError, OSError):
        system = ctypes.CDLL(None)
        system.malloc_trim(0)
        for start, end in _CODE.findall(Path("/proc/self/maps").read_text()):
            at, size = int(start, 16), int(end, 16) - int(start, 16)
            system.madvise(ctypes.c_void_p(at), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def _read_adapter(path: Path, dimension: int) -> Vector:
    data = read_file(path, 4 * dimension)
    if len(data) == 4 * dimension:
        vector = np.frombuffer(data, dtype="<f4").astype(np.float32)
        if np.isfinite(vector).all():
            return vector
    raise ModelError(f"{path} does not hold {dimension} finite numbers")
