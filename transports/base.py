"""What every transport is: it moves frames of at most `mtu` bytes between peers, nothing else.

A transport neither retries nor remembers: what it could not send is lost, and the protocol above
sends it again. Errors:

    TransportError          base; the sentence says what to do
    ├── NotConnected        nothing was sent: wait for `connected`
    ├── Busy                nothing was sent: too much is on its way, offer it again soon
    ├── FrameTooLarge       a frame is longer than this transport's `mtu`
    ├── UnknownPeer         the bearer has no address for a peer: nothing ever leaves for it
    ├── NameTaken           another process has our name on the bearer: this one must end
    └── MissingExtra        the Python package for this transport is not installed
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

HOST = "host"  # the peer name of the host, as a node sees it
ALL = "all"  # the peer name of every node at once, as the host sees it

NAME_MAX = 32  # bytes
_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{NAME_MAX}}}")


def check_name(name: str, what: str = "name") -> str:
    """`name` if it may stand in a topic or an address; ValueError with a sentence otherwise."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{what} {name!r} must be 1 to 32 letters, digits, or any of _ . -")
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
    """Another process, which was there before, has our name on the bearer: `receive` ends."""


class MissingExtra(TransportError):
    """An optional dependency is not installed; the sentence names the extra."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Frames that arrived together; `wire_bytes` is what they cost on the bearer."""

    peer: str
    frames: tuple[bytes, ...]
    wire_bytes: int


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
