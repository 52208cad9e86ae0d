"""An emulated RNode: KISS, settings that it repeats, a queue, CMD_READY."""

from collections import deque
from collections.abc import Hashable

from ternmesh.link.airtime import LoraSetting, airtime_us
from transports.serial_lora import kiss
from transports.serial_lora.emulator.modem import Action, Output, Reception, Transmit
from transports.serial_lora.rnode import (
    DETECT_ANSWER,
    DETECT_ASK,
    HEADER,
    ON,
    PAYLOAD_MAX,
    RSSI_OFFSET_DBM,
    SNR_STEP_DB,
    Command,
    with_long_preamble,
)

QUEUE_MAX = 32
TX_FAILED, QUEUE_FULL = 2, 4
_SIZES = {
    Command.FREQUENCY: 4,
    Command.BANDWIDTH: 4,
    Command.POWER: 1,
    Command.SPREADING_FACTOR: 1,
    Command.CODING_RATE: 1,
}


class RnodeModem:
    """See `EmulatedModem`. `eager` versions say READY by themselves; others want to be asked."""

    def __init__(self, eager: bool = True) -> None:
        self.fail_next: list[int] = []
        self._eager = eager
        self._unframer = kiss.Unframer()
        self._settings: dict[int, bytes] = {}
        self._on = False
        self._queue: deque[bytes] = deque()
        self._sending = False

    @property
    def tuning(self) -> Hashable:
        """Frequency and radio setting."""
        return (self._settings[Command.FREQUENCY], self._radio()) if self._on else None

    def power_up(self) -> list[Action]:
        """It announces its reset; settings of a host are not kept."""
        self._settings.clear()
        self._queue.clear()
        self._on = self._sending = False
        return [_output(Command.RESET, b"\xf8")]

    def receive_bytes(self, data: bytes) -> list[Action]:
        """Commands of the host."""
        actions: list[Action] = []
        for command, content in self._unframer.feed(data):
            actions += self._command(command, content)
        return actions

    def transmitted(self) -> list[Action]:
        """The next one of the queue."""
        self._sending = False
        ready: list[Action] = [_output(Command.READY, ON)] if self._eager else []
        return ready + self._transmit()

    def hear(self, heard: Reception) -> list[Action]:
        """Signal quality, then the frame without the firmware's header."""
        snr = int(heard.snr_db / SNR_STEP_DB).to_bytes(1, signed=True)
        return [
            _output(Command.RSSI, bytes([heard.rssi_dbm + RSSI_OFFSET_DBM])),
            _output(Command.SNR, snr),
            _output(Command.DATA, heard.payload[HEADER:]),
        ]

    def paused(self) -> list[Action]:
        """It never asks for a pause."""
        return []

    def _command(self, command: int, content: bytes) -> list[Action]:
        if command == Command.DETECT and content == DETECT_ASK:
            return [_output(Command.DETECT, DETECT_ANSWER)]
        if command == Command.READY:
            return [_output(Command.READY, ON if len(self._queue) < QUEUE_MAX else b"\0")]
        if command == Command.STATE and content == ON:
            self._on = len(self._settings) == len(_SIZES) and self._radio() is not None
            return [_output(Command.STATE, ON)] if self._on else [_output(Command.ERROR, b"\x01")]
        if command in _SIZES and len(content) == _SIZES[Command(command)]:
            self._settings[command] = content
            return [_output(Command(command), content)]
        if command == Command.DATA and content and self._on:
            return self._data(content)
        return []

    def _data(self, content: bytes) -> list[Action]:
        if self.fail_next:
            return [_output(Command.ERROR, bytes([self.fail_next.pop(0)]))]
        if len(content) > PAYLOAD_MAX:
            return [_output(Command.ERROR, bytes([TX_FAILED]))]
        if len(self._queue) >= QUEUE_MAX:
            return [_output(Command.ERROR, bytes([QUEUE_FULL]))]
        self._queue.append(content)
        return self._transmit()

    def _transmit(self) -> list[Action]:
        radio = self._radio()
        if self._sending or not self._queue or radio is None:
            return []
        self._sending = True
        payload = b"\0" * HEADER + self._queue.popleft()
        return [Transmit(payload, airtime_us(radio, len(payload)), listens=True)]

    def _radio(self) -> LoraSetting | None:
        try:
            bandwidth = int.from_bytes(self._settings[Command.BANDWIDTH], "big") // 1000
            factor = self._settings[Command.SPREADING_FACTOR][0]
            rate = self._settings[Command.CODING_RATE][0] - 4
            return with_long_preamble(LoraSetting(factor, bandwidth, rate))
        except (KeyError, ValueError):
            return None


def _output(command: Command, content: bytes) -> Output:
    return Output(kiss.frame(command, content))
