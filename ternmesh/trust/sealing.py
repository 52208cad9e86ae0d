"""What the swarm and the link ask of a seal, and its open form. SPEC.md section 3."""

from typing import Protocol

from ternmesh.trust.session import CloneCount, GroupState, PeerState
from ternmesh.wire import seal as wire
from ternmesh.wire.seal import Header

Due = list[tuple[str, int, bytes]]
Change = PeerState | GroupState | CloneCount


class Sealing(Protocol):
    """Seals and opens the frames of one end; `peer` is the bearer's name of the other one."""

    def seal(self, peer: str, context: int, counter: int, body: bytes) -> bytes:
        """The frame that carries `body`; WireError where this end has no key for `peer`."""

    def open(self, peer: str, frame: bytes) -> tuple[Header, bytes]:
        """Header and body of a frame; WireError where nothing may be believed."""

    @property
    def asks(self) -> bool:
        """Whether it asks peers by itself after frames that it cannot open: nobody else need."""

    def bind(self, run: bytes) -> None:
        """From now on frames between two ends are of this run: one of another opens nothing."""

    def is_own(self, context: int, body: bytes) -> bool:
        """Whether the sealing has taken this body for itself."""

    def due(self, now: float) -> Due:
        """(peer, context, body) that the sealing wants sent; asks nothing twice in a hurry."""

    def next_due(self) -> float | None:
        """When `due` has something to say, if ever."""

    def meet(self, peer: str) -> None:
        """Make ready to speak to a peer: what that changes goes onto disk before it is said."""

    def changes(self) -> tuple[Change, ...]:
        """What must be on disk before the next frame is sent."""


class OpenSealing:
    """Suite 0: finds damage and authenticates nobody."""

    asks = False

    def seal(self, peer: str, context: int, counter: int, body: bytes) -> bytes:  # noqa: ARG002
        """See `Sealing`."""
        return wire.seal(Header(context, counter), body)

    def open(self, peer: str, frame: bytes) -> tuple[Header, bytes]:  # noqa: ARG002
        """See `Sealing`."""
        return wire.open_seal(frame)

    def bind(self, run: bytes) -> None:
        """See `Sealing`."""

    def is_own(self, context: int, body: bytes) -> bool:  # noqa: ARG002
        """See `Sealing`."""
        return False

    def due(self, now: float) -> Due:  # noqa: ARG002
        """See `Sealing`."""
        return []

    def next_due(self) -> float | None:
        """See `Sealing`."""
        return None

    def meet(self, peer: str) -> None:
        """See `Sealing`."""

    def changes(self) -> tuple[Change, ...]:
        """See `Sealing`."""
        return ()
