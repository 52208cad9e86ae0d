"""Speaks the serial protocol of Meshtastic nodes: protobuf frames between lines of log text.

A frame is 0x94 0xC3, the length in two big-endian bytes, then a message of at most 512 bytes. This
program sends `ToRadio` messages, the node sends `FromRadio` messages. The stream has no checksum.
"""

import random
import struct
from dataclasses import replace
from functools import partial

from ternmesh import protobuf
from ternmesh.errors import WireError
from ternmesh.link.airtime import FRAME_MAX, airtime_us
from ternmesh.protobuf import Value
from transports.serial_lora.dialect import (
    Broken,
    Dialect,
    Event,
    Noise,
    Notice,
    PayloadRefused,
    Received,
    Sent,
    Write,
    error_text,
)
from transports.serial_lora.framing import LengthUnframer
from transports.serial_lora.settings import SerialLoraSettings

MAGIC = b"\x94\xc3"
MESSAGE_MAX = 512
WAKE = b"\xc3" * 32
# A Data message holds 233 bytes; the flags that the firmware adds use two of these bytes.
PAYLOAD_MAX = 231
PREAMBLE_SYMBOLS = 16  # the firmware uses at least this preamble
HEADER = 16  # bytes on the air before the Data message
DATA_OVERHEAD = 8  # port number, length of the payload, flags
SIGNATURE = 66  # bytes that firmware 2.8 adds to a broadcast where they fit (Router.cpp)
ROUTING_APP = 5
LOWEST_PRIORITY = 1  # ours wait for all others of a mesh
BROADCAST = 0xFFFFFFFF
DUTY_CYCLE_LIMIT, RATE_LIMIT = 9, 38
ERRORS = {
    1: "no route",
    2: "another node refused it",
    3: "time-out",
    4: "no radio interface",
    5: "retransmissions used up",
    6: "no such channel",
    7: "too large",
    DUTY_CYCLE_LIMIT: "its duty cycle is used up",
    32: "an unknown failure",  # this and the next two are of the queue (MeshTypes.h)
    33: "it has no radio",
    34: "its transmitter is off, or its region is not set",
    RATE_LIMIT: "too many messages in a short time",
}
HANDSHAKE_S, WAKE_S = 10.0, 0.1
HEARTBEAT_S = 300.0  # the firmware drops a serial client that sends nothing for longer
DUTY_PAUSE_S = 60.0
# While the queue of the node is full: seconds between questions, and their largest number.
ROOM_S, ROOM_TRIES_MAX = 2.0, 60

# Field numbers of meshtastic/mesh.proto.
TO_PACKET, TO_WANT_CONFIG, TO_HEARTBEAT = 1, 3, 7
FROM_PACKET, FROM_MY_INFO, FROM_CONFIG, FROM_COMPLETE, FROM_REBOOTED = 2, 3, 5, 7, 8
FROM_LOG, FROM_QUEUE, FROM_NOTICE = 6, 11, 16
MY_NODE = 1
PACKET_FROM, PACKET_TO, PACKET_DATA, PACKET_ID = 1, 2, 4, 6
PACKET_SNR, PACKET_HOPS, PACKET_PRIORITY, PACKET_RSSI = 8, 9, 11, 12
DATA_PORT, DATA_PAYLOAD, DATA_REQUEST = 1, 2, 6
QUEUE_RESULT, QUEUE_FREE, QUEUE_MAX, QUEUE_PACKET = 1, 2, 3, 4
ROUTING_ERROR = 3
NOTICE_TEXT = 4
CONFIG_LORA = 6  # of config.proto
# Region, whether it transmits, whether it has a preset, which, spreading factor, bandwidth, rate
LORA_NUMBERS = (7, 9, 1, 2, 4, 3, 5)
REGION_2_4_GHZ = 13  # where presets have other bandwidths
# Spreading factor, bandwidth in kHz and coding rate 1 to 4 of the presets (MeshRadio.h)
_FAST = [(11, 250, 1), (12, 125, 4), None, (10, 250, 1), (9, 250, 1), (8, 250, 1), (7, 250, 1)]
_OF_2_8 = [(9, 125, 1), (10, 125, 1), (7, 62, 2), (8, 62, 2), (7, 16, 1), (8, 16, 2), (9, 500, 1)]
PRESETS = dict(enumerate([*_FAST, (11, 125, 4), (7, 500, 1), (11, 500, 4), *_OF_2_8]))
# Finds messages, as their protobuf fields, between lines of log text
MeshtasticUnframer = partial(LengthUnframer, MAGIC, "big", MESSAGE_MAX, protobuf.fields)


