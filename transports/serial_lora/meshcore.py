"""MeshCore companions: group datagrams, which repeaters flood without looking inside.

From the sources of the firmware, 1.15 to 1.17, and its docs/companion_protocol.md. A frame to the
companion is `<`, the length and a command, one from it `>`, the length and an answer; numbers are
little-endian. A datagram names no sender, and nobody acknowledges it. The mesh takes an equal one
for an echo: the counters in the seals of our frames make all of them differ.
"""

import hashlib
import struct
from collections.abc import Generator
from dataclasses import replace
from hmac import compare_digest
from math import inf

from ternmesh.link.airtime import LoraSetting, airtime_us
from transports.serial_lora import dialect as events
from transports.serial_lora.dialect import Dialect, Event, error_text
from transports.serial_lora.framing import LengthUnframer
from transports.serial_lora.settings import SerialLoraSettings

APP_START, NEXT_MESSAGE, DEVICE_QUERY, GET_CHANNEL = 1, 10, 22, 31
SET_CHANNEL, SET_SCOPE, SEND = 32, 54, 62
# Answers, and the one that comes unasked
OK, ERROR, SELF, NO_MESSAGE, DEVICE, CHANNEL, DATAGRAM, WAITING = 0, 1, 5, 10, 13, 18, 27, 0x83
TEXTS = (7, 8, 16, 17)  # of people, to the companion or in its channels
UNKNOWN, NOT_FOUND, TABLE_FULL, ILLEGAL = 1, 2, 3, 6
ERRORS = {NOT_FOUND: "it has no such channel_slot", TABLE_FULL: "its queue is full"}
ERRORS |= {UNKNOWN: "it does not know the command", ILLEGAL: "a value out of range"}
FRAME_MAX = 255  # the firmware's are shorter
OLDEST, WITH_165_BYTES = 11, 13  # what firmware 1.15 and 1.16 call themselves
DEVICE_FORM = struct.Struct("<B58x20s2x")  # version and its name
SELF_FORM = struct.Struct("<xb45xIIBB")  # power, kHz, bandwidth in Hz, spreading factor, rate + 4
CHANNEL_FORM = struct.Struct("<B32s16s")  # slot, name, secret
HEARD_FORM = struct.Struct("<3xBxHB")  # slot, application, length
FLOOD, NO_SECRET, NULL = 0xFF, bytes(16), b"\0"
# Bytes on the air around the cipher: header, region codes, length of the path, channel, MAC
HEAD, BLOCK, DATA_HEAD = 1 + 4 + 1 + 1 + 2, 16, 3
ANSWER_S, POLL_S, FULL_S = 2.0, 30.0, 2.0
# A repeater waits for up to 2.5 airtimes of a datagram, and hears nothing while it sends it.
HOP_AIRTIMES = 3.5


def frame(command: bytes) -> bytes:
    """A command as it is written."""
    return b"<" + len(command).to_bytes(2, "little") + command


def key_of(name: str) -> bytes:
    """The 16 bytes that MeshCore derives from the public name of a channel or a region."""
    return hashlib.sha256(f"#{name.removeprefix('#')}".encode()).digest()[:16]


def with_preamble(radio: LoraSetting) -> LoraSetting:
    """`radio` with the preamble that the firmware chooses by itself."""
    return replace(radio, preamble_symbols=32 if radio.spreading_factor <= 8 else 16)


