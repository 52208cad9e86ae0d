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

from bench.c_constants import CONSTANTS
from ternmesh.errors import WireError
from ternmesh.security.identity import Identity, PublicIdentity, write_identity
from ternmesh.security.primitives import exchange_key, shared_secret

FOLDER = Path(__file__).parents[2] / "firmware_tools" / "c"
SEAL, ROLE = 4, 12  # of tm_result
_Opaque = u64 * 512  # room for a struct of C, whose fields nobody looks at here
_X25519 = CFUNCTYPE(None, POINTER(u8), POINTER(u8), POINTER(u8))


class _Header(Structure):
    _fields_ = [("address", u16), ("counter", u32), ("suite", u8), ("key_phase", u8)]


class _Aes(Structure):
    _fields_ = [("context", c_void_p), ("set_key", c_void_p), ("encrypt", c_void_p)]


class _End(Structure):
    _fields_ = [("identity", c_char_p), ("identity_size", c_size_t), ("ephemeral", u8 * 32)]


class _Layout(Structure):
    _fields_ = [("size", u32), ("symbol_bytes", u16)]


class _Ble(Structure):
    _fields_ = [
        *((name, c_bool) for name in ("is_established", "has_failed", "has_deadline")),
        *((name, u32) for name in ("deadline_ms", "refused", "frames")),
        ("private", _Opaque),
    ]


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
        for name in ("kiss_frame", "plain_seal", "keyed_seal", "collector_room", "ble_frame"):
            getattr(self.c, f"tm_{name}").restype = c_size_t
        self.c.tm_ble_value_to_send.restype = c_size_t
        self.c.tm_ble_offer.restype = c_bool
        self.c.tm_cobs_feed.restype = self.c.tm_kiss_feed.restype = c_bool
        self.c.tm_whole_counter.restype = u64
        self.c.tm_whole_counter.argtypes = [u64, u32]

    def check(self, result: int) -> None:
        """Raise the reason of a refusal."""
        if result:
            reason = self.c.tm_reason(result).decode()
            raise WireError(reason, f"the C library refuses it: {reason}")

    def whole_counter(self, near: int, low: int) -> int:
        """As `ternmesh.security.session.whole_counter`."""
        return int(self.c.tm_whole_counter(near, low))

    def scale(self, code: int) -> int:
        """As `ternmesh.codec.scale.decode_scale`."""
        units = u32()
        self.check(self.c.tm_scale_decode(u16(code), byref(units)))
        return units.value

    def plain_seal(self, address: int, counter: int, key_phase: int, body: bytes) -> bytes:
        """As `ternmesh.wire.frame.seal_open`; empty where the body has no allowed size."""
        head, out = _Header(address, counter, 7, key_phase), (u8 * (len(body) + 14))()
        size = self.c.tm_plain_seal(out, byref(head), body, c_size_t(len(body)))
        return bytes(out[:size])

    def plain_open(self, frame: bytes) -> None:
        """Only whether a frame opens."""
        head, size = _Header(), c_size_t()
        self.check(self.c.tm_plain_open(byref(head), frame, c_size_t(len(frame)), byref(size)))

    def slice_size(self, dimension: int, span: int, index: int) -> int:
        """How many values a slice has."""
        size = c_size_t()
        self.check(self.c.tm_slice_size(u32(dimension), u32(span), u16(index), byref(size)))
        return size.value

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
        *,
        is_zero: bool = False,
    ) -> tuple[bytes, bytes]:
        """As `ternmesh.security.key_derivation.session_secrets`.

        `is_zero`: as if X25519 gave zeros, as for a key of small order.
        """

        def x25519(shared: Any, scalar: Any, point: Any) -> None:
            point, secret = bytes(point[:32]), bytes(scalar[:32])
            agreed = shared_secret(secret, point) if secret == ephemeral else own.exchange(point)
            ctypes.memmove(shared, bytes(32) if is_zero else agreed, 32)

        def end(identity: PublicIdentity, key: bytes) -> _End:
            written = write_identity(identity)
            return _End(written, len(written), (u8 * 32)(*key))

        ours, peer = end(own.public, exchange_key(ephemeral)), end(other, theirs)
        out, incoming = ctypes.create_string_buffer(32), ctypes.create_string_buffer(32)
        ends = byref(ours), bytes(31) + b"\1", ephemeral, byref(peer), out, incoming
        self.check(self.c.tm_session_secrets(_X25519(x25519), u8(suite), fleet, *ends))
        return out.raw, incoming.raw


