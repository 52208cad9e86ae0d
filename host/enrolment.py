"""The host's service for enrolment with a code and the list of members (SPEC.md 9.6).

It handles for a host what comes without a seal: two kinds of request, and proofs that the host's
key has a successor. It also gives boards the notices of the host: that they were revoked, or that
the host has a new key.
"""

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ternmesh.errors import SecurityError, WireError
from ternmesh.federated.channel import Channel
from ternmesh.federated.fleet_session import IN_CLEAR, Handlers
from ternmesh.security import enrolment, notices
from ternmesh.security.enrolment import (
    ENTROPY_SIZE,
    LIST_REQUEST,
    EnrolmentCodes,
    make_code,
    read_list_request,
)
from ternmesh.security.identity import Role
from ternmesh.security.membership import write_fleet
from ternmesh.timers import RateLimiter
from ternmesh.wire import control, fragments
from ternmesh.wire.control import Refusal
from ternmesh.wire.frame import FRAME_MAX, open_seal, seal_open
from ternmesh_service.keyring import SUPERSEDED, Keyring

ANSWER_MIN_S = 1.0  # between two answers, and between two refusals, to a peer
CHECK_MIN_S = 0.02  # between two requests of all members that cost a check of signatures
LIST_MIN_S = 10.0  # between two lists for a gateway

_Request = Callable[[str, bytes, float], Sequence[bytes]]

_log = logging.getLogger(__name__)


class EnrolmentService:
    """Handles the messages in the clear that come over `channel`, once they are registered."""

    def __init__(self, keyring: Keyring, channel: Channel[Any]) -> None:
        self._keyring = keyring
        self._channel = channel
        self._codes = EnrolmentCodes()
        # What is proved and what is not count apart: who sends requests in a board's name without
        # its proof must not use up the board's answers.
        self._proved = RateLimiter(ANSWER_MIN_S)
        self._unproved = RateLimiter(ANSWER_MIN_S)
        self._checks = RateLimiter(CHECK_MIN_S)
        self._lists = RateLimiter(LIST_MIN_S)
        # By kind and fingerprint
        self._notices = RateLimiter(notices.NOTICE_FIRST_S, notices.NOTICE_LONGEST_S)
        self._rotations = notices.RotationReader()

    def register(self, handlers: Handlers) -> None:
        """Handle these messages of a host from now on."""
        handlers.in_clear |= {
            enrolment.REQUEST: partial(self._answer, self._enrol),
            LIST_REQUEST: partial(self._answer, self._list),
            notices.HOST_ROTATED: self._hear_rotation,
        }
        handlers.after_frames = self.tell

    def issue(self, role: Role, lasts_s: float, now: float) -> str:
        """A new code for one member; SecurityError for too many open codes."""
        code = make_code(os.urandom(ENTROPY_SIZE))
        self._codes.issue(code, role, now + lasts_s, now)
        return code

    def tell(self, peer: str, now: float) -> None:
        """Tell a board in the clear what it cannot hear under a seal, with growing pauses."""
        member_list = self._keyring.member_list
        fingerprint = member_list.revoked(peer)
        if fingerprint is not None:
            kind = notices.REVOKED
        elif self._keyring.is_strange(peer):  # it seals for an earlier key of this host
            kind, fingerprint = notices.HOST_ROTATED, peer.encode()
        else:
            return
        if self._notices.allow(f"{kind} {fingerprint.hex()}", now):
            # A board that was away first needs the key with which a notice is signed.
            frames = notices.rotation_frames(member_list.hosts.rotations)
            if kind != notices.HOST_ROTATED:
                own = self._keyring.own
                frames.append(notices.write_notice(own, member_list.fleet, fingerprint))
            for frame in frames:
                self._channel.send_in_clear(peer, [frame])  # links pass those alone

    def _hear_rotation(self, _peer: str, frame: bytes, now: float) -> None:
        """Stop where a board proves that this host's key has a successor: there must be one host.

        SecurityError. The rotation is on disk then, so the next start is refused too.
        """
        try:
            is_over = self._rotations.take(frame, self._keyring.follow_host, now)
        except WireError as error:
            self._channel.refused[error.reason] += 1
            return
        if is_over:
            raise SecurityError(f"this host has {SUPERSEDED}")

    def _answer(self, request: _Request, peer: str, frame: bytes, now: float) -> None:
        """Send the answer or refusal; nothing where it would be one too many."""
        _, body = open_seal(frame)
        answers: Sequence[bytes] = ()
        try:
            answers = request(peer, body, now)
        except WireError as error:
            self._channel.show_refusal(peer, error.reason)
            if self._unproved.allow(peer, now):
                answers = (control.write_control(Refusal(0, error.reason)),)
        if answers:
            self._channel.send_in_clear(peer, [seal_open(IN_CLEAR, answer) for answer in answers])

    def _enrol(self, peer: str, body: bytes, now: float) -> Sequence[bytes]:
        public, answer = self._codes.accept(body, self._keyring.member_list, now, peer)
        if not self._proved.allow(peer, now):
            return ()
        self._keyring.keep_member_list()  # on disk before the answer is sent
        _log.info("%s is enrolled as a %s", public.name, public.role.name.lower())
        return (answer,)

    def _list(self, peer: str, body: bytes, now: float) -> Sequence[bytes]:
        """The membership list for a gateway, which asks in the name of one of its boards.

        A board gets a refusal: one with `role` tells that this host knows it.
        """
        keyring = self._keyring
        if not self._checks.allow("", now):
            return ()
        gateway, number = read_list_request(body, keyring.member_list)
        if gateway.role is Role.NODE:
            answer = control.write_control(Refusal(0, "role"))
            return (answer,) if self._unproved.allow(peer, now) else ()
        if number >= keyring.member_list.number or not self._lists.allow(gateway.name, now):
            return ()
        fleet = fragments.split(write_fleet(keyring.own, keyring.member_list.state), FRAME_MAX)
        # A gateway that does not know the present key takes the list with it.
        rotations = notices.rotation_frames(keyring.member_list.hosts.rotations)
        return [*(open_seal(frame)[1] for frame in rotations), *fleet]
