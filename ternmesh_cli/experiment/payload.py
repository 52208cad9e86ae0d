"""What travels in the published arms: all trained tensors by name, in JSON.

M3a writes every number as text. M3b ternarises the state, not what changed in it: per tensor, what
is above the 70th percentile of magnitudes becomes a sign, all of one scale, in a dense two-bit code
(00 zero, 01 plus, 10 minus, first number in the highest bits) as base64.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.text_layers import part
from ternmesh.bundle import Bundle, TensorSpec
from ternmesh_cli.experiment.errors import PayloadError
from ternmesh_cli.experiment.settings import JSON

Vector = NDArray[np.float32]
PERCENTILE = 70.0
PLUS, MINUS = 1, 2
VALUES = np.array([0.0, 1.0, -1.0, 0.0], dtype=np.float32)
FRAME = "frame"  # what belongs to no tensor: the sender, the version, braces and commas
SCALE_MAX = 1e6
# What json, int and base64 raise on other text; too deep, and infinity for a number, included.
_MALFORMED = (ValueError, KeyError, TypeError, OverflowError, RecursionError, binascii.Error)


@dataclass(frozen=True, slots=True)
class Message:
    """A state (float32, D) and the reference version that it belongs to."""

    sender: str
    version: int
    vector: Vector


@dataclass(frozen=True, slots=True)
class Payload:
    """A message's bytes, and how many of them each part of the model takes."""

    data: bytes
    parts: Mapping[str, int]


def encode(codec: str, bundle: Bundle, message: Message) -> Payload:
    """The payload of a message."""
    write = _numbers if codec == JSON else _trits
    items, sizes = [], dict[str, int]()
    for name, tensor in bundle.split(message.vector).items():
        item = f"{json.dumps(name)}: {json.dumps(write(tensor))}"
        items.append(item)
        sizes[part(name)] = sizes.get(part(name), 0) + len(item)
    head = json.dumps({"sender": message.sender, "version": message.version})
    text = f'{head[:-1]}, "tensors": {{{", ".join(items)}}}}}'
    return Payload(text.encode(), {**sizes, FRAME: len(text) - sum(sizes.values())})


def decode(codec: str, bundle: Bundle, data: bytes) -> Message:
    """The message in a payload, or PayloadError."""
    read = _read_numbers if codec == JSON else _read_trits
    try:
        content = json.loads(data)
        tensors = content["tensors"]
        if set(tensors) != {spec.name for spec in bundle.adapter}:
            raise PayloadError("a message does not hold the tensors of this model")
        vector = np.concatenate([read(spec, tensors[spec.name]) for spec in bundle.adapter])
        message = Message(str(content["sender"]), int(content["version"]), vector)
    except _MALFORMED as error:
        raise PayloadError(f"a message cannot be read: {error!r}") from error
    if not np.isfinite(vector).all():
        raise PayloadError(f"the message of {message.sender} holds NaN or infinity")
    return message


def mean(vectors: list[Vector]) -> Vector:
    """The average of states."""
    average: Vector = np.stack(vectors).mean(axis=0, dtype=np.float64).astype(np.float32)
    return average


def _numbers(tensor: Vector) -> Any:
    return tensor.tolist()


def _read_numbers(spec: TensorSpec, value: Any) -> Vector:
    with np.errstate(over="ignore"):  # Infinity is refused by `decode`.
        tensor = np.array(value, dtype=np.float32)
    if tensor.shape != spec.shape:
        raise PayloadError(f"{spec.name} has shape {tensor.shape}, not {spec.shape}")
    return tensor.reshape(-1)


def _trits(tensor: Vector) -> dict[str, Any]:
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
