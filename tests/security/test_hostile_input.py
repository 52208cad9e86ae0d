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
from ternmesh.codec.scale import SCALE_MAX, decode_scale, encode_scale
from ternmesh.config import ConfigError
from ternmesh.errors import CodecError, ModelPackageError, SecurityError, WireError
from ternmesh.federated.aggregation import encode_update
from ternmesh.federated.open_round import UpdateReassembler
from ternmesh.model_package import ModelPackage, TensorSpec, read_model_package
from ternmesh.plan import make_plan
from ternmesh.security import membership
from ternmesh.security.identity import (
    ENTROPY_SIZE,
    PRIVATE_MARK,
    Identity,
    Role,
    make_identity,
    private_text,
    read_identity,
    to_text,
    write_identity,
)
from ternmesh.security.primitives import statement
from ternmesh.wire import control
from ternmesh.wire.frame import Header, open_seal, seal_open
from ternmesh.wire.global_update import (
    HEAD_MAX,
    SNAPSHOT,
    UPDATE,
    Counted,
    GlobalSnapshot,
    GlobalUpdate,
    read_object,
    write_global_snapshot,
    write_global_update,
)
from ternmesh.wire.update import (
    Contribution,
    Manifest,
    read_contributions,
    read_manifest,
    write_contributions,
    write_manifest,
)
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
ROUND, WORD = b"\x07", b"\x65other"
# What the library accepts of its own accord, and what it once fell over.
CBOR = {
    "a regular expression": b"\x83\x03\x07\xd8\x23\x66(a+)+$",
    "a MIME message": b"\x83\x03\x07\xd8\x24\x78\x40" + b"a: b\n" * 12 + b"\n\n\n\n",
    "a cycle of shared references": b"\xd8\x1c\x82\xd8\x1d\x00\xd8\x1d\x00",
    "a bignum of a megabyte": b"\x83\x03\xc2\x5a\x00\x10\x00\x00" + b"\xff" * MEGABYTE + WORD,
    "21 megabytes of nesting": b"\x81" * (21 * MEGABYTE),
    "21 megabytes of nested maps": b"\xa1\x01" * (10 * MEGABYTE),
    "an array of 2**64 - 1": b"\x9b" + b"\xff" * 8,
    "bytes of 2**63": b"\x5b\x80" + bytes(7),
    "text of 2**32": b"\x7b\x00\x00\x00\x01" + bytes(4),
    "a map of 2**40": b"\xbb\x00\x00\x01" + bytes(5),
    "read of minus one": b"\x5b" + b"\xff" * 8,
    "trailing junk": b"\x83\x03\x07" + WORD + b"junk",
    "an integer longer than needed": b"\x83\x03\x1b" + bytes(7) + b"\x07" + WORD,
    "an indefinite array": b"\x9f\x03\x07" + WORD + b"\xff",
    "duplicate keys": b"\x83\x03\xa2\x01\x01\x01\x02" + WORD,
    "a set that hashes to one place": b"\xd9\x01\x02\x98\x20"
    + b"".join(b"\x1b" + (i * (2**61 - 1)).to_bytes(8, "big") for i in range(8)),
    "a tag in a tag": b"\xc1" * 5000 + b"\x00",
    "a decimal fraction": b"\x83\x03\xc4\x82\x3a\x7f\xff\xff\xff\x01" + WORD,
    "a date": b"\x83\x03\xc0\x74" + b"2013-03-21T20:04:00Z" + WORD,
    "a string reference": b"\xd9\x01\x00\x83\x03\x07\xd8\x19\x00",
    "arrays nine deep": b"\x81" * 9 + b"\x00",
    "a tag that nobody has registered": b"\x83\x03\xda\xff\xff\xff\xf0\x07" + WORD,
    "a tag that is its own key": b"\xd8\x1c\xa1\xd8\x1d\x00\x01",
    "a shared reference to nothing": b"\x83\x03\xd8\x1d\x05" + WORD,
    "a text of 128 KiB": b"\x83\x03\x07\x7a\x00\x02\x00\x00" + b"a" * (128 << 10),
    "a letter across a chunk of 64 KiB": b"\x83\x03\x07\x7a\x00\x01\x00\x01"
    + b"a" * 0xFFFF + "ä".encode(),
    "a text that is none": b"\x83\x03\x07\x65\xff\xfe\xfd\xfc\xfb",
    "NaN": b"\x83\x03\xf9\x7e\x00" + WORD,
    "an infinity": b"\x83\x03\xfa\x7f\x80\x00\x00" + WORD,
    "a simple value": b"\x83\x03\xf8\xff" + WORD,
    "a break that ends nothing": b"\xff",
    "nothing": b"",
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


def test_nothing_signed_has_bytes_left_over() -> None:
    """Of two forms of one thing, one could be signed and the other one believed."""
    host, node = someone("base", Role.HOST), someone("ada", Role.NODE)
    state = membership.found_fleet("attic", host.public)
    fleet = state.fleet
    file = release.FileEntry(10, bytes(32))
    made = release.ReleaseManifest("tiny", 3, bytes(32), (file,) * len(release.FILES), 5, 6)
    counted = (Counted(3, 0, b"abcd", b"\x01"),)
    step = GlobalUpdate(1, bytes(16), bytes(8), False, 0, counted, (b"\x02" * 9,))
    whole = GlobalSnapshot(1, bytes(16), bytes(8), False, 0, counted, np.zeros(20, np.int32))
    rows = [Contribution(bytes(4), 3)] * 2
    read_from: list[tuple[Callable[[bytes], object], bytes]] = [
        (release.read_manifest, release.write_manifest(made)),
        (read_object_of_20, write_global_update(step)),
        (read_object_of_20, write_global_snapshot(whole)),
        (read_manifest, write_manifest(Manifest(1, bytes(8), 1, bytes(4), 3))),
        (read_contributions, write_contributions(1, rows)),
        (
            lambda d: membership.MemberList(state).learn(signed(host, fleet, d)),
            membership.write_fleet(host, state)[:-64],
        ),
        (read_identity, write_identity(node.public)),
    ]
    for read, content in read_from:
        read(content)
        for more in (b"\0", b"\xff" * 9, content):
            with pytest.raises((WireError, ModelPackageError, SecurityError)):
                read(content + more)


def signed(host: Identity, fleet: bytes, content: bytes) -> bytes:
    return content + host.sign(statement("members", fleet, content))


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
def test_an_npz_bomb_costs_no_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: int,
    rows: int,
    mebibytes: int,
    reason: str,
) -> None:
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


