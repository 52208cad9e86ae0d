"""Notices: what a host tells in the clear, as it shares no session with the receiver. SPEC.md 9.6.

The host signs that a board's key was revoked. Its own new key comes as the rotation, in fragments
that every bearer carries. A copy of a notice tells nothing that is not true, so anybody may repeat
it.
"""

from collections.abc import Callable

from ternmesh.errors import WireError
from ternmesh.security.host_keys import ROTATION_MAX, ROTATIONS_MAX
from ternmesh.security.identity import Identity, PublicIdentity
from ternmesh.security.keyed_sealing import FRAME_MIN
from ternmesh.security.primitives import statement, verify
from ternmesh.wire import fragments
from ternmesh.wire.fragments import Reassembler
from ternmesh.wire.frame import HEAD_SIZE, UNASSIGNED, Header, open_seal, seal_open

REVOKED, HOST_ROTATED = 0x12, 0x14
# Pauses between notices to the same end; each doubles the pause
NOTICE_FIRST_S, NOTICE_LONGEST_S = 2.0, 3600.0
ROTATION_CHECK_S = 0.02  # after a forged rotation: each costs several checks of signatures
SEARCHED_MAX = 1 << 16  # bytes hashed at most for one fragment, which anybody may send
_HEADER = Header(UNASSIGNED, 0)
_HEADS = tuple(
    seal_open(_HEADER, bytes((kind,)))[: HEAD_SIZE + 1] for kind in (HOST_ROTATED, REVOKED)
)


def is_notice(frame: bytes) -> bool:
    """Whether a frame has the form of a notice; nothing is checked."""
    return frame.startswith(_HEADS)


def is_rotation(frame: bytes) -> bool:
    """Whether a frame has the form of a fragment of a host's rotation."""
    return frame.startswith(_HEADS[0])


def write_notice(host: Identity, fleet: bytes, fingerprint: bytes) -> bytes:
    """The frame that tells the owner of a key that it was revoked."""
    signature = host.sign(statement("revoked", fleet, fingerprint))
    return seal_open(_HEADER, bytes((REVOKED,)) + signature)


def check_notice(frame: bytes, host: PublicIdentity, fleet: bytes, fingerprint: bytes) -> None:
    """WireError unless the frame is a notice of the host that this key was revoked."""
    _, body = open_seal(frame)
    verify(host.verify, body[1:], statement("revoked", fleet, fingerprint))


def rotation_frames(rotations: tuple[bytes, ...]) -> list[bytes]:
    """The frames that carry rotations of a host, of at most FRAME_MIN bytes each."""
    bodies = [body for one in rotations for body in fragments.split(one, FRAME_MIN)]
    return [seal_open(_HEADER, bytes((HOST_ROTATED,)) + body[1:]) for body in bodies]


class RotationReader:
    """Puts rotations of the host together, and hands them on to be followed."""

    def __init__(self) -> None:
        self._fragments = Reassembler(FRAME_MIN, ROTATION_MAX, ROTATIONS_MAX, SEARCHED_MAX)
        self._wait_until = float("-inf")  # a forged one came just before

    def take(self, frame: bytes, follow: Callable[[bytes], bool], now: float) -> bool:
        """Whether the rotation that this frame completes, if any, leads to a new key. WireError.

        `follow` checks a rotation and follows it.
        """
        rotation = self._fragments.add(open_seal(frame)[1])
        if rotation is None or now < self._wait_until:
            return False
        try:
            return follow(rotation)
        except WireError:
            self._wait_until = now + ROTATION_CHECK_S
            raise
