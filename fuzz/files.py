"""Files that programs read, and messages between processes of one computer."""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from edge.config import read_node_config
from edge.data.sources import NpzSettings, open_folder
from edge.errors import DataError, ModelError
from edge.gateway.service import read_gateway_config
from edge.onnx.check import check_file
from edge.onnx.session import DESCRIPTION, load_model
from edge.split.config import read_split_board_config
from fuzz.target import Target, number, same, scratch_folder
from host.config import read_host_config
from host.pipeline.config import ReplicasConfig, read_pipeline_config
from host.pipeline.replicas import Packets
from host.split.config import read_split_host_config
from ternmesh.config import ConfigError
from ternmesh.model_package import (
    ADAPTER,
    FILES,
    FORWARD,
    TRAIN_STEP,
    ModelPackage,
    TensorSpec,
    write_model_package,
)
from ternmesh_service.control_socket import ControlServer
from transports.mqtt.credentials import Credentials, parse_credentials, write_credentials
from transports.serial_lora.settings import DIALECTS

_BROKER = b'[link]\nurl = "mqtt://127.0.0.1:1"\nfleet = "attic"\n'
_NODE = b'name = "ada"\nstate_dir = "s"\nmodel = "keyword"\n'
_HOST = b'state_dir = "s"\nmodel = "keyword"\n'
_PIPELINE = b'state_dir = "s"\ndata = "."\nsteps = 9\n'
_DATA = b'[data]\npath = "."\n'
_BRIDGES = b'ada = {hci = "usb:0"}\nbo = {hci = "usb:1", address = "F0:F1:F2:F3:F4:05"}\n'
_RADIO = (
    b'[link]\nregion = "EU868"\n[link.serial]\nport = "/dev/tty"\ndialect = "%b"\n'
    b"frequency_hz = 869525000\nspreading_factor = 7\naddresses = { ada = 1 }\n"
)
_ADAPTER_SIZE = 4  # numbers
_DIMENSION = 60  # of a stage of a pipeline
_MODEL_FILES = (ADAPTER, FORWARD, TRAIN_STEP, DESCRIPTION)
_SPEC = TensorSpec("x", "float32", (-1, 2))
_MODEL = ModelPackage(
    "tiny", 1, (_SPEC,), (_SPEC,), (TensorSpec("x", "float32", (4, 2)),), (), "", {}
)


def _config(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def call(data: bytes) -> object:
        path = scratch_folder() / "config.toml"
        path.write_bytes(data)
        return read(path)

    return call


_CONFIGS: Mapping[str, tuple[Callable[[Path], object], Sequence[bytes]]] = {
    "node_config": (
        read_node_config,
        [
            *(_NODE + _RADIO % dialect.encode() + _DATA for dialect in DIALECTS),
            _NODE + b'[link.ble]\nhci = "usb:0"\naddress = "F0:F1:F2:F3:F4:05"\n' + _DATA,
            _NODE + _BROKER + b'ca_file = "a"\ncertificate_file = "b"\nkey_file = "c"\n' + _DATA,
        ],
    ),
    "host_config": (
        read_host_config,
        [
            _HOST + _BROKER + b"[run]\nrounds = 6\nup_bytes = 900\nsilence = 0.1\n",
            _HOST + _RADIO % b"rnode" + b"[link.also.near.ble]\n" + _BRIDGES,
        ],
    ),
    "gateway_config": (
        read_gateway_config,
        [b'state_dir = "s"\n[radio.ble]\n' + _BRIDGES + _BROKER.replace(b"link", b"network")],
    ),
    "split_host_config": (
        read_split_host_config,
        [
            b'builder = "a.b:c"\n'
            + _HOST
            + _BROKER
            + b'[boundary]\nmethod = "learned"\nlatent = 4\nbits_up = 8\n'
        ],
    ),
    "split_board_config": (
        read_split_board_config,
        [_NODE + _BROKER + _DATA + b"[training]\nthreads = 2\ncheckpoint = 5\n"],
    ),
    "pipeline_config": (
        read_pipeline_config,
        [
            _PIPELINE + b'[boundary]\nmethod = "subspace"\nform = "rows"\nlatent = 2\n',
            _PIPELINE + b'[replicas]\ncount = 2\nzeros = 0.9\n[optimizer]\nname = "muon"\n',
        ],
    ),
}


def _onnx_models() -> Iterator[bytes]:
    """Small models, one with a table that an input looks up."""
    from onnx import TensorProto, helper, numpy_helper

    def model(*nodes: object, **constants: list[int]) -> bytes:
        tensors = [
            numpy_helper.from_array(np.array(value, np.int64), name)
            for name, value in constants.items()
        ]
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "xy")
        graph = helper.make_graph(list(nodes), "g", [x], [y], tensors)
        opset = [helper.make_opsetid("", 20)]
        made = helper.make_model(graph, opset_imports=opset, ir_version=9)
        content: bytes = made.SerializeToString()
        return content

    node = helper.make_node
    yield model(node("Relu", ["x"], ["y"]))
    yield model(node("Pad", ["x", "p"], ["y"]), p=[0, 1, 0, 1])
    yield model(node("ConstantOfShape", ["s"], ["c"]), node("Add", ["x", "c"], ["y"]), s=[2, 2])
    yield model(node("MaxPool", ["x"], ["y"], kernel_shape=[1, 1], pads=[0, 1, 0, 1]))


