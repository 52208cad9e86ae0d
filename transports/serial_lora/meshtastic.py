"""Meshtastic nodes on their serial port: frames of protobuf between lines of log text.

A frame is 0x94 0xC3, the length in two bytes with the higher one first, then a message of at most
512 bytes: `ToRadio` from us, `FromRadio` to us. The stream has no checksum.
"""

import random
import struct
from dataclasses import replace

from ternmesh.errors import WireError
from ternmesh.link.airtime import airtime_us
from transports.serial_lora import protobuf
from transports.serial_lora.dialect import Broken, Event, Noise, Received, Refused, Sent, Write
from transports.serial_lora.protobuf import Value
from transports.serial_lora.settings import SerialLoraSettings

MAGIC = b"\x94\xc3"
MESSAGE_MAX = 512
WAKE = b"\xc3" * 32
# A Data message holds 233 bytes; its flags, which the firmware adds, take two of them.
PAYLOAD_MAX = 231
PREAMBLE_SYMBOLS = 16  # the firmware's, whatever is set here
HEADER = 16  # bytes on the air before the Data message
DATA_OVERHEAD = 8  # port number, length of the payload, flags
PRIVATE_APP, ROUTING_APP = 256, 5
EVERYBODY = 0xFFFFFFFF
DUTY_CYCLE_LIMIT = 9
ERRORS = {
    1: "no route",
    3: "time-out",
    4: "no radio interface",
    5: "retransmissions used up",
    6: "no such channel",
    7: "too large",
    DUTY_CYCLE_LIMIT: "its duty cycle is used up",
}
HANDSHAKE_S, WAKE_S = 10.0, 0.1
HEARTBEAT_S = 300.0  # a serial client that is silent for longer is forgotten
DUTY_PAUSE_S = 60.0
TRIES_MAX = 3
ROOM_S, ROOM_TRIES_MAX = 2.0, 60  # how often a node with a full queue is asked for room

# Field numbers of meshtastic/mesh.proto.
TO_PACKET, TO_WANT_CONFIG, TO_HEARTBEAT = 1, 3, 7
FROM_PACKET, FROM_MY_INFO, FROM_COMPLETE, FROM_REBOOTED, FROM_QUEUE = 2, 3, 7, 8, 11
MY_NODE = 1
PACKET_FROM, PACKET_TO, PACKET_DATA, PACKET_ID = 1, 2, 4, 6
PACKET_SNR, PACKET_HOPS, PACKET_RSSI = 8, 9, 12
DATA_PORT, DATA_PAYLOAD, DATA_REQUEST = 1, 2, 6
QUEUE_RESULT, QUEUE_FREE, QUEUE_MAX, QUEUE_PACKET = 1, 2, 3, 4
ROUTING_ERROR = 3


def frame(message: bytes) -> bytes:
    """A message as it goes through the serial port."""
    return MAGIC + len(message).to_bytes(2, "big") + message


class Unframer:
    """Finds the messages in a stream; log text between them is passed over."""

    def __init__(self) -> None:
        self.malformed = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[int, Value]]:
        """The fields of the messages that `data` completes."""
        self._buffer += data
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def flush(self) -> list[dict[int, Value]]:
        """What is still found when the incomplete message at the front is given up."""
        messages = []
        while self._buffer:
            del self._buffer[:1]
            messages += self.feed(b"")
        return messages

    def _next(self) -> dict[int, Value] | None:
        buffer = self._buffer
        while True:
            start = buffer.find(MAGIC)
            if start < 0:
                del buffer[: len(buffer) - buffer.endswith(MAGIC[:1])]
                return None
            del buffer[:start]
            size = int.from_bytes(buffer[2:4], "big")
            if len(buffer) < 4 or len(buffer) < 4 + size <= 4 + MESSAGE_MAX:
                return None
            try:
                if size > MESSAGE_MAX:
                    raise WireError("size", "a message that is too long")
                message = protobuf.fields(bytes(buffer[4 : 4 + size]))
            except WireError:
                self.malformed += 1
                del buffer[:1]  # It only looked like a message: one may begin within it.
                continue
            del buffer[: 4 + size]
            return message


