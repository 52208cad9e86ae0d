"""Input from enemies: what it may cost, what it may say, and what of it ends in a log."""

import io
import json
import logging
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edge.config import read_node_config
from edge.data.sources import NpzSettings, open_folder
from edge.errors import DataError, ModelError
from edge.releases.store import STANDING, Releases, accept_unsigned
from edge.releases.trial import _read_answer
from ternmesh import release
from ternmesh.config import ConfigError
from ternmesh.errors import ModelPackageError, SecurityError, WireError
from ternmesh.federated.aggregation import encode_update
from ternmesh.federated.open_round import UpdateReassembler
from ternmesh.model_package import ModelPackage, TensorSpec, read_model_package
from ternmesh.plan import make_plan
from ternmesh.security.identity import (
    ENTROPY_SIZE,
    PRIVATE_MARK,
    Identity,
    Role,
    make_identity,
    private_text,
    to_text,
)
from ternmesh.wire import control
from ternmesh.wire.global_update import HEAD_MAX, SNAPSHOT, UPDATE, read_object
from ternmesh_cli.keys import read_end, socket_of
from ternmesh_service.control_socket import ControlServer
from ternmesh_service.identity_file import read_identity_file
from transports.base import HOST
from transports.mqtt.credentials import parse_credentials
from transports.mqtt.settings import MqttSettings
from transports.mqtt.transport import MqttTransport

MEGABYTE = 1 << 20
REFUSING_MAX = 80 << 10  # bytes: the library reads what is long in pieces of 64 KiB
COPIES_MAX = 7  # of a head that is not too long: cut out, decoded and encoded again
WORD = b"\x65other"
# What may cost memory or time; small forms are in `tests/ternmesh/wire/test_refusals.py`.
CBOR = {
    "a MIME message": b"\x83\x03\x07\xd8\x24\x78\x40" + b"a: b\n" * 12 + b"\n\n\n\n",
    "a bignum of a megabyte": b"\x83\x03\xc2\x5a\x00\x10\x00\x00" + b"\xff" * MEGABYTE + WORD,
    "21 megabytes of nesting": b"\x81" * (21 * MEGABYTE),
    "21 megabytes of nested maps": b"\xa1\x01" * (10 * MEGABYTE),
    "an array of 2**64 - 1": b"\x9b" + b"\xff" * 8,
    "bytes of 2**63": b"\x5b\x80" + bytes(7),
    "text of 2**32": b"\x7b\x00\x00\x00\x01" + bytes(4),
    "a map of 2**40": b"\xbb\x00\x00\x01" + bytes(5),
    "a set that hashes to one place": b"\xd9\x01\x02\x98\x20"
    + b"".join(b"\x1b" + (i * (2**61 - 1)).to_bytes(8, "big") for i in range(8)),
    "a tag in a tag": b"\xc1" * 5000 + b"\x00",
    "a tag that is its own key": b"\xd8\x1c\xa1\xd8\x1d\x00\x01",
    "a text of 128 KiB": b"\x83\x03\x07\x7a\x00\x02\x00\x00" + b"a" * (128 << 10),
    "a letter across a chunk of 64 KiB": b"\x83\x03\x07\x7a\x00\x01\x00\x01"
    + b"a" * 0xFFFF + "ä".encode(),
}  # fmt: skip


def head_of(kind: int) -> Callable[[bytes], bytes]:
    return lambda data: bytes((kind,)) + len(data).to_bytes(4, "little") + data


def read_object_of_20(content: bytes) -> object:
    return read_object(content, 20)


