"""The desk where boards enrol with a one-time code. SPEC.md section 9.6.

It stands in front of the coordinator and takes one kind of frame that has no seal, and only while a
code is out: everything else passes on as it is.
"""

import logging
import os
from collections.abc import Sequence

from ternmesh.errors import WireError
from ternmesh.swarm.coordinator import Coordinator
from ternmesh.swarm.events import HostEvent
from ternmesh.trust.enrolment import ENTROPY_SIZE, REQUEST, Enrolments, make_code
from ternmesh.trust.identity import Role
from ternmesh.wire import seal
from ternmesh_store.keyring import Keyring

TOLD_MAX = 1024

_log = logging.getLogger(__name__)


class Desk:
    """See `transports.driver.Endpoint`."""

    def __init__(self, coordinator: Coordinator, keyring: Keyring) -> None:
        self._coordinator, self._keyring = coordinator, keyring
        self._codes = Enrolments()
        self._answers: list[tuple[str, list[bytes]]] = []
        self._told: set[tuple[str, str]] = set()  # strangers must not fill the log

    def issue(self, role: Role, lasts_s: float, now: float) -> str:
        """A new code for one member; TrustError for too many."""
        code = make_code(os.urandom(ENTROPY_SIZE))
        self._codes.issue(code, role, now + lasts_s, now)
        return code

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Take requests for enrolment; pass on the rest."""
        if self._codes.are_out:
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
        try:
            header, body = seal.open_seal(frame)
        except WireError:
            return False
        if header.context != seal.ENROL or body[0] != REQUEST:
            return False
        try:
            public, answer = self._codes.accept(body, self._keyring.roster, now, peer)
        except WireError as error:
            if (peer, error.reason) not in self._told and len(self._told) < TOLD_MAX:
                self._told.add((peer, error.reason))
                _log.warning("%s was not enrolled: %s", peer, error)
            return True
        self._keyring.keep_roster()  # on disk before the answer leaves
        _log.info("%s is enrolled as a %s", public.name, public.role.name.lower())
        self._answers.append((peer, [seal.seal(seal.Header(seal.ENROL, 0), answer)]))
        return True
