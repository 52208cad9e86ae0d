"""The C library of firmware_tools for this machine, called from Python: what has a state.

What has none is compared by `bench.c_cases`. Refusals are raised as `WireError` with C's reason.
"""

import ctypes
import subprocess
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_bool, c_char_p, c_size_t, c_void_p
from ctypes import c_uint8 as u8
from ctypes import c_uint16 as u16
from ctypes import c_uint32 as u32
from ctypes import c_uint64 as u64
from pathlib import Path
from typing import Any

from firmware_tools.constants import CONSTANTS
from ternmesh.errors import WireError
from ternmesh.security.identity import Identity, PublicIdentity, write_identity
from ternmesh.security.primitives import exchange_key, shared_secret

FOLDER = Path(__file__).parents[1] / "firmware_tools" / "c"
_X25519 = CFUNCTYPE(None, POINTER(u8), POINTER(u8), POINTER(u8))


class _Header(Structure):
    _fields_ = [("address", u16), ("counter", u32), ("suite", u8), ("key_phase", u8)]


class _Aes(Structure):
    _fields_ = [("context", c_void_p), ("set_key", c_void_p), ("encrypt", c_void_p)]


class _Window(Structure):
    _fields_ = [("highest", u64), ("seen", u8 * (CONSTANTS["WINDOW"] // 8)), ("marks", c_void_p)]


class _Traffic(Structure):
    _fields_ = [("secret", u8 * 32), ("generation", u64), ("is_set", c_bool), ("aes", _Aes)]


class _End(Structure):
    _fields_ = [("identity", c_char_p), ("identity_size", c_size_t), ("ephemeral", u8 * 32)]


class _Unframer(Structure):
    _fields_ = [
        ("buffer", c_void_p),
        ("room", c_size_t),
        ("size", c_size_t),
        ("is_overlong", c_bool),
        ("malformed", u32),
    ]


def make(folder: Path, target: str, **variables: str) -> Path:
    """Build `target` in `folder`; CalledProcessError where that fails."""
    path = folder / target
    settings = [f"{name}={value}" for name, value in variables.items()]
    subprocess.run(
        ["make", "-s", "-C", str(FOLDER), f"BUILD={folder}", *settings, str(path)], check=True
    )
    return path


class CLibrary:
    """The functions of a compiled library."""

    def __init__(self, path: Path) -> None:
        self.c: Any = ctypes.CDLL(str(path))
        self.c.tm_reason.restype = c_char_p
        self.c.tm_aes128_portable.restype = _Aes
        self.c.tm_kiss_frame.restype = c_size_t
        self.c.tm_cobs_feed.restype = self.c.tm_kiss_feed.restype = c_bool
        self.c.tm_whole_counter.restype = u64
        self.c.tm_whole_counter.argtypes = [u64, u32]

    def check(self, result: int) -> None:
        """Raise the reason of a refusal."""
        if result:
            raise WireError(self.c.tm_reason(result).decode(), "the C library refuses it")

    def whole_counter(self, near: int, low: int) -> int:
        """As `ternmesh.security.session.whole_counter`."""
        return int(self.c.tm_whole_counter(near, low))

    def scale(self, code: int) -> int:
        """As `ternmesh.codec.scale.decode_scale`."""
        units = u32()
        self.check(self.c.tm_scale_decode(u16(code), byref(units)))
        return units.value

    def kiss_frame(self, command: int, data: bytes) -> bytes:
        """As `transports.serial_lora.framing.kiss_frame`."""
        out = ctypes.create_string_buffer(2 * len(data) + 4)
        size = self.c.tm_kiss_frame(u8(command), data, c_size_t(len(data)), out)
        return out.raw[:size]

    def session_secrets(
        self,
        own: Identity,
        other: PublicIdentity,
        fleet: bytes,
        suite: int,
        ephemeral: bytes,
        theirs: bytes,
    ) -> tuple[bytes, bytes]:
        """As `ternmesh.security.key_derivation.session_secrets`."""

        def x25519(shared: Any, scalar: Any, point: Any) -> None:
            point = bytes(point[:32])
            if bytes(scalar[:32]) == ephemeral:
                found = shared_secret(ephemeral, point)
            else:
                found = own.exchange(point)
            ctypes.memmove(shared, found, 32)

        def end(identity: PublicIdentity, key: bytes) -> _End:
            written = write_identity(identity)
            return _End(written, len(written), (u8 * 32)(*key))

        ours, peer = end(own.public, exchange_key(ephemeral)), end(other, theirs)
        out, incoming = ctypes.create_string_buffer(32), ctypes.create_string_buffer(32)
        rest = byref(ours), bytes(31) + b"\1", ephemeral, byref(peer), out, incoming
        self.c.tm_session_secrets(_X25519(x25519), u8(suite), fleet, *rest)
        return out.raw, incoming.raw


class CTraffic:
    """One direction of a session, with the portable AES, and the window of its receiver."""

    def __init__(self, library: CLibrary, secret: bytes, highest: int) -> None:
        self._library, self._c = library, library.c
        self._aes, self._traffic, self._window = (
            ctypes.create_string_buffer(176),
            _Traffic(),
            _Window(),
        )
        aes = self._c.tm_aes128_portable(self._aes)
        self._c.tm_traffic_init(byref(self._traffic), secret, aes)
        self._marks = ctypes.create_string_buffer(4 * CONSTANTS["WINDOW"])
        self._c.tm_window_init(byref(self._window), u64(highest), self._marks)

    def seal(self, suite: int, address: int, counter: int, run: bytes | None, body: bytes) -> bytes:
        """A sealed frame."""
        size = len(body) + CONSTANTS["FRAME_OVERHEAD"]
        head, out = _Header(address, 0, suite, 0), (u8 * size)()
        rest = run, body, c_size_t(len(body)), out
        self._c.tm_keyed_seal(byref(self._traffic), byref(head), u64(counter), *rest)
        return bytes(out)

    def open(self, suite: int, run: bytes | None, frame: bytes) -> bytes:
        """The body of a frame, which is entered into the window."""
        head, out = _Header(), (u8 * max(1, len(frame) - CONSTANTS["FRAME_OVERHEAD"]))()
        rest = u8(suite), run, frame, c_size_t(len(frame)), byref(head), out
        self._library.check(self._c.tm_keyed_open(byref(self._traffic), byref(self._window), *rest))
        return bytes(out)


class CUnframer:
    """Finds "cobs" or "kiss" frames in a stream."""

    def __init__(self, library: CLibrary, kind: str, room: int) -> None:
        self._feed = getattr(library.c, f"tm_{kind}_feed")
        self._buffer, self._kept = ctypes.create_string_buffer(room), _Unframer()
        library.c.tm_unframer_init(byref(self._kept), self._buffer, c_size_t(room))

    @property
    def malformed(self) -> int:
        """Damaged frames so far."""
        return int(self._kept.malformed)

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that end in `data`; of KISS with the command in front."""
        size = c_size_t()
        return [
            self._buffer.raw[: size.value]
            for byte in data
            if self._feed(byref(self._kept), u8(byte), byref(size))
        ]
