"""Who sends to whom, inside each radio payload (SPEC.md section 7.3), and which bytes may be in it.

A radio is heard by all, so each payload begins with the addresses of its receiver and its sender.
Most modems carry any bytes. Of REYAX modems that is disputed, so there a payload is text until the
receiver has said that each of the 256 values came through (`ProvenCoding`).
"""

import base64
from dataclasses import dataclass
from typing import Protocol

from ternmesh.errors import WireError
from transports.serial_lora.settings import ALL_ADDRESS

PREFIX = 2  # bytes: receiver, sender


@dataclass(frozen=True, slots=True)
class Message:
    """A frame with the addresses that its payload names."""

    to: int
    sender: int
    frame: bytes


class Coding(Protocol):
    """How a frame becomes a payload; `now` is in seconds of radio time."""

    def frame_max(self, payload_max: int) -> int:
        """The longest frame in bytes that fits a payload."""

    def size(self, to: int, frame_bytes: int, /) -> int:
        """The payload's size in bytes."""

    def encode(self, to: int, frame: bytes) -> bytes:
        """The payload with `frame` for the address `to`."""

    def decode(self, payload: bytes, now: float, /) -> Message | None:
        """The frame in a payload; None for a message of the coding itself, WireError for others."""

    def to_send(self) -> list[bytes]:
        """Payloads that the coding itself wants to send; they are handed out once."""

    def refused(self, payload: bytes) -> None:
        """Our own modem did not understand a command with this payload."""

    def text(self, to: int, /) -> bool:
        """Whether frames for the address `to` travel as text now."""


class PrefixCoding:
    """Addresses and frame as they are; see `Coding`."""

    def __init__(self, own: int) -> None:
        self._own = own

    def frame_max(self, payload_max: int) -> int:
        """All but the prefix."""
        return payload_max - PREFIX

    def size(self, _to: int, frame_bytes: int) -> int:
        """Prefix and frame."""
        return PREFIX + frame_bytes

    def encode(self, to: int, frame: bytes) -> bytes:
        """Receiver, sender, frame."""
        return bytes([to, self._own]) + frame

    def decode(self, payload: bytes, _now: float) -> Message | None:
        """The reverse of `encode`."""
        return _message(payload)

    def to_send(self) -> list[bytes]:
        """Nothing."""
        return []

    def refused(self, payload: bytes) -> None:
        """Nothing follows."""

    def text(self, _to: int) -> bool:
        """Never."""
        return False


BINARY, PROBE, VERDICT = b"\x01", b"\x02", b":"  # No byte of these is in the alphabet of base85.
HALVES = (
    bytes(range(128)) + b"\r\n\0\0\r\n",
    bytes(range(128, 256)) + b"\xff\xff\r\n+OK\r\n",
)
PROBES_MAX = 4  # to one peer; a path that loses so many is likely to be no path for binary
REFUSALS_MAX = 2  # of binary payloads by our own modem
PROBE_GAP_S = 30.0  # of radio time, doubled with each probe


class ProvenCoding:
    """Base85, or bytes as they are where the receiver has confirmed a probe; see `Coding`.

    Whom we hear from is probed: two payloads with all 256 values. Who receives both intact says so.
    What is proven stays so: it is a property of the modems. `assume`: "auto", "yes" or "no".
    """

    def __init__(self, own: int, peers: frozenset[int], assume: str) -> None:
        self.proven: set[int] = {*peers, ALL_ADDRESS} if assume == "yes" else set()
        self._own = own
        self._peers = peers
        self._assume = assume
        self._heard: dict[int, int] = {}  # halves of probes that came intact, by sender
        self._verdict_due: dict[int, float] = {}  # probes may not make us talk all day
        self._probes: dict[int, tuple[int, float]] = {}  # count, and when the next may follow
        self._outgoing: list[bytes] = []
        self._refusals = 0

    def frame_max(self, payload_max: int) -> int:
        """What fits as text, unless binary was promised: a frame must fit whatever is proven."""
        if self._assume == "yes":
            return payload_max - len(BINARY) - PREFIX
        return payload_max * 4 // 5 - PREFIX

    def size(self, to: int, frame_bytes: int) -> int:
        """As `encode` does it now."""
        if to in self.proven:
            return len(BINARY) + PREFIX + frame_bytes
        return -(-(PREFIX + frame_bytes) * 5 // 4)

    def encode(self, to: int, frame: bytes) -> bytes:
        """Binary where that is proven, else text."""
        content = bytes([to, self._own]) + frame
        return BINARY + content if to in self.proven else base64.b85encode(content)

    def decode(self, payload: bytes, now: float) -> Message | None:
        """The reverse of `encode`; probes and verdicts are taken in."""
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
        """Probes and verdicts."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def refused(self, payload: bytes) -> None:
        """A modem that repeatedly does not take binary gets no more of it; once may be noise."""
        if payload[:1] not in (BINARY, PROBE) or self._assume != "auto":
            return
        self._refusals += 1
        if self._refusals == REFUSALS_MAX:
            self._assume = "no"
            self.proven.clear()
            self._outgoing.clear()

    def text(self, to: int) -> bool:
        """Whether `to` has not confirmed a probe."""
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
        self._heard[sender] = self._heard.get(sender, 0) | 1 << half
        if self._heard[sender] == 3 and now >= self._verdict_due.get(sender, now):
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


def _message(content: bytes) -> Message:
    if len(content) <= PREFIX:
        raise WireError("radio", f"a payload of {len(content)} bytes holds no frame")
    return Message(content[0], content[1], content[PREFIX:])


def _text(payload: bytes) -> bytes:
    try:
        return base64.b85decode(payload)
    except ValueError as error:
        raise WireError("radio", "a payload that is neither binary nor base85") from error