class Meshtastic:
    """See `Dialect`. The node must be tuned with Meshtastic's own tools."""

    payload_max = PAYLOAD_MAX

    def __init__(self, settings: SerialLoraSettings, rng: random.Random | None = None) -> None:
        self.deadline: float | None = None
        self.ready = False
        self._settings = settings
        preamble = max(settings.radio.preamble_symbols, PREAMBLE_SYMBOLS)
        self._radio = replace(settings.radio, preamble_symbols=preamble)
        self._rng = rng or random.Random()
        self._unframer = Unframer()
        self._malformed = 0
        self._tries = 0
        self._nonce = 0
        self._node = 0  # our own number
        self._packet = 0  # id of the packet in flight, 0 for none
        self._free = True  # whether the node's queue has room, as far as it said
        self._awake = False

    @property
    def idle(self) -> bool:
        """Whether the node has taken the last packet and has room for another."""
        return self.ready and not self._packet and self._free

    def airtime_us(self, payload_bytes: int) -> int:
        """The time on air of a payload with Meshtastic's header, in microseconds."""
        return airtime_us(self._radio, payload_bytes + HEADER + DATA_OVERHEAD)

    def start(self, now: float) -> list[Event]:
        """Wake the node, and ask for its configuration a moment later."""
        self.ready = self._awake = False
        self._packet = 0
        self._tries = 0
        self.deadline = now + WAKE_S
        return [Write(WAKE)]

    def send(self, payload: bytes, now: float) -> list[Event]:
        """To everybody, without acknowledgement: the link above knows better what is missing."""
        assert self.idle
        self._packet = self._rng.randrange(1, 1 << 32)
        data = protobuf.number_field(DATA_PORT, PRIVATE_APP)
        data += protobuf.bytes_field(DATA_PAYLOAD, payload)
        packet = protobuf.fixed32_field(PACKET_TO, EVERYBODY)
        packet += protobuf.bytes_field(PACKET_DATA, data)
        packet += protobuf.fixed32_field(PACKET_ID, self._packet)
        if self._settings.hop_limit:
            packet += protobuf.number_field(PACKET_HOPS, self._settings.hop_limit)
        air_s = self.airtime_us(len(payload)) / 1e6 / self._settings.speed
        self.deadline = now + air_s + self._settings.answer_margin_s
        return [_to_radio(TO_PACKET, packet)]

    def receive_bytes(self, data: bytes, now: float) -> list[Event]:
        """Take what the node says."""
        return self._take(self._unframer.feed(data), now)

    def line_idle(self, now: float) -> list[Event]:
        """Give up an incomplete message."""
        return self._take(self._unframer.flush(), now)

    def handle_timeout(self, now: float) -> list[Event]:
        """Go on with the handshake, keep the connection awake, or give the packet up."""
        if not self.ready:
            return self._handshake(now)
        if self._packet:
            return [Refused("the node did not answer"), *self.start(now)]
        self._tries = 0 if self._free else self._tries + 1
        if self._tries > ROOM_TRIES_MAX:
            return self.start(now)
        self._rest(now)
        return [_to_radio(TO_HEARTBEAT, b"")]

    def _handshake(self, now: float) -> list[Event]:
        self._tries += 1
        if self._tries > TRIES_MAX:
            return [Broken("no Meshtastic node answers on this port")]
        self._nonce = self._rng.randrange(1, 1 << 32)
        self.deadline = now + HANDSHAKE_S
        return [Write(frame(protobuf.number_field(TO_WANT_CONFIG, self._nonce)))]

    def _take(self, messages: list[dict[int, Value]], now: float) -> list[Event]:
        events: list[Event] = []
        for message in messages:
            try:
                events += self._message(message, now)
            except WireError:
                self._unframer.malformed += 1
        new = self._unframer.malformed - self._malformed
        self._malformed += new
        return events + [Noise("bytes that are no message")] * new

    def _message(self, message: dict[int, Value], now: float) -> list[Event]:
        if (info := protobuf.data(message, FROM_MY_INFO)) is not None:
            self._node = protobuf.number(protobuf.fields(info), MY_NODE)
        if (queue := protobuf.data(message, FROM_QUEUE)) is not None:
            return self._queue(protobuf.fields(queue), now)
        if (packet := protobuf.data(message, FROM_PACKET)) is not None:
            return self._heard(protobuf.fields(packet), now)
        if protobuf.number(message, FROM_REBOOTED) and self._awake:
            lost: list[Event] = [Refused("the node has restarted")] if self._packet else []
            return lost + self.start(now)
        if self._nonce and protobuf.number(message, FROM_COMPLETE) == self._nonce:
            self._nonce = 0
            self.ready = self._free = self._awake = True
            self._rest(now)
        return []

    def _queue(self, status: dict[int, Value], now: float) -> list[Event]:
        """The node's credit: how many more packets it takes, and what became of this one."""
        result = protobuf.number(status, QUEUE_RESULT)
        packet = protobuf.number(status, QUEUE_PACKET)
        if result == 0 or packet != self._packet:
            self._free = protobuf.number(status, QUEUE_FREE) > 0
        if not self._packet or packet != self._packet:
            return []
        return [self._settle(result, now)]

    def _settle(self, error: int, now: float) -> Event:
        self._packet = 0
        self._rest(now)
        if error == 0:
            return Sent()
        again = DUTY_PAUSE_S / self._settings.speed if error == DUTY_CYCLE_LIMIT else None
        return Refused(_sentence(error), again)

    def _rest(self, now: float) -> None:
        """Until the next packet, keep the connection awake; a heartbeat also asks for room."""
        self.deadline = now + (HEARTBEAT_S if self._free else ROOM_S)

    def _heard(self, packet: dict[int, Value], now: float) -> list[Event]:
        content = protobuf.data(packet, PACKET_DATA)
        if content is None:
            return []  # encrypted with a key that the node has not
        found = protobuf.fields(content)
        port, payload = protobuf.number(found, DATA_PORT), protobuf.data(found, DATA_PAYLOAD)
        if port == ROUTING_APP:
            error = protobuf.number(protobuf.fields(payload or b""), ROUTING_ERROR)
            if error == 0:
                return []
            if self._packet and protobuf.number(found, DATA_REQUEST) == self._packet:
                return [self._settle(error, now)]
            return [Noise(_sentence(error))]
        if port != PRIVATE_APP or not payload or protobuf.number(packet, PACKET_FROM) == self._node:
            return []
        rssi = protobuf.number(packet, PACKET_RSSI)
        snr = struct.unpack("<f", protobuf.number(packet, PACKET_SNR).to_bytes(8, "little")[:4])[0]
        signed = rssi - (1 << 64) if rssi >> 63 else rssi
        return [Received(payload, float(signed), snr)]


def _to_radio(field: int, message: bytes) -> Write:
    return Write(frame(protobuf.bytes_field(field, message)))


def _sentence(error: int) -> str:
    return f"routing error {error}, {ERRORS.get(error, 'of a kind not known here')}"
