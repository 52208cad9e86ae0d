"""A model bundle: what a board needs to run and train one model, described by `model.json`.

A bundle is a folder with `model.json`, `forward.onnx`, `train_step.onnx` and `adapter.f32`. This
module reads and writes the description; whoever does I/O (models/, edge/) moves the bytes.

- `forward.onnx`: data inputs, plus one overridable initializer per adapter tensor (symbolic rank).
- `train_step.onnx`: inputs `adapter` (float32, length D) and one batch; outputs `loss` (scalar) and
  `gradient` (float32, length D). The batch size is fixed in the graph.
- `adapter.f32`: the initial adapter vector, D little-endian float32.

The adapter vector is the adapter tensors in the order of `adapter`, each flattened in C order.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import BundleError

FORMAT = 1
FORWARD, TRAIN_STEP, ADAPTER = "forward.onnx", "train_step.onnx", "adapter.f32"
FILES = (FORWARD, TRAIN_STEP, ADAPTER)
TENSORS_MAX, DIMENSION_MAX = 4096, 1 << 26
METRICS = ("accuracy", "mean_absolute_error")
# What json and int raise on text that is no description; too deep or too large included.
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A named tensor; -1 in `shape` is the batch axis, which the caller chooses."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bundle:
    """The content of model.json; `files` maps each file name to its SHA-256 in hex.

    `inputs` and `outputs` are those of forward.onnx; `batch_inputs` are the inputs of
    train_step.onnx besides `adapter`, with their fixed shapes: first the data inputs, then the
    targets. `metric` says how predictions are judged: "accuracy" (argmax) or "mean_absolute_error".
    """

    name: str
    version: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batch_inputs: tuple[TensorSpec, ...]
    adapter: tuple[TensorSpec, ...]
    metric: str
    files: Mapping[str, str]

    @property
    def dimension(self) -> int:
        """D, the length of the adapter vector."""
        return sum(math.prod(tensor.shape) for tensor in self.adapter)

    @property
    def batch(self) -> int:
        """Samples in one training step."""
        return self.batch_inputs[0].shape[0]

    def model_hash(self) -> bytes:
        """The 32-byte SHA-256 that names this model, its files and its initial adapter."""
        return hashlib.sha256(write_bundle(self)).digest()

    def split(self, vector: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """The adapter tensors by name, as views into `vector` (float32, length D)."""
        if vector.shape != (self.dimension,):
            raise BundleError(
                f"{self.name} has an adapter of {self.dimension} numbers, not {vector.shape}"
            )
        tensors, start = {}, 0
        for tensor in self.adapter:
            end = start + math.prod(tensor.shape)
            tensors[tensor.name] = vector[start:end].reshape(tensor.shape)
            start = end
        return tensors


def write_bundle(bundle: Bundle) -> bytes:
    """The bytes of model.json: sorted keys, so the same bundle always gives the same bytes."""
    content = {"format": FORMAT, **asdict(bundle)}
    return json.dumps(content, sort_keys=True, indent=1).encode()


def read_bundle(data: bytes) -> Bundle:
    """The bundle that `data` (the bytes of model.json) describes, or BundleError."""
    try:
        content = json.loads(data)
        if content.pop("format") != FORMAT:
            raise BundleError(f"this bundle's format is not {FORMAT}: export the model again")
        for key in ("inputs", "outputs", "batch_inputs", "adapter"):
            content[key] = tuple(
                TensorSpec(str(t["name"]), str(t["dtype"]), tuple(map(int, t["shape"])))
                for t in content[key]
            )
        bundle = Bundle(**content)
    except _MALFORMED as error:
        raise BundleError(f"model.json is not a bundle description: {error!r}") from error
    _check_kinds(bundle)
    _check(bundle)
    return bundle


def _check_kinds(bundle: Bundle) -> None:
    files = bundle.files if type(bundle.files) is dict else {"": None}
    texts = {type(text) for text in (bundle.name, bundle.metric, *files.values())}
    if texts != {str} or type(bundle.version) is not int:
        raise BundleError("a bundle's name, metric and hashes are text, its version a whole number")


def _check(bundle: Bundle) -> None:
    if not 0 < len(bundle.adapter) <= TENSORS_MAX:
        raise BundleError(f"a bundle has 1 to {TENSORS_MAX} adapter tensors")
    if any(size <= 0 for tensor in bundle.adapter for size in tensor.shape):
        raise BundleError("an adapter tensor's shape has a size that is not positive")
    if bundle.dimension > DIMENSION_MAX:
        raise BundleError(f"an adapter has at most {DIMENSION_MAX} numbers")
    if not bundle.inputs or not bundle.outputs or not bundle.batch_inputs:
        raise BundleError("a bundle names at least one input, one output and one batch input")
    if any(min(tensor.shape, default=0) <= 0 for tensor in bundle.batch_inputs):
        raise BundleError("a batch input has no shape, or one with a size that is not positive")
    if bundle.metric not in METRICS:
        raise BundleError(f"metric is {bundle.metric!r}: it must be one of {', '.join(METRICS)}")
    if set(bundle.files) != set(FILES):
        raise BundleError(f"files must list exactly {', '.join(FILES)}")