class CTraffic:
    """One direction of a session, with the portable AES, and the window of its receiver."""

    def __init__(self, library: CLibrary, secret: bytes, highest: int) -> None:
        self._library, self._c = library, library.c
        self._aes = ctypes.create_string_buffer(176)
        self._traffic, self._window = _Opaque(), _Opaque()
        aes = self._c.tm_aes128_portable(self._aes)
        self._c.tm_traffic_init(byref(self._traffic), secret, aes)
        self._marks = ctypes.create_string_buffer(4 * CONSTANTS["WINDOW"])
        self._c.tm_window_init(byref(self._window), u64(highest), self._marks)

    def seal(self, suite: int, address: int, counter: int, run: bytes | None, body: bytes) -> bytes:
        """A sealed frame, made in place; empty where there is none."""
        head, size = _Header(address, 0, suite, 0), len(body) + CONSTANTS["FRAME_OVERHEAD"]
        out = (u8 * size)(*bytes(CONSTANTS["HEAD_SIZE"]), *body)
        inside = ctypes.addressof(out) + CONSTANTS["HEAD_SIZE"]
        parts = run, c_void_p(inside), c_size_t(len(body)), out
        made = self._c.tm_keyed_seal(byref(self._traffic), byref(head), u64(counter), *parts)
        return bytes(out[:made])

    def open(self, suite: int, run: bytes | None, frame: bytes) -> bytes:
        """The body of a frame, opened in place, which is entered into the window."""
        head, kept = _Header(), (u8 * len(frame))(*frame)
        inside = ctypes.addressof(kept) + CONSTANTS["HEAD_SIZE"]
        parts = u8(suite), run, kept, c_size_t(len(frame)), byref(head), c_void_p(inside)
        result = self._c.tm_keyed_open(byref(self._traffic), byref(self._window), *parts)
        if result in (SEAL, ROLE):
            assert bytes(kept) == frame, "a frame that does not open must stay as it is"
        self._library.check(result)
        return bytes(kept[CONSTANTS["HEAD_SIZE"] : -CONSTANTS["TAG_SIZE"]])


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


class CCollector:
    """Collects all generations of an object, each in memory of exactly its size."""

    def __init__(self, library: CLibrary, size: int, symbol_bytes: int, name: bytes) -> None:
        self._library, self._c = library, library.c
        self._layout = _Layout(size, symbol_bytes)
        layout = byref(self._layout)
        library.check(self._c.tm_layout_check(layout))
        self._ones, self._memory = [], []
        for number in range(self._c.tm_layout_generations(layout)):
            room = self._c.tm_collector_room(layout, u32(number))
            memory, one = ctypes.create_string_buffer(room), _Opaque()
            generation = layout, name, u32(number), memory
            too_small = self._c.tm_collector_init(byref(one), *generation, c_size_t(room - 1))
            assert self._c.tm_reason(too_small) == b"room"
            library.check(self._c.tm_collector_init(byref(one), *generation, c_size_t(room)))
            self._ones.append(one)
            self._memory.append(memory)
        none = layout, name, u32(len(self._ones)), memory
        result = self._c.tm_collector_init(byref(_Opaque()), *none, c_size_t(1 << 30))
        assert self._c.tm_reason(result) == b"symbol", "there is no such generation"

    @property
    def missing(self) -> tuple[int, ...]:
        """By generation."""
        return tuple(self._c.tm_collector_missing(byref(one)) for one in self._ones)

    def add(self, index: int, symbol: bytes) -> bool:
        """Whether a symbol was new."""
        number = self._c.tm_layout_generation(byref(self._layout), u16(index))
        is_new, row = c_bool(), (u16(index), symbol, c_size_t(len(symbol)))
        for one in self._ones[:number] + self._ones[number + 1 :]:
            wrong = self._c.tm_collector_add(byref(one), *row, byref(is_new))
            assert self._c.tm_reason(wrong) == b"symbol", "a symbol of another generation"
        one = self._ones[number]
        self._library.check(self._c.tm_collector_add(byref(one), *row, byref(is_new)))
        return is_new.value

    def data(self) -> bytes:
        """The object."""
        found = ctypes.create_string_buffer(self._layout.size)
        for one in self._ones:
            self._c.tm_collector_write(byref(one), found)
        return found.raw


