"""The sensor in C, a process on a pseudo-terminal, and the board's source that takes its rows."""

import os
import pty
import shutil
import subprocess
import tty
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from edge.data.live.sealed_rows import SealedRows
from edge.data.sources import Sample, make_source
from edge.errors import DataError
from ternmesh.security.key_derivation import nonce, traffic_key
from ternmesh.security.primitives import Ccm
from ternmesh.wire.frame import Header, write_header
from tests.edge.data.live.conftest import new_package
from tests.firmware_tools.c_library import make
from transports.serial_lora.framing import cobs_frame

SECRET = bytes(range(32))


class Rig:
    def __init__(self, tmp_path: Path, program: Path) -> None:
        self.folder, self._program = tmp_path, program
        self.key_file = tmp_path / "sensor.key"
        self.key_file.write_text(SECRET.hex() + "\n")
        self.board, self._slave = pty.openpty()  # what the sensor writes is read at `board`
        tty.setraw(self._slave)
        os.set_blocking(self.board, False)

    def close(self) -> None:
        os.close(self.board)
        os.close(self._slave)

    def sensor(self, address: int = 3, columns: int = 2, batch: int = 3, copies: int = 1):
        numbers = map(str, (address, columns, batch, copies))
        files = os.ttyname(self._slave), self.key_file, self.folder / f"kept-{address}"
        return subprocess.Popen([self._program, *files, *numbers], stdin=subprocess.PIPE)

    def measure(self, text: str, **options: int) -> None:
        process = self.sensor(**options)
        process.communicate(text.encode(), timeout=20)
        assert process.returncode == 0

    def written(self) -> bytes:
        try:
            return os.read(self.board, 1 << 16)
        except BlockingIOError:
            return b""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if not shutil.which("cc"):
        pytest.skip("cc is not installed")
    return make(tmp_path_factory.mktemp("c"), "sensor")


@pytest.fixture
def rig(tmp_path, program):
    found = Rig(tmp_path, program)
    yield found
    found.close()


def test_a_frame_holds_as_many_rows_as_fit(rig: Rig) -> None:
    rig.measure("1 2 3\n" * 40, columns=3, batch=255)
    data = rig.written()
    assert max(map(len, data.split(b"\0"))) <= 228
    assert len(SealedRows(rig.key_file, Counter()).take(data)) == 40


def test_copies_count_once_and_those_of_before_a_restart_never(rig: Rig) -> None:
    rig.measure("1 2\n3 4\n", batch=1, copies=2)
    left_out: Counter[str] = Counter()
    rows, data = SealedRows(rig.key_file, left_out), rig.written()
    assert len(rows.take(data)) == 2
    assert left_out == {"frame refused: replay": 2}
    assert SealedRows(rig.key_file, left_out).take(data) == []
    assert left_out == {"frame refused: replay": 6}


def test_a_sensor_that_loses_its_power_uses_no_counter_twice(rig: Rig) -> None:
    rows, left_out = None, Counter[str]()
    for number in range(3):
        process = rig.sensor(batch=1)
        assert process.stdin is not None
        process.stdin.write(b"%d 0\n" % number * 2)
        process.stdin.flush()
        data = b""
        while data.count(b"\0") < 4:  # each frame lies between two zeros
            data += rig.written()
        process.kill()
        process.wait()
        rows = SealedRows(rig.key_file, left_out)
        assert len(rows.take(data)) == 2
    assert not left_out


def test_what_is_damaged_or_of_another_secret_is_counted(rig: Rig) -> None:
    rig.measure("1 2\n", batch=1)
    data = rig.written()
    left_out: Counter[str] = Counter()
    rows = SealedRows(rig.key_file, left_out)
    assert rows.take(data[:20] + bytes([data[20] ^ 1]) + data[21:] + b"\0garbage\0") == []
    for secret, address, body in (
        (bytes(32), 3, b"\1\1abcd"),
        (SECRET, 0, b"\1\1abcd"),
        (SECRET, 5, b"\1\2abcd"),
        (SECRET, 5, b"\1\0"),
        (SECRET, 5, b"\2\1abcd"),
    ):
        assert rows.take(sealed(secret, address, left_out.total(), body)) == []
    assert left_out == {
        "frame refused: seal": 1, "frame refused: role": 1, "frame refused: length": 3,
    }  # fmt: skip
    assert len(rows.take(data)) == 1


def sealed(secret: bytes, address: int, counter: int, body: bytes) -> bytes:
    head = write_header(Header(address, counter, 1))
    cipher = Ccm(traffic_key(secret, counter))
    return cobs_frame(head + cipher.seal(nonce(address, counter), head, body))


def test_a_board_learns_from_a_sensor_on_its_serial_port(rig: Rig) -> None:
    process = rig.sensor(batch=1)
    far, near = pty.openpty()
    tty.setraw(near)
    port, key_file = os.ttyname(near), str(rig.key_file)
    options = {"port": port, "columns": ["1", "2"], "key_file": key_file}
    source: Any = make_source("serial", options, package=new_package(2))
    try:
        assert source.poll(0.0) == []
        process.communicate(b"1 2\n3 -4.5\n", timeout=20)
        os.write(far, rig.written())
        found = [item.inputs["x"].tolist() for item in source.poll(1.0) if isinstance(item, Sample)]
        assert found == [[1.0, 2.0], [3.0, -4.5]]
    finally:
        source.close()
        os.close(far)
        os.close(near)


@pytest.mark.parametrize(
    ("key", "seen", "sentence"),
    [
        ("", "", "64 hexadecimal digits"),
        ("00" * 31, "", "64 hexadecimal digits"),
        ("xy" * 32, "", "64 hexadecimal digits"),
        ("00" * 32, "[1", "is damaged"),
    ],
)
def test_files_that_cannot_be_are_a_sentence(tmp_path: Path, key, seen, sentence) -> None:
    (tmp_path / "key").write_text(key)
    if seen:
        (tmp_path / "key.seen").write_text(seen)
    with pytest.raises(DataError, match=sentence):
        SealedRows(tmp_path / "key", Counter())
