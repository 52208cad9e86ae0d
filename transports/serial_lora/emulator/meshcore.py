"""An emulated MeshCore companion: channels, and a queue of what arrived. Nothing is enciphered."""

import hashlib
import hmac
import struct
from collections import deque
from collections.abc import Hashable
from functools import partial

from ternmesh.link.airtime import LoraSetting
from transports.serial_lora import meshcore as wire
from transports.serial_lora.emulator import modem
from transports.serial_lora.framing import LengthUnframer

ARRIVED_MAX, SEEN_MAX, SLOTS = 16, 160, 40  # of the firmware
POWER_DBM, KHZ = 14, 869_525
HEAD = b"\x18" + bytes(5)  # of a datagram: its type, region codes, and an empty path
CommandUnframer = partial(LengthUnframer, b"<", "little", wire.FRAME_MAX, bytes)
_DATA = struct.Struct("<HB")  # application, length


class MeshcoreModem(modem.EmulatedModem):
    """A companion; it hears each datagram once, however many repeaters send it on."""

    def __init__(self, radio: LoraSetting) -> None:
        super().__init__()
        self.channels = {slot: bytes(48) for slot in range(SLOTS)}  # name and secret
        self._radio = wire.with_preamble(radio)
        self._unframer = CommandUnframer()
        self._seen: deque[bytes] = deque(maxlen=SEEN_MAX)
        self._arrived: deque[bytes] = deque(maxlen=ARRIVED_MAX)  # for the host

    @property
    def tuning(self) -> Hashable:
        return "meshcore", self._radio

    def receive_bytes(self, data: bytes) -> list[modem.Action]:
        actions: list[modem.Action] = []
        for command in self._unframer.feed(data):
            try:
                answer = self._answer(command[0], command[1:])
            except (struct.error, IndexError, KeyError, ValueError):
                answer = bytes([wire.ERROR, wire.ILLEGAL])
            actions += [_output(answer), *self._send_next(self._radio)]
        return actions

    def hear(self, heard: modem.Reception) -> list[modem.Action]:
        payload = heard.payload[len(HEAD) :]
        if payload in self._seen:
            return []
        self._seen.append(payload)
        for slot, channel in self.channels.items():
            if any(channel) and _sealed(channel[32:], payload[3:]) == payload:
                application, size = _DATA.unpack_from(payload, 3)
                head = bytes([wire.DATAGRAM, 4 * heard.snr_db & 0xFF, 0, 0, slot, 0])
                data = payload[3 + _DATA.size :][:size]
                self._arrived.append(head + _DATA.pack(application, size) + data)
                return [_output(bytes([wire.WAITING]))]
        return []

    def transmitted(self) -> list[modem.Action]:
        self._sending = False
        return self._send_next(self._radio)

    def _answer(self, code: int, data: bytes) -> bytes:
        radio = self._radio
        if code == wire.DEVICE_QUERY:
            return bytes([wire.DEVICE]) + wire.DEVICE_FORM.pack(wire.WITH_165_BYTES, b"v1.16.0")
        if code == wire.APP_START:
            hz, rate = int(radio.bandwidth_khz * 1000), radio.coding_rate + 4
            numbers = POWER_DBM, KHZ, hz, radio.spreading_factor, rate
            return bytes([wire.SELF]) + wire.SELF_FORM.pack(*numbers) + b"emulated"
        if code == wire.GET_CHANNEL:
            return bytes([wire.CHANNEL, data[0]]) + self.channels[data[0]]
        if code == wire.NEXT_MESSAGE:
            return self._arrived.popleft() if self._arrived else bytes([wire.NO_MESSAGE])
        error = 0
        if code == wire.SET_CHANNEL:
            self.channels[data[0]] = data[1:]
        elif code == wire.SEND:
            error = self._datagram(data)
        elif code != wire.SET_SCOPE:
            error = wire.UNKNOWN
        return bytes([wire.ERROR, error] if error else [wire.OK])

    def _datagram(self, data: bytes) -> int:
        """Queue a datagram; an error code, or 0."""
        slot, _, application = struct.unpack_from("<BBH", data)
        if self.fail_next:
            return self.fail_next.pop(0)
        if not application or len(data) > 4 + 165:
            return wire.ILLEGAL
        if len(self._queue) >= ARRIVED_MAX:
            return wire.TABLE_FULL
        plain = _DATA.pack(application, len(data) - 4) + data[4:]
        payload = _sealed(self.channels[slot][32:], plain)
        self._seen.append(payload)
        self._queue.append(HEAD + payload)
        return 0


def _sealed(secret: bytes, plain: bytes) -> bytes:
    """A datagram's payload: the hash of its channel, a MAC and whole blocks."""
    padded = plain.ljust(-(-len(plain) // wire.BLOCK) * wire.BLOCK, b"\0")
    mac = hmac.digest(secret + bytes(16), padded, "sha256")[:2]
    return hashlib.sha256(secret).digest()[:1] + mac + padded


def _output(answer: bytes) -> modem.Output:
    return modem.Output(b">" + len(answer).to_bytes(2, "little") + answer)
