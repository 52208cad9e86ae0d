"""An emulated modem with MeshCore's KISS firmware: one frame pending, TxDone, GetAirtime."""

from collections.abc import Hashable

from ternmesh.link.airtime import LoraSetting, airtime_us
from transports.serial_lora import meshcore as wire
from transports.serial_lora.emulator.modem import Action, EmulatedModem, Output, Reception, Transmit
from transports.serial_lora.framing import KissUnframer, kiss_frame

PREAMBLE_SYMBOLS = 16
TOO_SHORT, WRONG, UNKNOWN = 1, 2, 5


class MeshcoreModem(EmulatedModem):
    """A modem with MeshCore's KISS firmware."""

    def __init__(self) -> None:
        super().__init__()
        self._unframer = KissUnframer()
        self._frequency_hz = 869_525_000
        self._kept = {wire.GET_RADIO: b"", wire.GET_POWER: b"\x16"}  # the answers, as set
        self._radio = LoraSetting(11, 250, 1, PREAMBLE_SYMBOLS)

    @property
    def tuning(self) -> Hashable:
        return self._frequency_hz, self._radio

    def receive_bytes(self, data: bytes) -> list[Action]:
        actions: list[Action] = []
        for command, content in self._unframer.feed(data):
            if command == wire.DATA and 0 < len(content) <= wire.PAYLOAD_MAX:
                actions.append(self._send(content))
            elif command == wire.SET_HARDWARE and content:
                actions.append(self._hardware(content[0], content[1:]))
        return actions

    def transmitted(self) -> list[Action]:
        self._sending = False
        return [_output(wire.TX_DONE, b"\x01")]

    def hear(self, heard: Reception) -> list[Action]:
        meta = bytes([4 * heard.snr_db & 0xFF, heard.rssi_dbm & 0xFF])
        return [Output(kiss_frame(wire.DATA, heard.payload)), _output(wire.RX_META, meta)]

    def _send(self, content: bytes) -> Action:
        if self.fail_next:
            return _error(self.fail_next.pop(0))
        if self._sending:
            return _error(wire.TX_BUSY)
        self._sending = True
        return Transmit(content, airtime_us(self._radio, len(content)), listens=True)

    def _hardware(self, command: int, data: bytes) -> Action:
        if command == wire.SET_RADIO:
            return self._set_radio(data)
        if command == wire.SET_POWER:
            self._kept[wire.GET_POWER] = data[:1]
            return _output(wire.OK) if data else _error(TOO_SHORT)
        if command in self._kept:
            return _output(command | 0x80, self._kept[command])
        if command == wire.GET_AIRTIME:
            if not data:
                return _error(TOO_SHORT)
            milliseconds = airtime_us(self._radio, data[0]) // 1000
            return _output(wire.AIRTIME, milliseconds.to_bytes(4, "little"))
        return _error(UNKNOWN)

    def _set_radio(self, data: bytes) -> Action:
        if len(data) < 10:
            return _error(TOO_SHORT)
        bandwidth_khz = int.from_bytes(data[4:8], "little") // 1000
        try:
            self._radio = LoraSetting(data[8], bandwidth_khz, data[9] - 4, PREAMBLE_SYMBOLS)
        except ValueError:
            return _error(WRONG)
        self._frequency_hz = int.from_bytes(data[:4], "little")
        self._kept[wire.GET_RADIO] = data[:10]
        return _output(wire.OK)


def _output(code: int, data: bytes = b"") -> Output:
    return Output(kiss_frame(wire.SET_HARDWARE, bytes([code]) + data))


def _error(code: int) -> Output:
    return _output(wire.ERROR, bytes([code]))
