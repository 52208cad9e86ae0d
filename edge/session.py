"""Everything that touches onnxruntime (imported here only): inference, adapter files, train step.

Sessions are made when they are first used and can be released, so that an idle node stays small.
"""

import contextlib
import ctypes
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import MissingExtra, ModelError, unreadable
from edge.onnx_check import check_file
from ternmesh.bundle import ADAPTER, FILES, FORWARD, TRAIN_STEP, Bundle, read_bundle
from ternmesh.errors import BundleError

try:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as _state
except ImportError as error:
    raise MissingExtra("a node needs onnxruntime: pip install 'ternmesh[node]'") from error

DESCRIPTION = "model.json"
DESCRIPTION_BYTES_MAX = 4 << 20
FILE_BYTES_MAX = (1 << 31) - 1  # what one protobuf file may hold
DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
ERRORS_ONLY = 3  # at its default, onnxruntime warns once for each overridable initializer
PROVIDERS = ["CPUExecutionProvider"]  # never its own choice, which begins with a cloud service

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
    RuntimeError,  # a spoilt adapter
    ValueError,  # a missing input
)
_WRITE_ERRORS: tuple[type[Exception], ...] = (*_ORT_ERRORS, OSError)

Vector = NDArray[np.float32]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class LoadedBundle:
    """A bundle whose files were checked; `initial` is its first adapter vector (float32, D)."""

    folder: Path
    bundle: Bundle
    initial: Vector


def load_bundle(folder: Path) -> LoadedBundle:
    """Read and check the bundle in `folder`; ModelError where a file is missing or changed."""
    try:
        bundle = read_bundle(_read(folder / DESCRIPTION, DESCRIPTION_BYTES_MAX))
    except BundleError as error:
        raise ModelError(f"{folder / DESCRIPTION}: {error}") from error
    for spec in (*bundle.inputs, *bundle.batch_inputs):
        if spec.dtype not in DTYPES:
            raise ModelError(f"{bundle.name} takes {spec.dtype}: a node knows {', '.join(DTYPES)}")
    for file in FILES:
        if _sha256(folder / file) != bundle.files[file]:
            raise ModelError(
                f"{folder / file} is not what {DESCRIPTION} describes: copy the bundle again"
            )
    for file in (FORWARD, TRAIN_STEP):
        check_file(folder / file)
    return LoadedBundle(folder, bundle, _read_adapter(folder / ADAPTER, bundle.dimension))


class Inference:
    """forward.onnx with an adapter that can be swapped while it runs, without a new session."""

    def __init__(self, folder: Path, bundle: Bundle, threads: int = 1) -> None:
        self._path = folder / FORWARD
        self._bundle = bundle
        self._threads = threads
        self._session: Any = None
        self._adapter: Any = None
        self._run_options: Any = None

    def use_adapter(self, path: Path) -> None:
        """Predict with the `.onnx_adapter` file at `path` from now on; ModelError if it is bad.

        The file is mapped, not copied: replace it as `write_adapter` does, never write into it.
        """
        adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
        try:
            adapter.Load(str(path.resolve()))
            options.add_active_adapter(adapter)
        except _ORT_ERRORS as error:
            raise ModelError(
                f"{path} is not an adapter that onnxruntime can load: {error}"
            ) from error
        self._adapter, self._run_options = adapter, options

    def predict(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """The outputs by name for `inputs` by name; the batch size is free."""
        if self._session is None:
            self._session = _new_session(self._path, self._threads, is_training=False)
        names = [output.name for output in self._bundle.outputs]
        # run_with_iobinding would ignore the adapter without a word.
        values = _run(self._path, lambda: self._session.run(names, inputs, self._run_options))
        return dict(zip(names, values, strict=True))

    def release(self) -> None:
        """Free the session's memory; the next prediction makes a new one with the same adapter."""
        self._session = None


class TrainStep:
    """train_step.onnx: loss and gradient of one batch."""

    def __init__(self, folder: Path, bundle: Bundle, threads: int = 1) -> None:
        self._path = folder / TRAIN_STEP
        self._bundle = bundle
        self._threads = threads
        self._session: Any = None

    def run(self, adapter: Vector, batch: Arrays) -> tuple[float, Vector]:
        """Loss and gradient (float32, D) at `adapter` (float32, D) for one batch by name."""
        if self._session is None:
            self._session = _new_session(self._path, self._threads, is_training=True)
        feed = {"adapter": adapter, **batch}
        names = ["loss", "gradient"]
        loss, gradient = _run(self._path, lambda: self._session.run(names, feed))
        return float(loss), gradient

    def release(self) -> None:
        """Free the session's memory; the next run makes a new one."""
        self._session = None


def write_adapter(path: Path, bundle: Bundle, vector: Vector, version: int) -> None:
    """Put `vector` (float32, D) into an `.onnx_adapter` file; a reader sees the old or the new.

    ModelError where it cannot be written.
    """
    tensors = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(tensor))
        for name, tensor in bundle.split(vector).items()
    }
    content = onnxruntime.AdapterFormat()
    content.set_adapter_version(version)
    content.set_model_version(bundle.version)
    content.set_parameters(tensors)
    unfinished = path.with_name(path.name + ".new")
    try:
        content.export_adapter(str(unfinished.resolve()))
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except _WRITE_ERRORS as error:
        raise ModelError(f"cannot write {path} ({error}): check that the disk has room") from error


def adapter_version(path: Path) -> int:
    """The version that `write_adapter` put into the file at `path`; ModelError if it is bad."""
    try:
        return int(onnxruntime.AdapterFormat.read_adapter(str(path)).get_adapter_version())
    except _ORT_ERRORS as error:
        raise ModelError(f"onnxruntime cannot read the adapter {path}: {error}") from error


def session_options(threads: int, *, is_training: bool) -> Any:
    """Options for a small board: no spinning, one graph at a time, little memory.

    A memory pattern plans one block for the largest batch and keeps it. An arena keeps what one
    prediction needed; a train step runs again at once, so there it pays for itself. Packed copies
    of the frozen weights would cost a fifth of its memory and save a few percent of its time.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = is_training
    if is_training:
        options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def trim_memory() -> None:
    """Give freed memory back to the system at once, where the C library can do that (glibc)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _new_session(path: Path, threads: int, *, is_training: bool) -> Any:
    options = session_options(threads, is_training=is_training)
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=PROVIDERS)
    except _ORT_ERRORS as error:
        raise ModelError(f"onnxruntime cannot load {path}: {error}") from error


def _run(path: Path, run: Callable[[], Any]) -> Any:
    try:
        return run()
    except _ORT_ERRORS as error:
        raise ModelError(f"onnxruntime cannot run {path}: {error}") from error


def _read(path: Path, bytes_max: int) -> bytes:
    try:
        with path.open("rb") as file:
            # Not simply `bytes_max`: Python takes that much memory first, however short the file.
            data = file.read(min(bytes_max, os.fstat(file.fileno()).st_size) + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) > bytes_max:
        raise ModelError(f"{path} is larger than the {bytes_max} bytes that it may have")
    return data


def _read_adapter(path: Path, dimension: int) -> Vector:
    data = _read(path, 4 * dimension)
    if len(data) == 4 * dimension:
        vector = np.frombuffer(data, dtype="<f4").astype(np.float32)
        if np.isfinite(vector).all():
            return vector
    raise ModelError(f"{path} does not hold {dimension} finite numbers")


def _sha256(path: Path) -> str:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ModelError(f"{path} is larger than the {FILE_BYTES_MAX} bytes that it may have")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error