# Every reader of CBOR, and where in its message that stands.
READERS: dict[str, tuple[Callable[[bytes], object], Callable[[bytes], bytes]]] = {
    "a control message": (control.read_control, lambda data: bytes((control.KIND,)) + data),
    "a release's manifest": (release.read_manifest, lambda data: data),
    "a reference": (read_object_of_20, head_of(UPDATE)),
    "a snapshot": (read_object_of_20, head_of(SNAPSHOT)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("data", CBOR.values(), ids=list(CBOR))
def test_hostile_cbor_costs_nothing(data: bytes, reader: str) -> None:  # R1-2
    read, place = READERS[reader]
    for cut in (data, data[:1023]):  # as it is, and as long as a control message may be
        message = place(cut)
        held = COPIES_MAX * len(cut) if len(cut) <= HEAD_MAX else 0
        tracemalloc.start()
        with pytest.raises((WireError, ModelPackageError)):
            read(message)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak <= REFUSING_MAX + held


DEEP = {
    "JSON lists": b"[" * 60_000,
    "JSON objects": b'{"a":' * 12_000,
    "TOML lists": b"a = " + b"[" * 60_000,
    "TOML tables": b"a = " + b"{b = " * 12_000,
    "TOML keys": b"a." * 2000 + b"a = 1",
}


@pytest.mark.parametrize("text", DEEP.values(), ids=list(DEEP))
def test_texts_that_nest_deep_are_refused(text: bytes, tmp_path: Path) -> None:
    """Readers of JSON and TOML recurse: what they raise then is no ValueError."""
    path = tmp_path / "deep"
    path.write_bytes(text)
    with pytest.raises(ConfigError):
        read_node_config(path)
    with pytest.raises(ConfigError):
        socket_of(path, read_end(path))
    with pytest.raises(ModelPackageError):
        read_model_package(text)
    with pytest.raises(ValueError, match="credentials_file"):
        parse_credentials(text, "ada")
    with pytest.raises(ModelError):
        _read_answer(tmp_path, text)
    (tmp_path / STANDING).write_bytes(text)
    assert Releases(tmp_path, accept_unsigned).standing().current == 0
    server = ControlServer(tmp_path / "unused", lambda request: {})
    assert "error" in json.loads(server._respond(text))


def someone(name: str, role: Role) -> Identity:
    return make_identity(name, role, bytes(b + len(name) for b in range(ENTROPY_SIZE)))


def test_a_spoilt_identity_file_is_a_sentence_that_does_not_quote_it(tmp_path: Path) -> None:
    path = tmp_path / "identity"
    own = private_text(someone("ada", Role.NODE)).encode()
    constant = to_text(PRIVATE_MARK, b"\x01\x00\x03ada" + bytes(ENTROPY_SIZE)).encode()
    for content in (b"", b"\xff\xfe\0", own[:-1], own[:40] + b"A" + own[41:], own * 2, constant):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(SecurityError) as caught:
            read_identity_file(path)
        assert own[20:60].decode() not in str(caught.value)


def a_package() -> ModelPackage:
    x = TensorSpec("x", "float32", (-1, 4))
    return ModelPackage(
        "tiny", 1, (x,), (x,), (TensorSpec("x", "float32", (8, 4)),), (), "accuracy", {}
    )


class Planted:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_an_array_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    np.savez(tmp_path / "a.npz", x=np.array([Planted(harm)] * 4, object))
    with pytest.raises(DataError, match="x holds Python objects"):
        open_folder(tmp_path / "a.npz", a_package(), NpzSettings({}, {}))
    assert not harm.exists()


def npz_of(path: Path, shape: tuple[int, ...], mebibytes: int) -> Path:
    """An .npz whose array claims a shape and holds so many MiB of zeros."""
    head = io.BytesIO()
    said = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, said)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w") as file,
    ):
        file.write(head.getvalue())
        for _ in range(mebibytes):
            file.write(bytes(MEGABYTE))
    return path


@pytest.mark.parametrize(
    ("files", "rows", "mebibytes", "reason"),
    [
        (1, 9 << 16, 9, "more than the"),  # 9 KiB of zip, and 9 MiB of zeros, where 8 are allowed
        (1, 1 << 40, 0, "its shape needs"),  # 128 bytes, and a head that claims 16 TiB
        (1, 1 << 16, 0, "its shape needs"),
        (3, 3 << 16, 3, "holds more than"),  # each file is allowed, all together are not
    ],
)
def test_an_npz_bomb_costs_no_memory(tmp_path, monkeypatch, files, rows, mebibytes, reason) -> None:
    monkeypatch.setattr("edge.data.sources.BYTES_MAX", 8 << 20)
    folder = tmp_path / "bombs"
    folder.mkdir()
    for number in range(files):
        path = npz_of(folder / f"{number}.npz", (rows, 4), mebibytes)
        assert path.stat().st_size < MEGABYTE
    open_folder(npz_of(tmp_path / "b.npz", (1 << 16, 4), 1), a_package(), NpzSettings({}, {}))
    tracemalloc.start()
    with pytest.raises(DataError, match=reason):
        open_folder(folder, a_package(), NpzSettings({}, {}))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= MEGABYTE


def test_no_share_outweighs_what_the_plan_allows() -> None:  # R4.1-5
    loud = make_plan(100, rounds=1, local_steps=1, learning_rate=0.1, scale_max=60.0)
    plan = make_plan(100, rounds=1, local_steps=1, learning_rate=0.1, scale_max=1.0)
    (chunk,) = encode_update(np.full(100, 50, np.float32), bytes(32), 0, loud)[0]
    with pytest.raises(WireError) as caught:
        UpdateReassembler(plan, bytes(8), 0).add(chunk)
    assert caught.value.reason == "scale"


def test_logs_hold_no_payload_and_no_password(caplog, tmp_path) -> None:
    caplog.set_level(logging.DEBUG)
    password, payload = "correct-horse", b"\xff\xffprivate-payload"
    settings = MqttSettings(
        f"mqtt://ada:{password}@127.0.0.1:1", "attic", HOST, reconnect_min_s=0.01
    )
    transport = MqttTransport(settings)
    transport._take("ternmesh/attic/up/ada", payload)
    transport._take("ternmesh/attic/up/../x", payload)
    server = ControlServer(tmp_path / "unused", lambda request: {"never": 1 / 0})
    server._respond(b'{"private-payload": ')
    server._respond(b'{"private-payload": 1}')
    assert transport.counters.malformed == 2
    shown = caplog.text + str(transport.status()) + repr(settings)
    assert len(caplog.records) >= 3
    assert password not in shown
    assert "private-payload" not in shown
