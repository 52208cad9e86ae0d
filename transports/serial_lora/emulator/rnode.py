"""An emulated RNode: KISS, settings that it confirms, a queue, CMD_READY."""

from collections.abc import Hashable

from ternmesh.link.airtime import LoraSetting
from transports.serial_lora import rnode as wire
from transports.serial_lora.emulator.modem import Action, EmulatedModem, Output, Reception
from transports.serial_lora.framing import KissUnframer, kiss_frame
from transports.serial_lora.rnode import RnodeCommand

QUEUE_MAX = 32
TX_FAILED = 2
OSCILLATOR_HZ = 32_000_000  # of an SX127x
_SIZES = {
    RnodeCommand.FREQUENCY: 4,
    RnodeCommand.BANDWIDTH: 4,
    RnodeCommand.POWER: 1,
    RnodeCommand.SPREADING_FACTOR: 1,
    RnodeCommand.CODING_RATE: 1,
}


class RnodeModem(EmulatedModem):
    """An RNode of a version that reports READY by itself, too."""

    def __init__(self, power_max_dbm: int = 22, *, is_locked: bool = False) -> None:
        super().__init__()
        self._power_max_dbm = power_max_dbm  # that the firmware allows
        self._is_locked = is_locked
        self._unframer = KissUnframer()
        self._settings: dict[int, bytes] = {}
        self._steps = 0  # of 61.035 Hz, to which the chip is tuned
        self._on = False

    @property
    def tuning(self) -> Hashable:
        return (self._steps, self._radio()) if self._on else None

    def power_up(self) -> list[Action]:
        """Report the reset; settings of a host are not kept."""
        self._settings.clear()
        self._on = False
        super().power_up()
        return [_output(RnodeCommand.RESET, b"\xf8")]

    def receive_bytes(self, data: bytes) -> list[Action]:
        actions: list[Action] = []
        for command, content in self._unframer.feed(data):
            actions += self._command(command, content)
        return actions

    def transmitted(self) -> list[Action]:
        self._sending = False
        return [_output(RnodeCommand.READY, wire.ON), *self._send_next(self._radio())]

    def hear(self, heard: Reception) -> list[Action]:
        """Output the signal quality, then the frame without the firmware's header."""
        snr = int(heard.snr_db / wire.SNR_STEP_DB).to_bytes(1, signed=True)
        return [
            _output(RnodeCommand.RSSI, bytes([heard.rssi_dbm + wire.RSSI_OFFSET_DBM])),
            _output(RnodeCommand.SNR, snr),
            _output(RnodeCommand.DATA, heard.payload[wire.HEADER :]),
        ]

    def _command(self, command: int, content: bytes) -> list[Action]:
        if command == RnodeCommand.DETECT and content == wire.DETECT_ASK:
            return [_output(RnodeCommand.DETECT, wire.DETECT_ANSWER)]
        if command == RnodeCommand.READY:
            return [_output(RnodeCommand.READY, wire.ON if len(self._queue) < QUEUE_MAX else b"\0")]
        if command == RnodeCommand.STATE and content == wire.ON:
            return self._start()
        if command in _SIZES and len(content) == _SIZES[RnodeCommand(command)]:
            self._settings[command] = self._as_set(command, content)
            return [_output(RnodeCommand(command), self._settings[command])]
        if command == RnodeCommand.DATA and content and self._on:
            return self._data(content)
        return []

    def _start(self) -> list[Action]:
        """Turn the radio on, unless it is locked or lacks a setting; two answers."""
        is_locked = self._is_locked or len(self._settings) < len(_SIZES)
        self._on = self._on or not (is_locked or self._radio() is None)
        state = _output(RnodeCommand.STATE, bytes([self._on]))
        has_failed = not (self._on or is_locked)
        return [_output(RnodeCommand.ERROR, b"\x01") if has_failed else state, state]

    def _as_set(self, command: int, content: bytes) -> bytes:
        """What the firmware reads back: with its radio on, the frequency is that of the chip."""
        value = int.from_bytes(content, "big")
        if command == RnodeCommand.FREQUENCY:
            self._steps = (value << 19) // OSCILLATOR_HZ
            value = (self._steps * OSCILLATOR_HZ) >> 19 if self._on else value
        if command == RnodeCommand.POWER:
            value = min(value, self._power_max_dbm)
        return value.to_bytes(len(content), "big")

    def _data(self, content: bytes) -> list[Action]:
        if self.fail_next:
            return [_output(RnodeCommand.ERROR, bytes([self.fail_next.pop(0)]))]
        if len(content) > wire.PAYLOAD_MAX:
            return [_output(RnodeCommand.ERROR, bytes([TX_FAILED]))]
        if len(self._queue) >= QUEUE_MAX:
            return [_output(RnodeCommand.ERROR, bytes([wire.QUEUE_FULL]))]
        self._queue.append(b"\0" * wire.HEADER + content)
        return self._send_next(self._radio())

    def _radio(self) -> LoraSetting | None:
        try:
            bandwidth = int.from_bytes(self._settings[RnodeCommand.BANDWIDTH], "big") / 1000
            factor = self._settings[RnodeCommand.SPREADING_FACTOR][0]
            rate = self._settings[RnodeCommand.CODING_RATE][0] - 4
            return wire.with_long_preamble(LoraSetting(factor, bandwidth, rate))
        except (KeyError, ValueError):
            return None


def _output(command: RnodeCommand, content: bytes) -> Output:
    return Output(kiss_frame(command, content))
