"""Models in onnxruntime, which is imported only here: inference, adapter files, training steps.

Sessions are created at first use and can be released, so that an idle node needs little memory.
"""

import contextlib
import ctypes
import json
import logging
import mmap
import os
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edge.errors import MissingEdgeExtra, ModelError, OutOfMemory
from edge.files import entry_of, read_file
from edge.onnx.check import check_file
from ternmesh.errors import ModelPackageError
from ternmesh.extras import installed
from ternmesh.model_package import (
    ADAPTER,
    FORWARD,
    FRONT,
    TRAIN_STEP,
    ModelPackage,
    read_model_package,
)
from ternmesh_store.files import PRIVATE, open_regular, unfinished_file

# Read at the import: without it, onnxruntime keeps a device id and reports to its maker.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
with installed("node", "a node needs onnxruntime", MissingEdgeExtra):
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as _state

DESCRIPTION = "model.json"
DESCRIPTION_BYTES_MAX = 4 << 20
DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
SILENT = 4  # onnxruntime would warn of each overridable initializer; its errors are raised as well
TRACED_RUNS, TRACED_ROWS = 10, 40
ON_CPU = ["CPUExecutionProvider"]
# By what the configuration asks for; onnxruntime gives each what the one before cannot run. Its own
# first choice would be a cloud service.
_CUDA = ["CUDAExecutionProvider", *ON_CPU]
_CHOICES = {"cpu": ON_CPU, "cuda": _CUDA, "tensorrt": ["TensorrtExecutionProvider", *_CUDA]}

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
_OUT_OF_MEMORY = ("bad_alloc", "Failed to allocate memory", "out of memory")  # in its errors

_log = logging.getLogger(__name__)

Vector = NDArray[np.float32]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model package whose files were checked.

    >>> from models.zoo import package_path
    >>> load_model(package_path("keyword")).initial.dtype
    dtype('float32')
    """

    folder: Path
    package: ModelPackage
    initial: Vector  # the initial adapter (float32, D)


def load_model(folder: Path) -> LoadedModel:
    """Read and check the model package in `folder`; ModelError if a file is missing or changed.

    >>> from models.zoo import package_path
    >>> load_model(package_path("keyword")).package.name
    'keyword'
    """
    try:
        package = read_model_package(read_file(folder / DESCRIPTION, DESCRIPTION_BYTES_MAX))
    except ModelPackageError as error:
        raise ModelError(f"{folder / DESCRIPTION}: {error}") from error
    for spec in (*package.inputs, *package.batch_inputs):
        if spec.dtype not in DTYPES:
            allowed = ", ".join(DTYPES)
            raise ModelError(f"{package.name} takes {spec.dtype}: a node allows {allowed}")
    for file, digest in package.files.items():
        if entry_of(folder / file).sha256.hex() != digest:
            raise ModelError(
                f"{folder / file} is not what {DESCRIPTION} describes: copy the package again"
            )
    sizes = check_file(folder / TRAIN_STEP) | check_file(folder / FORWARD)
    if package.front is not None:
        check_file(folder / FRONT)
    package = replace(package, table_sizes=sizes)
    return LoadedModel(folder, package, _read_adapter(folder / ADAPTER, package.dimension))


def choose_providers(wanted: str, available: Collection[str]) -> list[str]:
    """onnxruntime's execution providers, best first, for `[training] provider`.

    "auto" is CUDA where onnxruntime offers it: TensorRT takes minutes to build its engines. What is
    not available is left out; the CPU always is.
    """
    names = _CHOICES["cuda" if wanted == "auto" else wanted]
    return [name for name in names if name in available or name in ON_CPU]


class _Session:
    """An onnxruntime session that is created at first use and can be released.

    It moves to the CPU for good if it cannot be created elsewhere or its first run fails there.
    `provider` says where it runs, and why; it is empty before the first run.
    """

    FILE: ClassVar[str]
    IS_TRAINING: ClassVar[bool]

    def __init__(
        self, folder: Path, package: ModelPackage, threads: int = 1, provider: str = "cpu"
    ) -> None:
        self._path = folder / self.FILE
        self._package = package
        self._options = session_options(threads, is_training=self.IS_TRAINING)
        self._wanted = provider
        self._adapter: Arrays = {}  # inputs of each run
        self._failed = ""  # what has failed elsewhere
        self._session: Any = None
        self._has_run = False
        self.provider = ""

    def release(self) -> None:
        """Free the session's memory; the next run creates a new session."""
        self._session = None
        self._has_run = False

    def _run(self, names: list[str] | None, inputs: Arrays) -> list[Any]:
        """The outputs by `names`, or all; ModelError where onnxruntime cannot run the model."""
        providers = choose_providers(self._wanted, onnxruntime.get_available_providers())
        session = self._session  # another thread may release it
        try:
            if session is None:
                self._session = session = self._open(providers)
            values: list[Any] = session.run(names, inputs)
        except _ORT_ERRORS as error:
            if self._has_run or providers == ON_CPU:
                raise self._failure("run" if session else "load", error) from error
            self._session, self._wanted = None, "cpu"
            self._failed = f"{providers[0]} failed: " + str(error).partition("\n")[0]
            return self._run(names, inputs)
        self._has_run = True
        return values

    def _open(self, providers: list[str]) -> Any:
        keep_memory()
        session = onnxruntime.InferenceSession(str(self._path), self._options, providers=providers)
        # Without the libraries of a provider, onnxruntime goes on without it by itself.
        actual, best = session.get_providers()[0], _CHOICES.get(self._wanted, providers)[0]
        why = self._failed or (f"onnxruntime cannot use {best} here" if actual != best else "")
        before, self.provider = self.provider, f"{actual}, as {why}" if why else actual
        if why and self.provider != before:
            _log.warning("%s runs on %s", self._path.name, self.provider)
        return session

    def _failure(self, verb: str, error: Exception) -> ModelError:
        if isinstance(error, MemoryError) or any(word in str(error) for word in _OUT_OF_MEMORY):
            return OutOfMemory(
                f"{self._path} needs more memory than is free: use a smaller model or batch"
            )
        return ModelError(f"onnxruntime cannot {verb} {self._path}: {error}")