def test_no_scale_is_nan_infinite_or_huge() -> None:
    """All 65,536 codes: each is a whole number of units within bounds, or an error."""
    worths = []
    for code in range(1 << 16):
        try:
            worths.append(decode_scale(code))
        except WireError:
            continue
    assert all(type(worth) is int for worth in worths)
    assert (min(worths), max(worths)) == (0, SCALE_MAX)
    for value in (float("nan"), -1.0, float("-inf")):
        with pytest.raises(CodecError):
            encode_scale(value)
    assert decode_scale(encode_scale(float("inf"))) == SCALE_MAX  # An infinity never leaves.


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_board_whose_training_diverged_sends_nothing(value: float) -> None:
    plan = make_plan(100, rounds=1, local_steps=1, learning_rate=0.1)
    vector = np.zeros(100, np.float32)
    vector[50] = value
    with pytest.raises(CodecError):
        encode_update(vector, bytes(32), 0, plan)[0]


def test_no_share_outweighs_what_the_plan_allows() -> None:  # R4.1-5
    loud = make_plan(100, rounds=1, local_steps=1, learning_rate=0.1, scale_max=60.0)
    plan = make_plan(100, rounds=1, local_steps=1, learning_rate=0.1, scale_max=1.0)
    (chunk,) = encode_update(np.full(100, 50, np.float32), bytes(32), 0, loud)[0]
    with pytest.raises(WireError) as caught:
        UpdateReassembler(plan, bytes(8), 0).add(chunk)
    assert caught.value.reason == "scale"


@pytest.mark.parametrize("suite", range(1, 8))
def test_a_frame_of_a_suite_that_is_not_in_use_is_not_taken_for_an_open_one(suite: int) -> None:
    frame = bytearray(seal_open(Header(1, 1), b"\x05\x07body"))
    frame[0] |= suite << 2
    with pytest.raises(WireError):
        open_seal(bytes(frame))


@pytest.mark.parametrize(
    "name", ["../up", "a/b", "a\\b", "a\0b", "a\nb", "ä", "", "+", "#", "a" * 33]
)
def test_a_name_from_a_peer_is_neither_path_nor_topic(name: str) -> None:
    hello = control.Hello(name, bytes(8), bytes(8), bytes(8), 0, bytes(16), 1)
    with pytest.raises(WireError):
        control.read_control(control.write_control(hello))


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
