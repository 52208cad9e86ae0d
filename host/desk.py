"""The desk where boards enrol with a one-time code, or change their keys. SPEC.md section 9.6.

It stands in front of the coordinator and takes the two kinds of body that have no seal: everything
else passes on as it is.
"""

import logging
import os
from collections.abc import Sequence

from ternmesh.errors import WireError
from ternmesh.swarm.coordinator import Coordinator
from ternmesh.swarm.events import HostEvent
from ternmesh.swarm.seldom import Seldom
from ternmesh.trust import enrolment, rotation
from ternmesh.trust.enrolment import ENTROPY_SIZE, Enrolments, make_code
from ternmesh.trust.identity import Role
from ternmesh.wire import control, seal
from ternmesh.wire.control import Refusal
from ternmesh_store.keyring import Keyring

_HEADER = seal.Header(seal.ENROL, 0)
_HEAD = seal.seal(_HEADER, b"x")[:3]  # version, suite 0, context
TOLD_MAX = 1024
TAKEN_MIN_S = 1.0  # a peer is heard so seldom: signatures are checked for strangers, too

_log = logging.getLogger(__name__)


class Desk:
    """See `transports.driver.Endpoint`."""

    def __init__(self, coordinator: Coordinator, keyring: Keyring) -> None:
        self._coordinator, self._keyring = coordinator, keyring
        self._codes = Enrolments()
        self._answers: list[tuple[str, list[bytes]]] = []
        self._heard = Seldom(TAKEN_MIN_S)
        self._told: set[tuple[str, str]] = set()  # strangers must not fill the log

    def issue(self, role: Role, lasts_s: float, now: float) -> str:
        """A new code for one member; TrustError for too many."""
        code = make_code(os.urandom(ENTROPY_SIZE))
        self._codes.issue(code, role, now + lasts_s, now)
        return code

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Take requests; pass on the rest."""
        frames = [frame for frame in frames if not self._take(peer, frame, now)]
        self._coordinator.receive_frames(peer, frames, now)

    def next_timeout(self) -> float | None:
        """The coordinator's."""
        return self._coordinator.next_timeout()

    def handle_timeout(self, now: float) -> None:
        """The coordinator's."""
        self._coordinator.handle_timeout(now)

    def next_event(self) -> HostEvent | None:
        """The coordinator's."""
        return self._coordinator.next_event()

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:
        """Answers, and the coordinator's frames."""
        answers, self._answers = self._answers, []
        return answers + self._coordinator.frames_to_send(now)

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
            if (peer, error.reason) not in self._told and len(self._told) < TOLD_MAX:
                self._told.add((peer, error.reason))
                _log.warning("%s was refused at the desk: %s", peer, error)
            return control.write_control(Refusal(0, error.reason))

    def _enrol(self, peer: str, body: bytes, now: float) -> bytes:
        public, answer = self._codes.accept(body, self._keyring.roster, now, peer)
        self._keyring.keep_roster()  # on disk before the answer leaves
        _log.info("%s is enrolled as a %s", public.name, public.role.name.lower())
        return answer

    def _rotate(self, peer: str, body: bytes, _now: float) -> bytes:
        keyring = self._keyring
        before = keyring.roster.find(peer)
        public, answer = rotation.accept(body, keyring.roster, keyring.own, peer)
        if public != before:
            keyring.keep_rotation()
            _log.info("%s has new keys: %s", peer, public.fingerprint.hex())
        return answer
