"""What a stage of a pipeline reads: a model's sizes, its replicas' messages, reports."""

import json
from collections.abc import Iterator
from dataclasses import astuple, fields
from functools import cache, partial
from itertools import islice

import numpy as np

from bench.fuzz_targets.programs import odd
from bench.fuzz_targets.target import Target, joined, parts, refused, same, scratch_folder
from host.pipeline.config import SIZES, ReplicasConfig, read_pipeline_config
from host.pipeline.packets import Packets
from host.pipeline.report import parse
from models.transformer_shape import Shape
from ternmesh.config import ConfigError
from ternmesh.errors import WireError
from ternmesh.wire import manifest
from transports import batch

_CONFIG = b'state_dir = "s"\ndata = "."\nsteps = 9\nmodel_folder = "."\n'
_DIMENSION, _EXCHANGE = 60, 3
_BODIES_MAX = 8


def _check_shape(data: bytes) -> None:
    """What is taken is a model whose sizes lie in the limits of `Shape`."""
    folder = scratch_folder() / "model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(data)
    (folder / "pipeline.toml").write_bytes(_CONFIG)
    shape = read_pipeline_config(folder / "pipeline.toml").model
    for item, value in zip(fields(Shape), astuple(shape), strict=True):
        low, high = item.metadata["limits"]
        same((type(value), low <= value <= high), (int, True), item.name)


@cache
def _packets() -> Packets:
    """Those of a stage whose numbers take two packets of one share each."""
    halves = Packets(_DIMENSION // 2, ReplicasConfig(2, "packets", 1, 0.5), "stage")
    whole = Packets(_DIMENSION, ReplicasConfig(2, "packets", 1, 0.5), "stage")
    whole._starts, whole._ends = [0, _DIMENSION // 2], [_DIMENSION // 2, _DIMENSION]
    whole._plans, whole._keys = 2 * halves._plans, 2 * halves._keys
    return whole


def _check_packets(data: bytes) -> None:
    """A message as it is, and shares under manifests that fit; what is taken says no more."""
    bodies = islice(parts(data), _BODIES_MAX)
    frames = [frame for body in bodies for frame in (_head(body), body)]
    made = batch.join(frames) if all(frames) and frames else data
    for message in (made, data):
        try:
            units = _packets().read(message, _EXCHANGE)
        except WireError:
            continue
        same((units.size, str(units.dtype)), (_DIMENSION, "int64"), "the form of a message")
        longer = message + batch.join([b"more"])
        refused(partial(_packets().read, longer, _EXCHANGE), "a message with more in it")


def _head(body: bytes) -> bytes:
    model, digest = _packets()._keys[0][: manifest.MODEL_SIZE], manifest.packet_digest([body])
    return manifest.write_manifest(manifest.Manifest(_EXCHANGE, model, 1, digest, 1))


def _messages() -> Iterator[bytes]:
    message = _packets().write(np.linspace(-1, 1, _DIMENSION, dtype=np.float32), _EXCHANGE)
    frames = batch.split(message)
    yield joined([frames[1], frames[3]])
    yield joined([frames[1]])
    yield message
    yield batch.join(frames[:2])


def _check_report(data: bytes) -> None:
    found = parse(data)
    same(found is None or type(found) is dict, True, "a report or nothing")


def _sizes() -> Iterator[bytes]:
    for names in SIZES:
        yield from odd(json.dumps(dict(zip(names, (300, 64, 2, 4), strict=True))).encode())


TARGETS = (
    Target("pipeline_shape", _check_shape, _sizes, (ConfigError,)),
    Target("pipeline_packets", _check_packets, _messages),
    Target("pipeline_report", _check_report, lambda: odd(b'{"step": 1, "loss": 2.5}'), ()),
)
