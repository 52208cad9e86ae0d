"""The desk where boards enrol with a one-time code, or change their keys. SPEC.md section 9.6.

It stands in front of what a host serves and takes the two kinds of body that have no seal:
everything else passes on as it is.
"""

import logging
import os
from collections import Counter
from collections.abc import Sequence
from typing import Generic

from ternmesh.errors import WireError
from ternmesh.swarm.seldom import Seldom
from ternmesh.trust import enrolment, rotation
from ternmesh.trust.enrolment import ENTROPY_SIZE, Enrolments, make_code
from ternmesh.trust.identity import Role
from ternmesh.wire import control, seal
from ternmesh.wire.control import Refusal
from ternmesh_store.keyring import Keyring
from transports.driver import Endpoint, Event

_HEADER = seal.Header(seal.ENROL, 0)
_HEAD = seal.seal(_HEADER, b"x")[:3]  # version, suite 0, context
TOLD_MAX = 1024
ROTATED_MIN_S = 3600.0  # between two rotations of one member: each is for ever in the roster
TAKEN_MIN_S = 1.0  # a peer is heard so seldom: signatures are checked for strangers, too

_log = logging.getLogger(__name__)


class Desk(Generic[Event]):
    """See `transports.driver.Endpoint`. `refused` counts what it refuses, for status."""

    def __init__(self, endpoint: Endpoint[Event], keyring: Keyring, refused: Counter[str]) -> None:
        self._endpoint, self._keyring, self._refused = endpoint, keyring, refused
        self._codes = Enrolments()
        self._answers: list[tuple[str, list[bytes]]] = []
        self._heard = Seldom(TAKEN_MIN_S)
        self._rotated_at: dict[str, float] = {}  # by member
        self._told: set[tuple[str, str]] = set()  # strangers must not fill the log

    def issue(self, role: Role, lasts_s: float, now: float) -> str:
        """A new code for one member; TrustError for too many."""
        code = make_code(os.urandom(ENTROPY_SIZE))
        self._codes.issue(code, role, now + lasts_s, now)
        return code

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Take requests; pass on the rest."""
        frames = [frame for frame in frames if not self._take(peer, frame, now)]
        self._endpoint.receive_frames(peer, frames, now)

    def next_timeout(self) -> float | None:
        """The endpoint's."""
        return self._endpoint.next_timeout()

    def handle_timeout(self, now: float) -> None:
        """The endpoint's."""
        self._endpoint.handle_timeout(now)

    def next_event(self) -> Event | None:
        """The endpoint's."""
        return self._endpoint.next_event()

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:
        """Answers, and the endpoint's frames."""
        answers, self._answers = self._answers, []
        return answers + self._endpoint.frames_to_send(now)

    def _take(self, peer: str, frame: bytes, now: float) -> bool:
        """Whether a frame was for the desk."""
        if frame[:3] != _HEAD:
            return False
        try:
            _, body = seal.open_seal(frame)
        except WireError:
            return False
        if body[0] not in (enrolment.REQUEST, rotation.REQUEST):
            return False
        if self._heard.may(peer, now):
            self._answers.append((peer, [seal.seal(_HEADER, self._answer(peer, body, now))]))
        return True

    def _answer(self, peer: str, body: bytes, now: float) -> bytes:
        try:
            take = self._enrol if body[0] == enrolment.REQUEST else self._rotate
            return take(peer, body, now)
        except WireError as error:
            self._refused[error.reason] += 1
            if (peer, error.reason) not in self._told and len(self._told) < TOLD_MAX:
                self._told.add((peer, error.reason))
                _log.warning("%s was refused at the desk: %s", peer, error)
            return control.write_control(Refusal(0, error.reason))

    def _enrol(self, peer: str, body: bytes, now: float) -> bytes:
        public, answer = self._codes.accept(body, self._keyring.roster, now, peer)
        self._keyring.keep_roster()  # on disk before the answer leaves
        _log.info("%s is enrolled as a %s", public.name, public.role.name.lower())
        return answer

    def _rotate(self, peer: str, body: bytes, now: float) -> bytes:
        keyring = self._keyring
        before, last = keyring.roster.find(peer), self._rotated_at.get(peer)
        is_early = last is not None and now < last + ROTATED_MIN_S
        if is_early and keyring.roster.rotated(body[1:]) is None:
            raise WireError("early", "it has changed its keys within the last hour")
        public, answer = rotation.accept(body, keyring.roster, keyring.own, peer)
        if public != before:
            self._rotated_at[peer] = now
            keyring.keep_rotation()
            _log.info("%s has new keys: %s", peer, public.fingerprint.hex())
        return answer