class Meshcore(Dialect[bytes]):
    """A companion; until it is set up it is asked one thing at a time."""

    def __init__(self, settings: SerialLoraSettings) -> None:
        super().__init__(settings, LengthUnframer(b">", "little", FRAME_MAX, bytes))
        self.payload_max = settings.datagram_bytes
        self._radio = with_preamble(settings.radio)
        self._steps = self._introduce()
        self._step = b"", OK  # the command that waits for its answer, and the code of that
        self._confirmations = 0  # that are due for the payload in flight
        # When that has left and passed the repeaters; while it is not confirmed, a margin later
        self._flight_ends = inf
        self._poll_at = inf  # when it is asked for a message again

    def airtime_us(self, payload_bytes: int) -> int:
        """The time on air of the companion, in microseconds; that of repeaters is not in it."""
        return airtime_us(self._radio, HEAD + BLOCK * -(-(DATA_HEAD + payload_bytes) // BLOCK))

    def send(self, payload: bytes, now: float) -> list[Event]:
        settings = self._settings
        command = struct.pack("<BBBH", SEND, settings.channel_slot, FLOOD, settings.application)
        commands = frame(command + payload)
        if settings.scope:  # with each datagram: a companion that restarts forgets it
            commands = frame(bytes([SET_SCOPE, 0]) + key_of(settings.scope)) + commands
        self._confirmations = 2 if settings.scope else 1
        passed_s = self._air_s(payload) * (1 + HOP_AIRTIMES * settings.hops)
        self._flight_ends = now + passed_s + settings.answer_margin_s
        return self._due(self._launch(payload, commands, now))

    def handle_timeout(self, now: float) -> list[Event]:
        if not self.ready:
            return self._repeat(now)
        is_over = self._in_flight is not None and self._flight_ends <= now
        if is_over and not self._confirmations:
            return self._due(self._settle(events.Sent()))
        self._tries += 1  # since the last answer
        if is_over or self._tries > self.tries_max:
            return self._restart("the companion did not answer", now)
        return self._due(self._ask_for_message(now))

    def _set_up(self, now: float) -> list[Event]:
        self._steps = self._introduce()
        return self._next_step(None, now)

    def _introduce(self) -> Generator[tuple[bytes, int], bytes, str]:
        """Commands, each with the code of the answer to it, which is sent back; what is wrong."""
        settings, radio = self._settings, self._radio
        version, name = DEVICE_FORM.unpack_from((yield bytes([DEVICE_QUERY, 3]), DEVICE))
        if version < OLDEST or (version < WITH_165_BYTES and self.payload_max > 163):
            firmware = name.rstrip(NULL).decode(errors="replace")
            what = "install 1.16, or with 1.15 set datagram_bytes = 163 on all machines"
            return f"the companion's firmware {firmware} is too old: {what}"
        start = bytes([APP_START]).ljust(8, b"\0") + b"ternmesh"
        power, *found = SELF_FORM.unpack_from((yield start, SELF))
        khz, hz = round(settings.frequency_hz / 1000), int(radio.bandwidth_khz * 1000)
        wanted = [khz, hz, radio.spreading_factor, radio.coding_rate + 4]
        if found[1:] != wanted[1:] or abs(found[0] - khz) > 1 or power > settings.power_dbm:
            text = "{} kHz, bandwidth {} Hz, SF {}, CR 4/{}, {} dBm"
            theirs, ours = text.format(*found, power), text.format(*wanted, settings.power_dbm)
            return f"the companion has {theirs}, the settings have {ours}: make them equal"
        slot = bytes([settings.channel_slot])
        channel = b"ternmesh" if settings.channel_secret else b"#ternmesh"
        secret = bytes.fromhex(settings.channel_secret) or key_of("ternmesh")
        _, name, held = CHANNEL_FORM.unpack_from((yield bytes([GET_CHANNEL]) + slot, CHANNEL))
        if held == NO_SECRET:
            yield bytes([SET_CHANNEL]) + slot + channel.ljust(32, b"\0") + secret, OK
        elif not compare_digest(held, secret):
            held_by = name.rstrip(NULL).decode(errors="replace")
            there = f"slot {slot[0]} of the companion holds the channel {held_by!r}"
            return f"{there}: choose a free channel_slot, or remove that one with its app"
        return ""

    def _next_step(self, answer: bytes | None, now: float) -> list[Event]:
        try:
            self._step = self._steps.send(answer)  # type: ignore[arg-type]  # None begins
        except StopIteration as end:
            self._step = self._step[0], -1  # no more answers
            if end.value:
                return [events.Broken(end.value)]
            return self._due([*self._be_ready(), *self._ask_for_message(now)])
        except struct.error:
            return [events.Broken("the companion's answers are too short: is it one of MeshCore?")]
        self._tries = 0
        self._heard = b""
        return self._repeat(now)

    def _repeat(self, now: float) -> list[Event]:
        command, _ = self._step
        failure = f"no MeshCore companion answers command {command[0]}"
        return self._attempt(frame(command), now + ANSWER_S, failure)

    def _message(self, message: bytes, now: float) -> list[Event]:
        code, content = message[0], message[1:]
        if self.ready:
            return self._due(self._said(code, content, now))
        command, wanted = self._step
        if code == ERROR:
            reason = error_text(content[0] if content else 0, ERRORS)
            return [events.Broken(f"the companion refuses command {command[0]}: {reason}")]
        return self._next_step(content, now) if code == wanted else []

    def _said(self, code: int, content: bytes, now: float) -> list[Event]:
        """Take what a companion says that is set up."""
        self._tries = 0
        if code == WAITING:
            return self._ask_for_message(now)
        if code in (*TEXTS, DATAGRAM):
            return [self._arrived(code, content), *self._ask_for_message(now)]
        if code == NO_MESSAGE:
            self._poll_at = now + POLL_S
        if code == ERROR and content:
            again_in_s = FULL_S / self._settings.speed if content[0] == TABLE_FULL else None
            return self._settle(events.PayloadRefused(error_text(content[0], ERRORS), again_in_s))
        if code == OK and self._confirmations:
            self._confirmations -= 1
            if not self._confirmations:
                self._flight_ends -= self._settings.answer_margin_s
        return []

    def _ask_for_message(self, now: float) -> list[Event]:
        self._poll_at = now + ANSWER_S
        return [events.Write(frame(bytes([NEXT_MESSAGE])))]

    def _arrived(self, code: int, content: bytes) -> Event:
        """Our payload; or what people write, or a datagram of another application or channel."""
        slot, application, size = HEARD_FORM.unpack_from(content.ljust(HEARD_FORM.size, b"\0"))
        payload = content[HEARD_FORM.size :]
        settings = self._settings
        if code in TEXTS or (slot, application) != (settings.channel_slot, settings.application):
            return events.Noise(is_foreign=True)
        return events.Received(payload) if 0 < len(payload) == size else events.Noise()

    def _due(self, happened: list[Event]) -> list[Event]:
        """Set what is due next, and pass on what happened."""
        is_flying = self._in_flight is not None
        self.deadline = min(self._flight_ends if is_flying else inf, self._poll_at)
        return happened