class CBle:
    """One end of a BLE link, with the methods of `transports.ble.protocol.BleProtocol`."""

    RING, FRAME = 1 << 14, 4096

    def __init__(
        self, library: CLibrary, *, initiator: bool, identity: int, session: int, value_max: int
    ) -> None:
        self._c, self._value_max = library.c, value_max
        self._ring = ctypes.create_string_buffer(self.RING)
        slots = CONSTANTS["BLE_WINDOW"] * (value_max - 4)
        self._slots, self._frame = (u8 * slots)(), (u8 * self.FRAME)()
        self._ble, self._out = _Ble(), (u8 * value_max)()
        window = u8(CONSTANTS["BLE_WINDOW"])
        room = self._ring, c_size_t(self.RING), self._slots, window, c_size_t(value_max)
        self._c.tm_ble_init(byref(self._ble), c_bool(initiator), u32(identity), u16(session), *room)

    @property
    def state(self) -> tuple[bool, bool, int, int]:
        """Established, failed, refused values, unconfirmed frames."""
        ble = self._ble
        return ble.is_established, ble.has_failed, ble.refused, ble.frames

    @property
    def deadline_ms(self) -> int | None:
        """When `timeout` must be called."""
        return self._ble.deadline_ms if self._ble.has_deadline else None

    def connected(self, now_ms: int) -> None:
        """Values can pass."""
        self._c.tm_ble_connected(byref(self._ble), u32(now_ms))

    def disconnected(self) -> None:
        """No more."""
        self._c.tm_ble_disconnected(byref(self._ble))

    def offer(self, frame: bytes) -> bool:
        """Whether there was room for a frame."""
        return bool(self._c.tm_ble_offer(byref(self._ble), frame, c_size_t(len(frame))))

    def pause(self, is_paused: bool) -> None:
        """Take no more values, or take them again."""
        self._c.tm_ble_pause(byref(self._ble), c_bool(is_paused))

    def timeout(self, now_ms: int) -> None:
        """Do what is due."""
        self._c.tm_ble_timeout(byref(self._ble), u32(now_ms))

    def receive_value(self, value: bytes, now_ms: int) -> list[bytes]:
        """The frames that a value completes."""
        size, frames = c_size_t(len(value)), []
        self._c.tm_ble_value(byref(self._ble), value, size, u32(now_ms))
        room = c_size_t(self.FRAME)
        while found := self._c.tm_ble_frame(byref(self._ble), self._frame, room):
            frames.append(bytes(self._frame[:found]))
        return frames

    def values_to_send(self, now_ms: int) -> list[bytes]:
        """The values that must leave now."""
        values, out = [], (self._out, c_size_t(self._value_max), u32(now_ms))
        while size := self._c.tm_ble_value_to_send(byref(self._ble), *out):
            values.append(bytes(self._out[:size]))
        return values
