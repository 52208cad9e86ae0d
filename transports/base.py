"""What every transport is: it moves frames of at most `mtu` bytes between peers, nothing else.

A plain transport neither retries nor remembers: the protocol above repeats what is lost. One that
retransmits is a `ReportingTransport`, and the protocol leaves the repeating to it. Errors:

    TransportError          base; the sentence says what to do
    ├── NotConnected        nothing was sent: wait for `connected`
    ├── Busy                nothing was sent: too much is on its way, offer it again soon
    ├── FrameTooLarge       a frame is longer than this transport's `mtu`
    ├── UnknownPeer         the bearer has no address for a peer: nothing ever leaves for it
    ├── NameTaken           another process has our name on the bearer: this one must end
    └── MissingExtra        the Python package for this transport is not installed
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ternmesh.deliveries import Delivery
from ternmesh.wire.control import NAME
from ternmesh.wire.frame import FRAME_MAX

HOST = "host"  # the peer name of the host, as a node sees it
ALL = "all"  # the peer name of every node at once, as the host sees it

NAME_MAX = 32  # bytes
SHARE = 3  # times the room of one peer is the least that an inbox has free for the others


def check_name(name: str, what: str = "name") -> str:
    """`name` if it may stand in a topic or an address; ValueError with a sentence otherwise."""
    if not NAME.match(name):
        raise ValueError(
            f"{what} {name!r} must be 1 to 32 letters, digits, or any of _ . -, and begin with "
            "neither . nor -"
        )
    return name


def check_node(name: str) -> str:
    """`name` if a node may have it: a checked name that is neither `host` nor `all`."""
    if name in (HOST, ALL):
        raise ValueError(f"a node may not be called {name!r}: the name has a meaning of its own")
    return check_name(name, "node name")


def check_peer(sender: str, peer: str) -> None:
    """ValueError unless `sender` may address `peer`: nodes the host, the host one node or all."""
    if sender != HOST and peer != HOST:
        raise ValueError(f"a node sends to {HOST!r} only, not to {peer!r}")
    if sender == HOST and peer != ALL:
        check_node(peer)


class TransportError(Exception):
    """The base of every error of this package."""


class NotConnected(TransportError):
    """The bearer is down; nothing of the call was sent."""


class Busy(TransportError):
    """The bearer still works on earlier frames; nothing of the call was sent."""


class FrameTooLarge(TransportError):
    """A frame is longer than the transport's mtu."""


class UnknownPeer(TransportError, ValueError):
    """The bearer has no address for this peer; a ValueError as other wrong peers are."""


class NameTaken(TransportError):
    """An older process has our name on the bearer: `receive` raises it; end this process."""


class MissingExtra(TransportError):
    """An optional dependency is not installed; the sentence names the extra."""


def check_sizes(frames: Sequence[bytes], mtu: int) -> None:
    """FrameTooLarge where one of `frames` is longer than `mtu` bytes."""
    if (longest := max(map(len, frames), default=0)) > mtu:
        raise FrameTooLarge(f"a frame of {longest} bytes exceeds the mtu {mtu}")


@dataclass(frozen=True, slots=True)
class Arrival:
    """Frames that arrived together; `wire_bytes` is what they cost on the bearer."""

    peer: str
    frames: tuple[bytes, ...]
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class BearerProfile:
    """What a run's plan takes from the bearer; sizes in bytes, with seal."""

    frame_mtu: int = 184  # of an update's frames
    frame_max: int = FRAME_MAX  # the longest frame that it carries
    manifest_repeats: int = 0  # times that a manifest follows its chunks again
    announce_s: int = 30  # between two announces


class Transport(Protocol):
    """One end of a bearer."""

    @property
    def mtu(self) -> int:
        """The longest frame in bytes that one `send` may hold."""

    @property
    def connected(self) -> bool:
        """Whether the bearer is up, so that `send` has a chance now."""

    def open(self) -> None:
        """Start; returns at once, and keeps trying to connect for ever."""

    def close(self) -> None:
        """Stop and free everything; may be called twice."""

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """Hand frames to the bearer, in as few messages as it allows; returns their bytes there.

        Raises NotConnected, Busy or FrameTooLarge; then nothing of the call was sent.
        """

    def receive(self, timeout_s: float) -> Arrival | None:
        """The next arrival, or None after `timeout_s`."""


