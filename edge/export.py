"""What was learned, as files for other programs: a model package, an adapter and a plain model.

The plain model is forward.onnx with the values of the adapter. A board has no onnx package. The
file is copied field by field, and only the adapter tensors change: they become constants with the
learned values, and are no inputs any more.
"""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.config import NodeConfig
from edge.errors import ModelError
from edge.files import read_file
from edge.onnx.format import GRAPH, MODEL, TENSOR, VALUE
from edge.onnx.reader import FIELDS_MAX
from edge.onnx.session import DESCRIPTION, LoadedModel, load_model, read_adapter, write_adapter
from edge.releases.store import Releases, accept_unsigned
from ternmesh.errors import WireError
from ternmesh.model_package import ADAPTER, FORWARD, write_model_package
from ternmesh.protobuf import MessageSchema, Value, Walk, bytes_field, number_field
from ternmesh.release import FILE_BYTES_MAX
from ternmesh.types import Vector
from ternmesh_service.config_file import package_folder
from ternmesh_store.files import replace_file


def model_in_use(config: NodeConfig) -> Path:
    """The folder of a board's model: of its last good release, or the configured one."""
    folder = package_folder(config.model)
    if config.releases.dir is not None:
        releases = Releases(Path(config.releases.dir), accept_unsigned)
        standing = releases.standing()
        release = standing.last_good if standing.on_trial else standing.current
        folder = releases.folder / str(release) if release else folder
    return folder


def learned_on(config: NodeConfig) -> tuple[LoadedModel, Vector, int]:
    """The model of a board, its newest adapter, and the adapter's version.

    The board may run. ModelError where it has no such adapter yet.
    """
    loaded = load_model(model_in_use(config))
    path = config.adapter_path
    if not path.exists():
        raise ModelError(f"{path} is not there: {config.name} has not run yet")
    return (loaded, *read_adapter(path, loaded.package))


def export_learned(folder: Path, loaded: LoadedModel, vector: Vector, version: int) -> list[Path]:
    """Write the adapter `vector` (float32, D) of `version` into a new folder, in three forms.

    Returns a model package, whose initial adapter it is; an adapter file; and a model that has it
    in its weights, which is the tail where there is a front. OSError or ModelError where they
    cannot be written.
    """
    package = loaded.package
    if Path(package.name).name != package.name or package.name[:1] in ("", "."):
        raise ModelError(f"the model is called {package.name!r}, which is no name for a file")
    contents = {
        name: read_file(loaded.folder / name, FILE_BYTES_MAX)
        for name in package.files
        if name != ADAPTER
    }
    merged = merge_adapter(contents[FORWARD], package.split(vector))
    contents[ADAPTER] = vector.astype("<f4").tobytes()
    digest = hashlib.sha256(contents[ADAPTER]).hexdigest()
    learned = replace(package, files={**package.files, ADAPTER: digest})
    contents[DESCRIPTION] = write_model_package(learned)
    made = [folder / f"{package.name}{suffix}" for suffix in ("", ".onnx_adapter", ".onnx")]
    made[0].mkdir(parents=True)
    try:
        for name, content in contents.items():
            replace_file(made[0] / name, content)
        write_adapter(made[1], package, vector, version)
        replace_file(made[2], merged)
    except BaseException:
        shutil.rmtree(made[0])  # it tells that the export is whole, and is never overwritten
        raise
    return made


DIMS, DATA_TYPE, NAME, RAW_DATA = 1, 2, 8, 9  # fields of a tensor
FLOAT32 = 1

Tensors = Mapping[bytes, NDArray[np.float32]]


def merge_adapter(forward: bytes, adapter: Mapping[str, NDArray[np.float32]]) -> bytes:
    """The bytes of `forward` with these tensors as constants; ModelError where it lacks one."""
    tensors = {name.encode(): tensor for name, tensor in adapter.items()}
    walk = Walk(FIELDS_MAX)
    parts = []
    try:
        for name, value in walk.fields(memoryview(forward), MODEL):
            is_graph = name == "graph" and isinstance(value, memoryview)
            parts.append(_field(MODEL, name, _graph(walk, value, tensors) if is_graph else value))
    except WireError as error:
        raise ModelError(f"forward.onnx cannot be read: {error}") from error
    return b"".join(parts)


def _graph(walk: Walk, data: Value, tensors: Tensors) -> bytes:
    assert isinstance(data, memoryview)
    parts = []
    missing = set(tensors)
    for field, value in walk.fields(data, GRAPH):
        if field in ("initializer", "input"):
            assert isinstance(value, memoryview)
            fields = dict(walk.fields(value, TENSOR if field == "initializer" else VALUE))
            name = bytes(fields.get("name", b""))
            if name in tensors and field == "input":
                continue
            if name in tensors:
                missing.discard(name)
                value = _tensor(name, tensors[name])
        parts.append(_field(GRAPH, field, value))
    if missing:
        raise ModelError(f"forward.onnx has no value for {min(missing)!r}: export the model again")
    return b"".join(parts)


def _tensor(name: bytes, tensor: NDArray[np.float32]) -> memoryview:
    sizes = b"".join(number_field(DIMS, size) for size in tensor.shape)
    raw = bytes_field(RAW_DATA, np.ascontiguousarray(tensor, "<f4").tobytes())
    return memoryview(sizes + number_field(DATA_TYPE, FLOAT32) + bytes_field(NAME, name) + raw)


def _field(schema: MessageSchema, name: str, value: Value | bytes) -> bytes:
    number = next(number for number, field in schema.fields.items() if field.name == name)
    if isinstance(value, int):
        return number_field(number, value)
    return bytes_field(number, bytes(value))