class Inference(_Session):
    """forward.onnx with an adapter that can be exchanged without a new session.

    The adapter's tensors are inputs of each run. onnxruntime's own LoraAdapter would map the file:
    a file that is cut later would end the process.

    >>> from models.zoo import package_path
    >>> loaded = load_model(package_path("keyword"))
    >>> inference = Inference(loaded.folder, loaded.package)
    >>> clips = np.zeros((2, 50, 32), np.float32)
    >>> [logits] = inference.predict({"features": clips}).values()
    >>> logits.shape
    (2, 10)
    """

    FILE = FORWARD
    IS_TRAINING = False

    def use_adapter(self, path: Path) -> None:
        """Predict with the `.onnx_adapter` file at `path` from now on; ModelError if it is bad."""
        self._adapter = self._package.split(read_adapter(path, self._package)[0])

    def predict(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """The outputs by name for `inputs` by name, of any batch size.

        Tensors of the adapter may be among the inputs. Several threads may call it at once.
        """
        names = [output.name for output in self._package.outputs]
        return dict(zip(names, self._run(names, {**self._adapter, **inputs}), strict=True))


class TrainStep(_Session):
    """train_step.onnx: loss and gradient of one batch."""

    FILE = TRAIN_STEP
    IS_TRAINING = True

    def run(self, adapter: Vector, batch: Arrays) -> tuple[float, Vector]:
        """Loss and gradient (float32, D) at `adapter` (float32, D) for one batch by name."""
        loss, gradient = self._run(["loss", "gradient"], {"adapter": adapter, **batch})
        return float(loss), gradient


class FrontGraph(_Session):
    """front.onnx: one row of one window."""

    FILE = FRONT
    IS_TRAINING = False

    def run(self, window: Vector) -> Vector:
        """The row, float32 [width], of a window or whole sample, float32 with a batch axis of 1."""
        rows = self._run(None, {self._package.inputs[0].name: window})
        if [row.dtype for row in rows] != [np.float32]:
            raise ModelError(f"{self._path} must have one output, of float32")
        return np.ravel(rows[0])


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
    return int(_open_adapter(path).get_adapter_version())


def read_adapter(path: Path, package: ModelPackage) -> tuple[Vector, int]:
    """The vector (float32, D) and the version in an adapter file; ModelError if it is bad."""
    content = _open_adapter(path)
    tensors = {name: value.numpy() for name, value in content.get_parameters().items()}
    wanted = {spec.name: spec.shape for spec in package.adapter}
    if {name: tensor.shape for name, tensor in tensors.items()} != wanted:
        raise ModelError(f"{path} is of another model than {package.name}")
    vector = np.concatenate([tensors[name].ravel() for name in wanted])
    return vector.astype(np.float32), int(content.get_adapter_version())


def _open_adapter(path: Path) -> Any:
    try:
        open_regular(path).close()
        return onnxruntime.AdapterFormat.read_adapter(str(path))
    except OSError as error:
        raise ModelError(f"the adapter {path} cannot be read: {error.strerror}") from error
    except _ORT_ERRORS as error:  # their text names a line of their code
        raise ModelError(f"{path} is damaged, or no adapter of onnxruntime") from error


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


def operator_times(loaded: LoadedModel, threads: int = 1, provider: str = "cpu") -> str:
    """onnxruntime's own trace of the training step, as a table of operators and their inputs.

    >>> from models.zoo import package_path
    >>> print(operator_times(load_model(package_path("keyword"))))
    ms of a training step by onnxruntime, CPUExecutionProvider:
    ...
    """
    step = TrainStep(loaded.folder, loaded.package, threads, provider)
    zeros = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in loaded.package.batch_inputs}
    with tempfile.TemporaryDirectory() as folder:
        step._options.enable_profiling = True
        step._options.profile_file_prefix = f"{folder}/trace"
        for _ in range(TRACED_RUNS):
            step.run(loaded.initial, zeros)
        events = json.loads(Path(step._session.end_profiling()).read_text())
    took_ms: Counter[str] = Counter()
    for event in events:
        if event["name"].endswith("_kernel_time"):
            about = event["args"]
            shapes = [shape for each in about["input_type_shape"] for shape in each.values()]
            took_ms[f"{about['op_name']} {shapes}"] += event["dur"] / 1000 / TRACED_RUNS
    rows = [f"{ms:9.3f}  {name}" for name, ms in took_ms.most_common(TRACED_ROWS)]
    return "\n".join([f"ms of a training step by onnxruntime, {step.provider}:", *rows, ""])


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
