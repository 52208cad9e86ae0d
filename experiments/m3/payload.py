"""Messages of the published arms: all trained tensors by name, in JSON.

M3a writes every number as text. M3b ternarises the state of each tensor, not its change. Numbers
above the 70th percentile of magnitudes become signs with one scale per tensor. The signs are a
dense two-bit code (00 zero, 01 plus, 10 minus, first number in the highest bits) in base64.
"""

import base64
import json
from typing import Any

import numpy as np

from experiments.m3.settings import JSON
from experiments.m3.storage import ExperimentError, State, Vector
from ternmesh.model_package import ModelPackage, TensorSpec

PERCENTILE = 70.0
PLUS, MINUS = 1, 2
VALUES = np.array([0.0, 1.0, -1.0, 0.0], dtype=np.float32)  # by two-bit code
SCALE_MAX = 1e6
# Errors of json, int, numpy and base64 on other text.
_MALFORMED = (ValueError, KeyError, TypeError, OverflowError, RecursionError)


class PayloadError(ExperimentError):
    """A message that does not hold the tensors of the model."""


def encode(codec: str, package: ModelPackage, sender: str, state: State) -> bytes:
    """Return the message that carries `state`."""
    write = _write_numbers if codec == JSON else _write_trits
    tensors = {name: write(tensor) for name, tensor in package.split(state.vector).items()}
    return json.dumps({"sender": sender, "version": state.version, "tensors": tensors}).encode()


def decode(codec: str, package: ModelPackage, data: bytes) -> tuple[str, State]:
    """Return the sender and the state in a message; PayloadError."""
    read = _read_numbers if codec == JSON else _read_trits
    try:
        content = json.loads(data)
        tensors = content["tensors"]
        if set(tensors) != {spec.name for spec in package.adapter}:
            raise PayloadError("a message does not hold the tensors of this model")
        vector = np.concatenate([read(spec, tensors[spec.name]) for spec in package.adapter])
        sender, state = str(content["sender"]), State(int(content["version"]), vector)
    except _MALFORMED as error:
        raise PayloadError(f"a message cannot be read: {error!r}") from error
    if not np.isfinite(vector).all():
        raise PayloadError(f"the message of {sender} holds NaN or infinity")
    return sender, state


def mean(vectors: list[Vector]) -> Vector:
    """Return the mean of vectors (float32, D)."""
    average: Vector = np.stack(vectors).mean(axis=0, dtype=np.float64).astype(np.float32)
    return average


def _write_numbers(tensor: Vector) -> Any:
    return tensor.tolist()


def _read_numbers(spec: TensorSpec, value: Any) -> Vector:
    with np.errstate(over="ignore"):  # `decode` refuses infinity
        tensor = np.array(value, dtype=np.float32)
    if tensor.shape != spec.shape:
        raise PayloadError(f"{spec.name} has shape {tensor.shape}, not {spec.shape}")
    return tensor.reshape(-1)


def _write_trits(tensor: Vector) -> dict[str, Any]:
    flat = tensor.reshape(-1)
    magnitudes = np.abs(flat)
    kept = magnitudes > np.percentile(magnitudes, PERCENTILE)
    codes = np.where(kept, np.where(flat > 0, PLUS, MINUS), 0).astype(np.uint8)
    bits = np.stack((codes >> 1, codes & 1), axis=1)
    return {
        "shape": list(tensor.shape),
        "scale": float(magnitudes[kept].mean()) if kept.any() else 0.0,
        "data": base64.b64encode(np.packbits(bits).tobytes()).decode(),
    }


def _read_trits(spec: TensorSpec, value: Any) -> Vector:
    packed = np.frombuffer(base64.b64decode(value["data"], validate=True), dtype=np.uint8)
    count = int(np.prod(spec.shape))
    if tuple(value["shape"]) != spec.shape or packed.size != -(-count // 4):
        raise PayloadError(f"{spec.name} does not hold {count} numbers of two bits")
    scale = float(value["scale"])
    if not 0 <= scale <= SCALE_MAX:
        raise PayloadError(f"{spec.name} has the scale {scale}")
    bits = np.unpackbits(packed, count=2 * count).reshape(count, 2)
    trits: Vector = VALUES[2 * bits[:, 0] + bits[:, 1]]
    return trits * np.float32(scale)