def frame(message: bytes) -> bytes:
    """Return `message` framed for the serial port."""
    return MAGIC + len(message).to_bytes(2, "big") + message


def packet(packet_id: int, port: int, payload: bytes) -> bytes:
    """A MeshPacket of ours to all; further fields may follow it."""
    data = protobuf.number_field(DATA_PORT, port)
    data += protobuf.bytes_field(DATA_PAYLOAD, payload)
    return (
        protobuf.fixed32_field(PACKET_TO, BROADCAST)
        + protobuf.bytes_field(PACKET_DATA, data)
        + protobuf.fixed32_field(PACKET_ID, packet_id)
    )


class Meshtastic(Dialect[dict[int, Value]]):
    """The dialect of Meshtastic nodes. Set the radio parameters with the Meshtastic tools."""

    payload_max = PAYLOAD_MAX
    overhead = HEADER + DATA_OVERHEAD
    tries_max = 3

    def __init__(self, settings: SerialLoraSettings, rng: random.Random) -> None:
        super().__init__(settings, MeshtasticUnframer())
        preamble = max(settings.radio.preamble_symbols, PREAMBLE_SYMBOLS)
        self._radio = replace(settings.radio, preamble_symbols=preamble)
        self._rng = rng
        self._nonce = 0  # of the last configuration request; 0 after the answer
        self._node = 0  # the number of the connected node
        self._packet_id = 0  # the id of the packet in flight
        self._has_room = True  # whether the node's queue had room at its last report
        self._awake = False  # whether the handshake is complete

    @property
    def idle(self) -> bool:
        """Whether the node has accepted the last packet and has room for another packet."""
        return super().idle and self._has_room

    def airtime_us(self, payload_bytes: int) -> int:
        """The time on air in microseconds; a packet with room for a signature is signed."""
        whole = payload_bytes + self.overhead
        # One byte less where the port number is small: such a packet has room, too.
        whole += SIGNATURE * (whole - 1 + SIGNATURE <= FRAME_MAX)
        return airtime_us(self._radio, min(whole, FRAME_MAX))

    def send(self, payload: bytes, now: float) -> list[Event]:
        """Broadcast without acknowledgement, because the reliable link detects losses itself."""
        self._packet_id = self._rng.randrange(1, 1 << 32)
        message = packet(self._packet_id, self._settings.port_number, payload)
        message += protobuf.number_field(PACKET_PRIORITY, LOWEST_PRIORITY)
        if self._settings.hop_limit:
            message += protobuf.number_field(PACKET_HOPS, self._settings.hop_limit)
        command = _to_radio(TO_PACKET, message)
        return self._launch(payload, command, now, self._settings.answer_margin_s)

    def handle_timeout(self, now: float) -> list[Event]:
        """Continue the handshake, restart after a missing answer, or send a heartbeat."""
        if not self.ready:
            return self._handshake(now)
        if self._in_flight is not None:
            return self._restart("the node did not answer", now)
        self._tries = 0 if self._has_room else self._tries + 1
        if self._tries > ROOM_TRIES_MAX:
            return self._restart("the queue of the node has stayed full", now)
        self._rest(now)
        return [Write(_to_radio(TO_HEARTBEAT, b""))]

    def _set_up(self, now: float) -> list[Event]:
        """Wake the node. The handshake follows after `WAKE_S`."""
        self._awake = False
        self.deadline = now + WAKE_S
        return [Write(WAKE)]

    def _handshake(self, now: float) -> list[Event]:
        self._nonce = self._nonce or self._rng.randrange(1, 1 << 32)  # the first answer may be late
        request = frame(protobuf.number_field(TO_WANT_CONFIG, self._nonce))
        failure = "no Meshtastic node answers on this port"
        return self._attempt(request, now + HANDSHAKE_S, failure)

    def _message(self, message: dict[int, Value], now: float) -> list[Event]:
        try:
            return self._from_radio(message, now)
        except WireError:
            return [Noise()]

    def _from_radio(self, message: dict[int, Value], now: float) -> list[Event]:
        if self._nonce and not {FROM_PACKET, FROM_LOG, FROM_QUEUE, FROM_NOTICE} & message.keys():
            self.deadline = now + HANDSHAKE_S  # it tells of all nodes that it knows
        if (info := protobuf.data(message, FROM_MY_INFO)) is not None:
            self._node = protobuf.number(protobuf.fields(info), MY_NODE)
        config = protobuf.fields(protobuf.data(message, FROM_CONFIG) or b"")
        if (lora := protobuf.data(config, CONFIG_LORA)) is not None:
            wrong = self._wrong(protobuf.fields(lora))
            return [Broken(wrong)] if wrong else []
        if (notice := protobuf.data(message, FROM_NOTICE)) is not None:
            content = protobuf.data(protobuf.fields(notice), NOTICE_TEXT) or b""
            text = content.decode(errors="replace")
            return [Notice("".join(filter(str.isprintable, text)))]
        if (queue := protobuf.data(message, FROM_QUEUE)) is not None:
            return self._queue_status(protobuf.fields(queue), now)
        if (received := protobuf.data(message, FROM_PACKET)) is not None:
            return self._packet(protobuf.fields(received), now)
        if protobuf.number(message, FROM_REBOOTED) and self._awake:
            return self._restart("the node has restarted", now)
        if self._nonce and protobuf.number(message, FROM_COMPLETE) == self._nonce:
            self._nonce = 0
            self._has_room = True
            self._awake = True
            self.ready = True
            self._rest(now)
        return []

    def _wrong(self, lora: dict[int, Value]) -> str:
        """Why the node cannot be used with its radio settings; empty where it can."""
        numbers = [protobuf.number(lora, number) for number in LORA_NUMBERS]
        region, transmits, has_preset, preset, factor, bandwidth_khz, rate = numbers
        if not region:
            return "the node has no region: `meshtastic --set lora.region EU_868`, or yours"
        if not transmits:
            return "the node's transmitter is off: `meshtastic --set lora.tx_enabled true`"
        radio = self._radio
        ours = (radio.spreading_factor, int(radio.bandwidth_khz), radio.coding_rate)
        node = (factor, bandwidth_khz, rate - 4)
        if has_preset:
            if (known := PRESETS.get(preset)) is None:
                return f"the node's modem preset {preset} is not known here: choose another"
            node = (*known[:2], max(known[2], rate - 4))  # a higher rate of the owner holds
        if node == ours or region == REGION_2_4_GHZ:
            return ""
        return (
            f"the node's spreading_factor, bandwidth_khz and coding_rate are {node}, those of the "
            f"settings {ours}: make them equal, or airtime is counted wrongly"
        )

    def _queue_status(self, status: dict[int, Value], now: float) -> list[Event]:
        """Handle a queue report: the free places in the queue, and the outcome of a packet."""
        result = protobuf.number(status, QUEUE_RESULT)
        ours = self._is_in_flight(protobuf.number(status, QUEUE_PACKET))
        if result == 0 or not ours:
            self._has_room = protobuf.number(status, QUEUE_FREE) > 0
        return self._outcome(result, now) if ours else []

    def _is_in_flight(self, packet_id: int) -> bool:
        return self._in_flight is not None and packet_id == self._packet_id

    def _outcome(self, error: int, now: float) -> list[Event]:
        outcome: Sent | PayloadRefused = Sent()
        if error:
            is_passing = error in (DUTY_CYCLE_LIMIT, RATE_LIMIT)
            again_in_s = DUTY_PAUSE_S / self._settings.speed if is_passing else None
            outcome = PayloadRefused(f"routing {error_text(error, ERRORS)}", again_in_s)
        settled = self._settle(outcome)
        self._rest(now)
        return settled

    def _rest(self, now: float) -> None:
        """Set the time of the next heartbeat. The node answers a heartbeat with a queue report."""
        self.deadline = now + (HEARTBEAT_S if self._has_room else ROOM_S)

    def _packet(self, received: dict[int, Value], now: float) -> list[Event]:
        content = protobuf.data(received, PACKET_DATA)
        if content is None:
            return []  # encrypted with a key that the node does not have
        data = protobuf.fields(content)
        port = protobuf.number(data, DATA_PORT)
        payload = protobuf.data(data, DATA_PAYLOAD)
        if port == ROUTING_APP:
            error = protobuf.number(protobuf.fields(payload or b""), ROUTING_ERROR)
            if error == 0:
                return []
            if self._is_in_flight(protobuf.number(data, DATA_REQUEST)):
                return self._outcome(error, now)
            return [Noise()]
        is_own = protobuf.number(received, PACKET_FROM) == self._node
        if port != self._settings.port_number or not payload or is_own:
            return []
        rssi = protobuf.signed(protobuf.number(received, PACKET_RSSI))
        snr_bits = protobuf.number(received, PACKET_SNR).to_bytes(8, "little")[:4]
        return [Received(payload, float(rssi), struct.unpack("<f", snr_bits)[0])]


def _to_radio(field: int, message: bytes) -> bytes:
    return frame(protobuf.bytes_field(field, message))
