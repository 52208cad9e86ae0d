"""An emulated modem with MeshCore's KISS firmware: one frame pending, TxDone, GetAirtime."""

from collections.abc import Hashable

from ternmesh.link.airtime import LoraSetting, airtime_us
from transports.serial_lora import kiss
from transports.serial_lora.emulator.modem import Action, Output, Reception, Transmit
from transports.serial_lora.meshcore import (
    AIRTIME,
    DATA,
    ERROR,
    GET_AIRTIME,
    OK,
    PAYLOAD_MAX,
    RX_META,
    SET_HARDWARE,
    SET_POWER,
    SET_RADIO,
    TX_BUSY,
    TX_DONE,
)

PREAMBLE_SYMBOLS = 16
TOO_SHORT, WRONG, UNKNOWN = 1, 2, 5


class MeshcoreModem:
    """See `EmulatedModem`."""

    def __init__(self) -> None:
        self.fail_next: list[int] = []
        self._unframer = kiss.Unframer()
        self._frequency_hz = 869_525_000
        self._radio = LoraSetting(11, 250, 1, PREAMBLE_SYMBOLS)
        self._sending = False

    @property
    def tuning(self) -> Hashable:
        """Frequency and radio setting."""
        return self._frequency_hz, self._radio

    def power_up(self) -> list[Action]:
        """It says nothing."""
        self._sending = False
        return []

    def receive_bytes(self, data: bytes) -> list[Action]:
        """Commands of the host."""
        actions: list[Action] = []
        for command, content in self._unframer.feed(data):
            if command == DATA and 0 < len(content) <= PAYLOAD_MAX:
                actions.append(self._send(content))
            elif command == SET_HARDWARE and content:
                actions.append(self._hardware(content[0], content[1:]))
        return actions

    def transmitted(self) -> list[Action]:
        """TxDone."""
        self._sending = False
        return [_output(TX_DONE, b"\x01")]

    def hear(self, heard: Reception) -> list[Action]:
        """The frame, then its quality."""
        meta = bytes([4 * heard.snr_db & 0xFF, heard.rssi_dbm & 0xFF])
        return [Output(kiss.frame(DATA, heard.payload)), _output(RX_META, meta)]

    def paused(self) -> list[Action]:
        """It never asks for a pause."""
        return []

    def _send(self, content: bytes) -> Action:
        if self.fail_next:
            return _error(self.fail_next.pop(0))
        if self._sending:
            return _error(TX_BUSY)
        self._sending = True
        return Transmit(content, airtime_us(self._radio, len(content)), listens=True)

    def _hardware(self, command: int, data: bytes) -> Action:
        if command == SET_RADIO:
            return self._set_radio(data)
        if command == SET_POWER:
            return _output(OK) if data else _error(TOO_SHORT)
        if command == GET_AIRTIME:
            if not data:
                return _error(TOO_SHORT)
            milliseconds = airtime_us(self._radio, data[0]) // 1000
            return _output(AIRTIME, milliseconds.to_bytes(4, "little"))
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
        return _output(OK)


def _output(code: int, data: bytes = b"") -> Output:
    return Output(kiss.frame(SET_HARDWARE, bytes([code]) + data))


def _error(code: int) -> Output:
    return _output(ERROR, bytes([code]))
