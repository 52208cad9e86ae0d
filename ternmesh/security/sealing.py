"""Frame protection: its interface, and the unkeyed seal of suite 0. SPEC.md section 3.

To seal a frame is to protect its body; the seal is what surrounds the body in the frame. An end is
one of the two between which a seal holds: node and host (suite 1, end to end), or two neighbours
(suite 2, one hop of the way). The unkeyed seal has a checksum: it detects damage and
authenticates no sender. `ternmesh.security.keyed_sealing` encrypts and authenticates with keys.
"""

from dataclasses import dataclass
from typing import Protocol

from ternmesh.security.session import CloneCount, GroupState, HostRotated, ListNumber, PeerState
from ternmesh.wire.frame import Header, open_seal, seal_open

Due = list[tuple[str, int, bytes]]  # peer, address, body
Change = PeerState | GroupState | CloneCount | ListNumber | HostRotated


@dataclass(frozen=True, slots=True)
class CountersReserved:
    """An event: frame counters below `limit` will be used. Save it before you send any frame."""

    limit: int


@dataclass(frozen=True, slots=True)
class SecurityChanged:
    """An event: the state of peers has changed. Save `changes` before you send any frame."""

    changes: tuple[Change, ...]


class Sealing(Protocol):
    """Seals and opens the frames of one node or host. `peer` is the name of the other side.

    The methods with a body are those of a sealing without handshakes and without state.
    """

    @property
    def is_keyed(self) -> bool:
        """Whether frames are sealed with keys; then sync frames recover a lost session."""

    def seal(self, peer: str, address: int, counter: int, body: bytes) -> bytes:
        """Return the frame that carries `body`. Raises WireError without a key for `peer`."""

    def open(self, peer: str, frame: bytes) -> tuple[Header, bytes]:
        """Return header and body of a frame. Raises WireError if the frame is not valid."""

    def bind(self, run: bytes) -> None:  # noqa: ARG002
        """Set the id of the training run, which keys the frames between two peers.

        From now on frames that a peer sealed for another run are rejected. Frames with address 0
        and broadcasts do not depend on the run.
        """
        return

    def is_own(self, address: int, body: bytes) -> bool:  # noqa: ARG002
        """Whether `body` is a handshake or key message, which the sealing handles itself."""
        return False

    def process_of(self, peer: str) -> bytes:  # noqa: ARG002
        """Return what names the peer's present process; empty where that is unknown."""
        return b""

    def due(self, now: float) -> Due:  # noqa: ARG002
        """Return the handshake and key messages that must be sent now."""
        return []

    def next_due(self) -> float | None:
        """Return the time when `due` will have a message; None if no message is planned."""
        return None

    def changes(self) -> tuple[Change, ...]:
        """Return the changed state, which must be on disk before the next frame is sent."""
        return ()


class OpenSealing(Sealing):
    """The unkeyed seal of suite 0: detects damage, authenticates no sender."""

    is_keyed = False

    def seal(self, peer: str, address: int, counter: int, body: bytes) -> bytes:  # noqa: ARG002
        return seal_open(Header(address, counter), body)

    def open(self, peer: str, frame: bytes) -> tuple[Header, bytes]:  # noqa: ARG002
        return open_seal(frame)
