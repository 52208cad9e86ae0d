"""How a board enrols over its link with a one-time code of the host, and rotates its keys.

See SPEC.md section 9.6. In both cases the board repeats its request until the host answers or
refuses it. A refusal is not authenticated, and may be the answer to a forged request: it ends an
attempt only if no proved answer follows soon.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from ternmesh.errors import SecurityError, WireError
from ternmesh.federated.refusals import why
from ternmesh.security.enrolment import (
    ANSWER,
    EnrolmentCode,
    check_rotation_answer,
    read_answer,
    write_request,
    write_rotation_request,
)
from ternmesh.security.identity import PublicIdentity
from ternmesh.security.membership import MemberListState
from ternmesh.wire import control
from ternmesh.wire.control import Refusal
from ternmesh.wire.frame import UNASSIGNED, Header, open_seal, seal_open
from ternmesh_service.keyring import Keyring
from ternmesh_service.notify import no_beat
from ternmesh_store.state_file import StateFile
from transports.base import HOST, Busy, NotConnected, Transport
from transports.factory import is_linked, make_transport
from transports.link_config import LinkConfig

GIVE_UP_S = 120.0  # without an answer
REPEAT_S = 3.0  # before a request is first repeated; the interval doubles each time
REPEAT_MAX_S = 600.0
ANSWER_S = 2.0  # after a refusal, for the answer to the board's own request
REFUSED_S = 60.0  # pause after a refusal of new keys
WAIT_S = 0.25  # of one wait for an arrival
T = TypeVar("T")

_log = logging.getLogger(__name__)


class EnrolmentRefused(SecurityError):
    """A refusal arrived, from the host or from someone who pretends to be the host."""


def join(
    link: LinkConfig, name: str, state: StateFile, own: PublicIdentity, code: EnrolmentCode
) -> MemberListState:
    """The fleet of the host that issued the code; SecurityError if it refuses or is silent."""
    if is_linked(link):
        raise SecurityError(
            "a board cannot enrol with a code over a radio, whose link is sealed: copy the output "
            "of `ternmesh enrol identity` to the host by hand"
        )

    def read(body: bytes) -> MemberListState | None:
        if body[0] != ANSWER:
            return None
        return read_answer(body, own, code)

    fleet = _ask(link, name, state, write_request(own, code), read)
    if fleet is None:
        raise SecurityError(
            "the host does not answer: it must be running, with the same broker and fleet; see its "
            "log"
        )
    return fleet


def finish_rotation(
    link: LinkConfig,
    name: str,
    keyring: Keyring,
    stop: threading.Event,
    beat: Callable[[], None] = no_beat,
) -> None:
    """Complete an interrupted rotation before anything is sealed with the old keys.

    Only the host knows which keys are valid, so it is asked until it answers or `stop` is set.
    """
    if keyring.rotation is not None and is_linked(link):  # a board without keys cannot ask
        _log.warning("%s has new keys, which wait for `ternmesh enrol rotate --finish`", name)
        return
    while keyring.rotation is not None and not stop.is_set():
        _log.info("%s has new keys and waits for the host to accept them", name)
        try:
            rotate_keys(link, name, keyring, stop, beat)
        except EnrolmentRefused as error:
            _log.error("%s; the next request is in %d s", error, REFUSED_S)
            stop.wait(REFUSED_S)


def rotate_keys(
    link: LinkConfig,
    name: str,
    keyring: Keyring,
    stop: threading.Event | None = None,
    beat: Callable[[], None] = no_beat,
) -> bool:
    """Switch to the keyring's next keys; False if the host does not answer. SecurityError."""
    rotation = keyring.rotation
    member_list = keyring.member_list
    assert rotation is not None, "begin the rotation first"

    def read(body: bytes) -> bool:
        check_rotation_answer(body, member_list.host, member_list.fleet, rotation)
        return True

    request = write_rotation_request(rotation)
    if not _ask(link, name, keyring.state, request, read, stop, beat):
        return False
    keyring.finish_rotation()
    _log.info("%s uses its new keys; the host accepts no others", name)
    return True


def _ask(
    link: LinkConfig,
    name: str,
    state: StateFile,
    body: bytes,
    read: Callable[[bytes], T | None],
    stop: threading.Event | None = None,
    beat: Callable[[], None] = no_beat,
) -> T | None:
    """The answer as `read` returns it; None after `GIVE_UP_S`, or when `stop` is set. Refused."""
    frame = seal_open(Header(UNASSIGNED, 0), body)
    repeat_at = 0.0
    repeat_s = REPEAT_S
    refused: EnrolmentRefused | None = None
    with closing(make_transport(link, name, state)) as transport:
        transport.open()
        give_up_at = time.monotonic() + GIVE_UP_S if stop is None else math.inf
        while (now := time.monotonic()) < give_up_at and not (stop and stop.is_set()):
            if now >= repeat_at and _send(transport, frame):
                repeat_at = now + repeat_s
                repeat_s = min(2 * repeat_s, REPEAT_MAX_S)
            arrival = transport.receive(WAIT_S)
            beat()
            for answer in () if arrival is None else arrival.frames:
                try:
                    result = _read(answer, read)
                except EnrolmentRefused as error:
                    if refused is None:
                        refused, give_up_at = error, min(give_up_at, now + ANSWER_S)
                    continue
                if result is not None:
                    return result
    if refused is not None:
        raise refused
    return None


def _send(transport: Transport, frame: bytes) -> bool:
    try:
        transport.send(HOST, [frame])
    except (Busy, NotConnected):
        return False
    return True


def _read(frame: bytes, read: Callable[[bytes], T | None]) -> T | None:
    """The host's answer, or None for any other frame. Refused."""
    try:
        header, body = open_seal(frame)
        if header.address != UNASSIGNED:
            return None
        message = control.read_control(body) if body[0] == control.KIND else None
        if not isinstance(message, Refusal):
            return read(body)
    except WireError:
        return None
    advice = why(message.reason, on_host=False)
    raise EnrolmentRefused(f"the host refuses ({message.reason}): {advice}")
