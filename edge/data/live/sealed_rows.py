"""Rows that a sensor with our C library has sealed (`firmware_tools/c/apps/sensor.h`)."""

import json
import struct
from collections import Counter
from pathlib import Path
from typing import Final

from edge.errors import DataError
from edge.files import read_optional
from ternmesh.errors import WireError
from ternmesh.security.key_derivation import nonce, traffic_key
from ternmesh.security.primitives import Ccm
from ternmesh.security.session import MARK_SIZE, Verdict, Window
from ternmesh.wire.frame import BROADCAST, HEAD_SIZE, TAG_SIZE, UNASSIGNED, read_header
from ternmesh_store.files import replace_file
from transports.serial_lora.framing import CobsUnframer

SUITE: Final = 1
ROWS: Final = 1  # the kind of a body
SECRET_SIZE = 32
SEEN, SEEN_MAX = ".seen", 1 << 16  # behind the name of the key file; bytes


class SealedRows:
    """Opens the frames in a stream, each once; also after a restart, for which it keeps a file.

    Sensors with the same secret have different addresses.
    """

    def __init__(self, key_file: Path, left_out: Counter[str]) -> None:
        """DataError where the files are not what they should be."""
        self._secret = _read_secret(key_file)
        self._path = key_file.with_name(key_file.name + SEEN)
        self._left_out = left_out
        self._unframer = CobsUnframer()
        self._floors = _read_seen(self._path)  # the highest counters of an earlier process
        self._windows = {address: Window(seen) for address, seen in self._floors.items()}

    def take(self, data: bytes) -> list[bytes]:
        """The rows that `data` completes, as lines of CSV."""
        lines: list[bytes] = []
        for frame in self._unframer.feed(data):
            try:
                lines += self._rows(self._open(frame))
            except WireError as error:
                self._left_out[f"frame refused: {error.reason}"] += 1
        if lines:
            seen = {str(address): window.highest for address, window in self._windows.items()}
            replace_file(self._path, json.dumps(seen).encode())
        return lines

    def _open(self, frame: bytes) -> bytes:
        header = read_header(frame, SUITE)
        if header.address in (UNASSIGNED, BROADCAST):
            raise WireError("role", "a sensor has an address of 1 to 65,534")
        window = self._windows.get(header.address) or Window(0)
        counter = window.whole(header.counter)
        cipher = Ccm(traffic_key(self._secret, counter))
        body = cipher.open(nonce(header.address, counter), frame[:HEAD_SIZE], frame[HEAD_SIZE:])
        if counter <= self._floors.get(header.address, -1):
            raise WireError("replay", "of before the restart")
        if window.take(counter, frame[-TAG_SIZE:][:MARK_SIZE]) is not Verdict.NEW:
            raise WireError("replay", "a copy, or a repetition")
        self._windows[header.address] = window  # only of whoever knows the secret
        return body

    def _rows(self, body: bytes) -> list[bytes]:
        if len(body) < 2 or body[0] != ROWS or body[1] == 0 or (len(body) - 2) % (4 * body[1]):
            raise WireError("length", "a body without rows")
        rows = struct.iter_unpack(f"<{body[1]}f", body[2:])
        return [",".join(map(repr, row)).encode() for row in rows]


def _read_secret(path: Path) -> bytes:
    try:
        secret = bytes.fromhex(path.read_text())
    except (OSError, ValueError):
        secret = b""
    if len(secret) != SECRET_SIZE:
        raise DataError(
            f"{path} must have 64 hexadecimal digits, the secret that the sensor has, too: make "
            "one with `openssl rand -hex 32`"
        )
    return secret


def _read_seen(path: Path) -> dict[int, int]:
    try:
        stored = json.loads(read_optional(path, SEEN_MAX) or b"{}")
        return {int(address): int(seen) for address, seen in stored.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(
            f"{path} is damaged: without it old rows could be sent again; remove it to go on"
        ) from error