@dataclass(frozen=True, slots=True)
class Spare:
    """What a bearer has to spare for frames that can wait."""

    frame_max: int  # bytes of a frame that leaves once, unchanged
    cost_s: float = 0.0  # how long the bearer is taken by such a frame, by law too; 0: no limit


@runtime_checkable
class SpareTransport(Transport, Protocol):
    """A transport that says when nothing else waits."""

    def spare(self) -> Spare | None:
        """What it has to spare now; None while frames wait to leave."""


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """What the link around a bearer counts."""

    objects_under_way: int
    objects_sent: int
    objects_lost: int
    frames_refused: int
    sealed: bool
    refused: Mapping[str, Mapping[str, int]]  # by peer and reason


@dataclass(frozen=True, slots=True)
class TransportStatus:
    """What a transport says of itself; each of its `bearers` too, where it combines several."""

    connected: bool
    last_error: str | None  # None while it is connected
    end: str = ""  # what it connects to, in words
    turned_s_ago: float = 0.0  # since its thread has last done something
    bytes_out: int = 0
    airtime_us: int | None = None  # of all that it sent; None for no radio
    airtime_left_us: int | None = None  # of the hour, at the last frame; None without a limit
    signal: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)  # by peer
    refusals: Mapping[str, int] = field(default_factory=dict)  # of the modem or bridge, by reason
    numbers: Mapping[str, int | None] = field(default_factory=dict)  # counters and limits, by name
    remarks: tuple[str, ...] = ()  # what its owner should know although it is connected
    link: LinkStatus | None = None
    bearers: Mapping[str, "TransportStatus"] = field(default_factory=dict)


@runtime_checkable
class StatusTransport(Transport, Protocol):
    """A transport that shows its state."""

    def status(self) -> TransportStatus:
        """Counters and state."""


@runtime_checkable
class ReportingTransport(Transport, Protocol):
    """A transport that retransmits by itself."""

    def deliveries(self) -> list[Delivery]:
        """The reports since the last call, in order; also of messages from before a restart."""


class Inbox:
    """Arrivals between the thread of a bearer and the driver: the peers in turn, each in order.

    No peer's arrivals take more than a third of the room that all leave free: a flood of one peer
    leaves room for the others, and what waits of it is worked off in seconds. An arrival that does
    not fit is dropped and counted.
    """

    def __init__(self, arrivals_max: int = 8192, bytes_max: int = 16 << 20) -> None:
        self.dropped = 0  # arrivals
        self._arrivals_free = arrivals_max
        self._bytes_free = bytes_max
        self._waiting: dict[str, deque[Arrival]] = {}  # by peer, the next one first
        self._bytes: Counter[str] = Counter()  # of what waits, by peer
        self._changed = threading.Condition()

    def put(self, arrival: Arrival) -> None:
        """Add `arrival`, or count it as dropped where it does not fit."""
        peer, size = arrival.peer, arrival.wire_bytes
        with self._changed:
            mine = self._waiting.get(peer, deque())
            longer = len(mine) + 1, self._bytes[peer] + size
            if longer[0] * SHARE > self._arrivals_free or longer[1] * SHARE > self._bytes_free:
                self.dropped += 1
                return
            mine.append(arrival)
            self._waiting[peer] = mine
            self._count(peer, 1, size)
            self._changed.notify()

    def get(self, timeout_s: float) -> Arrival | None:
        """The oldest arrival of the peer whose turn it is, or None after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._waiting:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None
                self._changed.wait(left_s)
            peer = next(iter(self._waiting))
            mine = self._waiting.pop(peer)
            arrival = mine.popleft()
            self._count(peer, -1, -arrival.wire_bytes)
            if mine:
                self._waiting[peer] = mine
            else:
                del self._bytes[peer]
            return arrival

    def _count(self, peer: str, arrivals: int, size: int) -> None:
        self._arrivals_free -= arrivals
        self._bytes_free -= size
        self._bytes[peer] += size
