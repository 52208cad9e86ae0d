"""An emulated Meshtastic node on its serial port: handshake, queue with credit, log text."""

import struct
from collections.abc import Hashable

from ternmesh import protobuf
from ternmesh.errors import WireError
from ternmesh.link.airtime import FRAME_MAX, LoraSetting
from ternmesh.protobuf import Value
from transports.serial_lora import meshtastic as wire
from transports.serial_lora.emulator.modem import Action, EmulatedModem, Output, Reception

QUEUE_MAX = 16
TOO_LARGE = 7
REGION = 3  # EU_868
DISABLED = 34  # in the status of the queue
FLAGS = b"\x48\x00"  # field 9 of Data, which the firmware adds
SIGNATURE = protobuf.bytes_field(10, bytes(wire.SIGNATURE - 2))  # so does 2.8, where it fits
LOG = b"INFO  | 00:00:00 1 [Router] %b\r\n"


class MeshtasticModem(EmulatedModem):
    """A Meshtastic node; `radio` is the setting of its own tools."""

    def __init__(self, node: int, radio: LoraSetting) -> None:
        super().__init__()
        self._node = node
        self._radio = radio
        self.region = REGION  # 0: not set, as it is delivered
        self._unframer = wire.MeshtasticUnframer()

    @property
    def tuning(self) -> Hashable:
        """The radio setting, which stands for the channel as well."""
        return "meshtastic", self._radio

    def power_up(self) -> list[Action]:
        self._unframer = wire.MeshtasticUnframer()
        super().power_up()
        boot = Output(LOG % b"an emulated node starts")
        return [boot, _from_radio(protobuf.number_field(wire.FROM_REBOOTED, 1))]

    def receive_bytes(self, data: bytes) -> list[Action]:
        actions: list[Action] = []
        for message in self._unframer.feed(data):
            try:
                actions += self._message(message)
            except WireError:
                actions.append(Output(LOG % b"ignored a malformed message"))
        return actions

    def transmitted(self) -> list[Action]:
        self._sending = False
        return [*self._send_next(self._radio), self._status()]

    def hear(self, heard: Reception) -> list[Action]:
        to, sender, packet_id = struct.unpack_from("<III", heard.payload)
        packet = protobuf.fixed32_field(wire.PACKET_FROM, sender)
        packet += protobuf.fixed32_field(wire.PACKET_TO, to)
        packet += protobuf.bytes_field(wire.PACKET_DATA, heard.payload[wire.HEADER :])
        packet += protobuf.fixed32_field(wire.PACKET_ID, packet_id)
        snr = int.from_bytes(struct.pack("<f", heard.snr_db), "little")
        packet += protobuf.fixed32_field(wire.PACKET_SNR, snr)
        packet += protobuf.number_field(wire.PACKET_RSSI, heard.rssi_dbm & (1 << 64) - 1)
        received = _from_radio(protobuf.bytes_field(wire.FROM_PACKET, packet))
        return [Output(LOG % b"received a packet"), received]

    def _message(self, message: dict[int, Value]) -> list[Action]:
        if nonce := protobuf.number(message, wire.TO_WANT_CONFIG):
            node = protobuf.number_field(wire.MY_NODE, self._node)
            radio = self._radio
            values = (radio.spreading_factor, int(radio.bandwidth_khz), radio.coding_rate + 4)
            numbers = (self.region, 1, 0, 0, *values)
            content = b"".join(map(protobuf.number_field, wire.LORA_NUMBERS, numbers))
            lora = protobuf.bytes_field(wire.CONFIG_LORA, content)
            return [
                _from_radio(protobuf.bytes_field(wire.FROM_MY_INFO, node)),
                _from_radio(protobuf.bytes_field(wire.FROM_CONFIG, lora)),
                _from_radio(protobuf.number_field(wire.FROM_COMPLETE, nonce)),
            ]
        if protobuf.data(message, wire.TO_HEARTBEAT) is not None:
            return [self._status()]
        if (packet := protobuf.data(message, wire.TO_PACKET)) is not None:
            return self._send(protobuf.fields(packet))
        return []

    def _send(self, packet: dict[int, Value]) -> list[Action]:
        data = protobuf.data(packet, wire.PACKET_DATA) or b""
        packet_id = protobuf.number(packet, wire.PACKET_ID) & 0xFFFFFFFF
        payload = struct.pack("<III4x", wire.BROADCAST, self._node, packet_id) + data + FLAGS
        payload += SIGNATURE * (len(payload + SIGNATURE) <= FRAME_MAX)
        if len(payload) > FRAME_MAX:
            return self._refuse(packet_id, TOO_LARGE)
        if not self.region:
            return [self._status(packet_id, DISABLED)]
        if self.fail_next:
            return self._refuse(packet_id, self.fail_next.pop(0))
        if len(self._queue) >= QUEUE_MAX:
            return [self._status(packet_id, 1)]
        self._queue.append(payload)
        return [*self._send_next(self._radio), self._status(packet_id)]

    def _refuse(self, packet_id: int, error: int) -> list[Action]:
        """Report as the firmware does: by a routing message, and by the status of the queue."""
        data = protobuf.number_field(wire.DATA_PORT, wire.ROUTING_APP)
        routing = protobuf.number_field(wire.ROUTING_ERROR, error)
        data += protobuf.bytes_field(wire.DATA_PAYLOAD, routing)
        data += protobuf.fixed32_field(wire.DATA_REQUEST, packet_id)
        packet = protobuf.fixed32_field(wire.PACKET_FROM, self._node)
        packet += protobuf.bytes_field(wire.PACKET_DATA, data)
        received = _from_radio(protobuf.bytes_field(wire.FROM_PACKET, packet))
        return [received, self._status(packet_id, error)]

    def _status(self, packet_id: int = 0, result: int = 0) -> Output:
        status = protobuf.number_field(wire.QUEUE_RESULT, result)
        status += protobuf.number_field(wire.QUEUE_FREE, QUEUE_MAX - len(self._queue))
        status += protobuf.number_field(wire.QUEUE_MAX, QUEUE_MAX)
        status += protobuf.number_field(wire.QUEUE_PACKET, packet_id)
        return _from_radio(protobuf.bytes_field(wire.FROM_QUEUE, status))


def _from_radio(message: bytes) -> Output:
    return Output(wire.frame(message))
