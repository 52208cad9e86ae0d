"""Frames in radio payloads: addresses, and text where bytes may be damaged (SPEC.md section 7.3).

All radios receive all payloads, so each begins with the addresses of its receiver and its sender.
Most modems carry any bytes. For REYAX modems that is disputed, so there a payload is text until the
receiver has confirmed that all 256 byte values arrived (`ProvenCoding`).
"""

import base64
from dataclasses import dataclass

from ternmesh.errors import WireError
from transports.serial_lora.settings import ALL_ADDRESS

PREFIX = 2  # bytes: receiver, sender


@dataclass(frozen=True, slots=True)
class RadioMessage:
    """A frame with the addresses of its receiver and sender."""

    to: int
    sender: int
    frame: bytes


class PrefixCoding:
    """The payload is addresses and frame; `now` is in seconds of radio time."""

    def __init__(self, own: int) -> None:
        self._own = own

    def frame_max(self, payload_max: int) -> int:
        """The longest frame in bytes that fits a payload."""
        return payload_max - PREFIX

    def size(self, _to: int, frame_bytes: int) -> int:
        """The size in bytes of the payload for the address `to`."""
        return PREFIX + frame_bytes

    def encode(self, to: int, frame: bytes) -> bytes:
        """The payload with `frame` for the address `to`."""
        return bytes([to, self._own]) + frame

    def decode(self, payload: bytes, _now: float) -> RadioMessage | None:
        """The frame in a payload; None for a message of the coding itself, or WireError."""
        return _message(payload)

    def to_send(self) -> list[bytes]:
        """Payloads of the coding itself; each is returned once."""
        return []

    def refused(self, payload: bytes) -> None:
        """Note that our own modem did not understand a command with this payload."""

    def text(self, _to: int) -> bool:
        """Whether frames to this address travel as text now."""
        return False


BINARY, PROBE, VERDICT = b"\x01", b"\x02", b":"  # No byte of these is in the alphabet of base85.
HALVES = (bytes(range(128)) + b"\r\n\0\0\r\n", bytes(range(128, 256)) + b"\xff\xff\r\n+OK\r\n")
PROBES_MAX = 4  # to one peer; a path that loses so many does not carry binary
REFUSALS_MAX = 2  # of binary payloads by our own modem
PROBE_GAP_S = 30.0  # of radio time, doubled with each probe


class ProvenCoding(PrefixCoding):
    """Base85, or bytes as they are where the receiver has confirmed a probe.

    Each peer that sends to us gets a probe: two payloads with all 256 values. A peer that receives
    both intact answers with a verdict, which holds for good: it is a property of the modems.
    `assume`: "auto" (probe), "yes" or "no".
    """

    def __init__(self, own: int, peers: frozenset[int], assume: str) -> None:
        super().__init__(own)
        self.proven: set[int] = {*peers, ALL_ADDRESS} if assume == "yes" else set()
        self._peers = peers
        self._assume = assume
        self._intact: dict[int, int] = {}  # bits of the probe halves that arrived intact, by sender
        self._verdict_due: dict[int, float] = {}  # limits the verdicts that probes can demand
        self._probes: dict[int, tuple[int, float]] = {}  # count, and when the next may follow
        self._outgoing: list[bytes] = []
        self._refusals = 0

    def frame_max(self, payload_max: int) -> int:
        """The room as text, unless binary is assumed: a frame must fit before any proof."""
        if self._assume == "yes":
            return payload_max - len(BINARY) - PREFIX
        return payload_max * 4 // 5 - PREFIX

    def size(self, to: int, frame_bytes: int) -> int:
        if to in self.proven:
            return len(BINARY) + PREFIX + frame_bytes
        return -(-(PREFIX + frame_bytes) * 5 // 4)

    def encode(self, to: int, frame: bytes) -> bytes:
        content = super().encode(to, frame)
        return BINARY + content if to in self.proven else base64.b85encode(content)

    def decode(self, payload: bytes, now: float) -> RadioMessage | None:
        """The reverse of `encode`; probes and verdicts are processed."""
        form, content = payload[:1], payload[1:]
        if form == PROBE:
            self._take_probe(content, now)
            return None
        if form == VERDICT:
            self._take_verdict(_text(content))
            return None
        message = _message(content if form == BINARY else _text(payload))
        if message.sender in self._peers and message.to in (self._own, ALL_ADDRESS):
            self._probe(message.sender, now)
        return message

    def to_send(self) -> list[bytes]:
        outgoing = self._outgoing
        self._outgoing = []
        return outgoing

    def refused(self, payload: bytes) -> None:
        """Stop binary after repeated refusals; a single one may be noise on the line."""
        if payload[:1] not in (BINARY, PROBE) or self._assume != "auto":
            return
        self._refusals += 1
        if self._refusals == REFUSALS_MAX:
            self._assume = "no"
            self.proven.clear()
            self._outgoing.clear()

    def text(self, to: int) -> bool:
        return to not in self.proven

    def _probe(self, peer: int, now: float) -> None:
        count, due = self._probes.get(peer, (0, now))
        if self._assume != "auto" or peer in self.proven or count == PROBES_MAX or now < due:
            return
        self._probes[peer] = count + 1, now + PROBE_GAP_S * 2**count
        head = PROBE + bytes([peer, self._own])
        self._outgoing += [head + bytes([half]) + values for half, values in enumerate(HALVES)]

    def _take_probe(self, content: bytes, now: float) -> None:
        to, sender, half = (*content[:3], 0, 0, 0)[:3]
        if to != self._own or sender not in self._peers:
            return
        if half >= len(HALVES) or content[3:] != HALVES[half]:
            raise WireError("probe", "a probe arrived with other bytes than it was sent with")
        self._intact[sender] = self._intact.get(sender, 0) | 1 << half
        if self._intact[sender] == 3 and now >= self._verdict_due.get(sender, now):
            self._verdict_due[sender] = now + PROBE_GAP_S / 2
            self._outgoing.append(VERDICT + base64.b85encode(bytes([sender, self._own])))

    def _take_verdict(self, content: bytes) -> None:
        if len(content) != PREFIX:
            raise WireError("radio", f"a verdict of {len(content)} bytes")
        to, sender = content
        if to == self._own and sender in self._peers and self._assume == "auto":
            self.proven.add(sender)
            self._refusals = 0
            if self.proven >= self._peers:
                self.proven.add(ALL_ADDRESS)


def _message(content: bytes) -> RadioMessage:
    if len(content) <= PREFIX:
        raise WireError("radio", f"a payload of {len(content)} bytes holds no frame")
    return RadioMessage(content[0], content[1], content[PREFIX:])


def _text(payload: bytes) -> bytes:
    try:
        return base64.b85decode(payload)
    except ValueError as error:
        raise WireError("radio", "a payload that is neither binary nor base85") from error
