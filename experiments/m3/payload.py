"""Messages of the published arms: all trained tensors by name, in JSON.

M3a writes every number as text. M3b ternarises the state of each tensor, not its change. Numbers
above the 70th percentile of magnitudes become signs with one scale per tensor. The signs are a
dense two-bit code (00 zero, 01 plus, 10 minus, first number in the highest bits) in base64.
"""

import base64
import json
from collections import Counter
from typing import Any

import numpy as np

from experiments.m3.settings import JSON
from ternmesh.model_package import ModelPackage
from ternmesh.types import Vector

PARTS = {  # words in the names of tensors, as encoders of the two families have them
    "q": ("query", "q_lin"),
    "k": ("key", "k_lin"),
    "v": ("value", "v_lin"),
    "out": ("attention.output", "out_lin"),
}
PERCENTILE = 70.0
PLUS, MINUS = 1, 2
VALUES = np.array([0.0, 1.0, -1.0, 0.0], dtype=np.float32)  # by two-bit code


def encode(codec: str, package: ModelPackage, sender: str, version: int, vector: Vector) -> bytes:
    """The message that carries an adapter vector (float32, D)."""
    tensors = {
        name: tensor.tolist() if codec == JSON else _write_trits(tensor)
        for name, tensor in package.split(vector).items()
    }
    return json.dumps({"sender": sender, "version": version, "tensors": tensors}).encode()


def part_bytes(message: bytes) -> Counter[str]:
    """The bytes of the tensors in a message by component: q, k, v, out and head."""
    sizes = Counter[str]()
    for name, tensor in json.loads(message)["tensors"].items():
        part = next(
            (part for part, words in PARTS.items() if any(w in name for w in words)), "head"
        )
        sizes[part] += len(json.dumps(tensor))
    return sizes


def decode(codec: str, package: ModelPackage, message: bytes) -> Vector:
    """The adapter vector in a message of `encode`."""
    tensors = json.loads(message)["tensors"]
    read = _read_numbers if codec == JSON else _read_trits
    return np.concatenate([read(tensors[spec.name]) for spec in package.adapter])


def _read_numbers(value: Any) -> Vector:
    return np.array(value, dtype=np.float32).reshape(-1)


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


def _read_trits(value: Any) -> Vector:
    packed = np.frombuffer(base64.b64decode(value["data"]), dtype=np.uint8)
    count = int(np.prod(value["shape"]))
    bits = np.unpackbits(packed, count=2 * count).reshape(count, 2)
    trits: Vector = VALUES[2 * bits[:, 0] + bits[:, 1]]
    return trits * np.float32(value["scale"])
