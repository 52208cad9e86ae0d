"""An emulated REYAX RYLR998 with the answers and error codes of its manual."""

import re
import struct

from ternmesh.link.airtime import LoraSetting, airtime_us
from transports.serial_lora.emulator import modem
from transports.serial_lora.reyax import BANDWIDTH_CODES, DATA_MAX, HIDDEN_BYTES

LINE_MAX = 300
_SEND = re.compile(rb"AT\+SEND=(\d{1,5}),(\d{1,3}),")
_COMMAND = re.compile(r"AT\+([A-Z]{2,12})(\?|=(.*))")
_BANDWIDTHS_KHZ = {code: bandwidth for bandwidth, code in BANDWIDTH_CODES.items()}


class ReyaxModem(modem.EmulatedModem):
    """A REYAX modem; where it is not `binary_safe`, zeros and line ends cut the data."""

    def __init__(self, binary_safe: bool = True) -> None:
        super().__init__()
        self._binary_safe = binary_safe
        self.refuses = ""  # the name of a setting that it does not take
        self.settings = {
            "ADDRESS": "0",
            "NETWORKID": "18",
            "BAND": "915000000",
            "PARAMETER": "9,7,1,12",
            "CRFOP": "22",
            "IPR": "115200",
            "VER": "RYLR998_emulated",
            "UID": "0",
        }
        self._next_baud = 0
        self._stored_band = self.settings["BAND"]  # only a setting with an M is kept
        self._radio = LoraSetting(9, 125, 1, 12)
        self._buffer = bytearray()

    @property
    def tuning(self) -> object:
        return tuple(self.settings[name] for name in ("NETWORKID", "BAND", "PARAMETER"))

    def power_up(self) -> list[modem.Action]:
        self._buffer.clear()
        self._sending = False
        self.settings["BAND"] = self._stored_band
        return [_line("READY")]

    def receive_bytes(self, data: bytes) -> list[modem.Action]:
        """Answer commands; the answer to AT+SEND comes when the frame has left."""
        self._buffer += data
        actions: list[modem.Action] = []
        while (command := self._next_command()) is not None:
            actions += self._answer(command)
        if len(self._buffer) > LINE_MAX:
            self._buffer.clear()
            actions.append(_line("ERR", "1"))
        return actions

    def transmitted(self) -> list[modem.Action]:
        self._sending = False
        return [_line("OK")]

    def hear(self, heard: modem.Reception) -> list[modem.Action]:
        """Output frames for all or for us; the hidden bytes hold the addresses."""
        to, sender = struct.unpack_from(">HH", heard.payload)
        if to not in (0, int(self.settings["ADDRESS"])):
            return []
        data = heard.payload[HIDDEN_BYTES:]
        head = b"+RCV=%d,%d,%b" % (sender, len(data), data)
        return [modem.Output(head + b",%d,%d\r\n" % (heard.rssi_dbm, heard.snr_db))]

    def _next_command(self) -> bytes | None:
        buffer = self._buffer
        end = buffer.find(b"\r\n")
        if self._binary_safe and (head := _SEND.match(buffer)) and int(head[2]) <= DATA_MAX:
            size = head.end() + int(head[2])
            if len(buffer) < size + 2:
                return None
            end = size if buffer[size : size + 2] == b"\r\n" else buffer.find(b"\r\n", size)
        if end < 0:
            return None
        command = bytes(buffer[:end])
        del buffer[: end + 2]
        return command

    def _answer(self, command: bytes) -> list[modem.Action]:
        if head := _SEND.match(command):
            return [self._send(int(head[1]), int(head[2]), command[head.end() :])]
        text = command.decode("latin-1")
        if text == "AT":
            return [_line("OK")]
        if text == "AT+RESET":
            return [_line("RESET"), *self.power_up()]
        if not text.startswith("AT"):
            return [_line("ERR", "2")]
        match = _COMMAND.fullmatch(text)
        if match is None or match[1] not in self.settings:
            return [_line("ERR", "4")]
        if match[2] == "?":
            return [_line(match[1], self.settings[match[1]])]
        if self.refuses and self.refuses == match[1]:
            return [_line("ERR", "15")]
        return [self._set(match[1], match[3]), *([modem.Pause(0.0)] if self._next_baud else [])]

    def paused(self) -> list[modem.Action]:
        self.baud, self._next_baud = self._next_baud or self.baud, 0
        return []

    def _set(self, name: str, value: str) -> modem.Action:
        if name == "BAND" and value.endswith(",M"):
            self._stored_band = value = value[:-2]
        if name == "IPR" and self.baud:
            self._next_baud = int(value)  # after the answer
        if not re.fullmatch(r"\d{1,10}(,\d{1,10}){0,3}", value):
            return _line("ERR", "15")
        if name == "PARAMETER":
            try:
                factor, bandwidth, rate, preamble = (int(part) for part in value.split(","))
                self._radio = LoraSetting(factor, _BANDWIDTHS_KHZ[bandwidth], rate, preamble)
            except (ValueError, KeyError):
                return _line("ERR", "15")
        self.settings[name] = value
        return _line("OK")

    def _send(self, to: int, size: int, data: bytes) -> modem.Action:
        if not self._binary_safe:
            data = data.partition(b"\0")[0]
        if self.fail_next:
            return _line("ERR", str(self.fail_next.pop(0)))
        if size > DATA_MAX:
            return _line("ERR", "13")
        if size != len(data) or not size or to > 0xFFFF:
            return _line("ERR", "5")
        if self._sending:
            return _line("ERR", "17")
        self._sending = True
        hidden = struct.pack(">HH", to, int(self.settings["ADDRESS"]) & 0xFFFF)
        payload = hidden.ljust(HIDDEN_BYTES, b"\0") + data
        return modem.Transmit(payload, airtime_us(self._radio, len(payload)))


def _line(name: str, value: str = "") -> modem.Output:
    return modem.Output(f"+{name}={value}\r\n".encode() if value else f"+{name}\r\n".encode())
