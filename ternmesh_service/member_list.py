"""How a gateway gets the host's membership list over its network. SPEC.md section 9.6.

It asks at its start and once a minute, in the name of one of its boards: it has no connection of
its own. The host answers if its list has a higher number.
"""

import logging
from collections.abc import Sequence

from ternmesh.errors import SecurityError, WireError
from ternmesh.security.enrolment import write_list_request
from ternmesh.security.membership import TEXT_MAX
from ternmesh.security.notices import RotationReader, is_rotation
from ternmesh.wire import fragments
from ternmesh.wire.fragments import Reassembler
from ternmesh.wire.frame import FRAME_MAX, HEAD_SIZE, UNASSIGNED, Header, open_seal, seal_open
from ternmesh_service.keyring import Keyring

ASK_S = 60.0  # between two requests

_HEADER = Header(UNASSIGNED, 0)
_HEAD = seal_open(_HEADER, bytes((fragments.KIND,)))[: HEAD_SIZE + 1]

_log = logging.getLogger(__name__)


class MemberListClient:
    """The gateway's side. `now` is in seconds of a monotonic clock."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._ask_at = 0.0
        self._pieces = Reassembler(FRAME_MAX, TEXT_MAX, 1)
        self._rotations = RotationReader()

    def request(self, now: float) -> bytes | None:
        """The frame with the request for the list, if it is due."""
        if now < self._ask_at:
            return None
        self._ask_at = now + ASK_S
        member_list = self._keyring.member_list
        number = member_list.number
        return seal_open(_HEADER, write_list_request(self._keyring.own, member_list.fleet, number))

    def receive(self, frames: Sequence[bytes], now: float) -> list[bytes]:
        """Take pieces of the list out of frames from the host; returns the other frames.

        Rotations of the host are among these too: the boards need them as well.
        """
        return [frame for frame in frames if not self._take(frame, now)]

    def _take(self, frame: bytes, now: float) -> bool:
        is_piece = frame.startswith(_HEAD)
        try:
            if is_rotation(frame) and self._rotations.take(frame, self._keyring.follow_host, now):
                _log.info("the host has a new key")
            if not is_piece:
                return False
            data = self._pieces.add(open_seal(frame)[1])
            if data is not None and self._keyring.learn(data):
                state = self._keyring.member_list.state
                _log.info("membership list %d: %d members", state.number, len(state.members))
        except (WireError, SecurityError) as error:
            _log.debug("a piece of a list, or of a host's rotation, is refused: %s", error)
        return is_piece