def _check_onnx(data: bytes) -> None:
    path = scratch_folder() / "forward.onnx"
    path.write_bytes(data)
    check_file(path)


def _check_model_folder(data: bytes) -> None:
    """A model package with one other file; the description has its hash or is that file."""
    folder = scratch_folder() / "model"
    folder.mkdir(exist_ok=True)
    name = _MODEL_FILES[number(data, 0, 1) % len(_MODEL_FILES)]
    files = {**_model_files(), name: data[1:]}
    if name != DESCRIPTION:
        files[DESCRIPTION] = _description(files)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    loaded = load_model(folder)
    same(loaded.initial.size, loaded.package.dimension, "the numbers of an adapter")
    same(bool(np.isfinite(loaded.initial).all()), True, "finite numbers")


@cache
def _model_files() -> dict[str, bytes]:
    model = next(_onnx_models())
    files = {FORWARD: model, TRAIN_STEP: model, ADAPTER: bytes(4 * _ADAPTER_SIZE)}
    return {**files, DESCRIPTION: _description(files)}


def _description(files: Mapping[str, bytes]) -> bytes:
    hashes = {name: hashlib.sha256(files[name]).hexdigest() for name in FILES}
    adapter = (TensorSpec("a", "float32", (_ADAPTER_SIZE,)),)
    return write_model_package(replace(_MODEL, adapter=adapter, metric="accuracy", files=hashes))


def _model_folders() -> Iterator[bytes]:
    for index, name in enumerate(_MODEL_FILES):
        yield bytes((index,)) + _model_files()[name]


def _check_npz(data: bytes) -> None:
    """A whole file, or an array in a valid zip file."""
    path, content = scratch_folder() / "a.npz", data[1:]
    if data[:1] < b"\x80":
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("x.npy" if data[:1] < b"\x40" else "x", content)
        content = packed.getvalue()
    path.write_bytes(content)
    same(len(open_folder(path, _MODEL, NpzSettings({}, {}))) > 0, True, "samples")


def _arrays() -> Iterator[bytes]:
    packed, plain = io.BytesIO(), io.BytesIO()
    values = np.ones((3, 2), np.float32)
    np.savez(packed, x=values)
    np.lib.format.write_array(plain, values)
    yield b"\xff" + packed.getvalue()
    yield b"\0" + plain.getvalue()
    yield b"\0" + plain.getvalue().replace(b"(3, 2)", b"((((2)")


@cache
def _packets() -> Packets:
    return Packets(_DIMENSION, ReplicasConfig(2, 1, 0.5), "stage")


def _pipeline_messages() -> list[bytes]:
    return [_packets().write(np.linspace(-1, 1, _DIMENSION, dtype=np.float32), 3)]


def _check_control_request(data: bytes) -> None:
    server = ControlServer(Path("unused"), lambda request: {"request": request})
    answer = json.loads(server._respond(data))
    if set(answer) not in ({"request"}, {"error"}):
        raise AssertionError("neither an answer nor an error")


TARGETS = (
    *(
        Target(name, partial(list, seeds), _config(read), (ConfigError,))
        for name, (read, seeds) in _CONFIGS.items()
    ),
    Target("onnx_file", _onnx_models, _check_onnx, (ModelError,)),
    Target("load_bundle", _model_folders, _check_model_folder, (ModelError,)),
    Target("npz", _arrays, _check_npz, (DataError,)),
    Target(
        "credentials",
        lambda: [write_credentials({"ada": Credentials("attic~ada", "secret")}).encode()],
        lambda data: parse_credentials(data, "ada"),
        (ValueError,),
    ),
    Target("pipeline_packets", _pipeline_messages, lambda data: _packets().read(data, 3)),
    Target("control_socket", lambda: [b'{"command": "status"}\n'], _check_control_request),
)
