"""How a board enrols over its link with the host's one-time code, and how it changes its keys.

SPEC.md section 9.6. Both are a question that is repeated until the host answers, or refuses. A
refusal proves nothing of who has sent it; all that it can do is make a board ask another time.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ternmesh.errors import TrustError, WireError
from ternmesh.trust import rotation
from ternmesh.trust.enrolment import ANSWER, Code, read_answer, write_request
from ternmesh.trust.identity import PublicIdentity
from ternmesh.trust.roster import RosterState
from ternmesh.wire import control, seal
from ternmesh.wire.control import Refusal
from ternmesh_store.keyring import Keyring
from ternmesh_store.radio_stores import RadioStores
from transports.base import HOST, Busy, NotConnected, Transport
from transports.bearer import is_linked, make_transport
from transports.link_config import LinkConfig

PATIENCE_S, AGAIN_S, AGAIN_MAX_S = 120.0, 3.0, 600.0
REFUSED_S = 60.0  # how long a node that waits to change its keys rests after a refusal
WAIT_S = 0.25
# What a host's word for a refusal means to whoever stands before the board.
_REFUSALS = {
    "code": "no such code is out: it has expired, was used, or is of another host",
    "role": "this code is for another role: make one with `enrol code --role`",
    "enrolment": "its log says why; a name that is enrolled keeps its key until that is rotated or "
    "revoked",
    "revoked": "the host has revoked this board's key: move its identity away for a new one",
    "early": "this board's keys were changed within the last hour: ask again then",
    "full": "this board has changed its keys as often as it may: enrol it under another name; or, "
    "where `ternmesh enrol list` at the host still shows the fingerprint that it has, stop it and "
    "delete identity.next beside its identity",
    "unknown key": "the host does not know this board's key: enrol it first",
}
T = TypeVar("T")

_log = logging.getLogger(__name__)


class Refused(TrustError):
    """The host, or somebody in its place, has said no."""


def join(link: LinkConfig, name: str, folder: Path, own: PublicIdentity, code: Code) -> RosterState:
    """The fleet of the host that issued the code; TrustError if it refuses or does not answer."""

    if not may_ask(link):
        raise TrustError(
            "over a radio, whose link has seals of its own, no code travels: carry the lines of "
            "`ternmesh enrol identity` by hand"
        )

    def read(body: bytes) -> RosterState | None:
        if body[0] != ANSWER:
            return None
        host, fleet = read_answer(body, own, code)
        return RosterState(fleet, host)

    found = _ask(link, name, folder, write_request(own, code), read)
    if found is None:
        raise TrustError(
            "the host does not answer: it must be running, and on the same broker and fleet; its "
            "log says more"
        )
    return found


def may_ask(link: LinkConfig) -> bool:
    """Whether the host's answer would arrive: the link of a radio is sealed with keys it knows."""
    return not is_linked(link)


def rotate(link: LinkConfig, name: str, folder: Path, keyring: Keyring) -> bool:
    """Go over to the keyring's next keys; False where the host does not answer. TrustError."""
    return _rotate(link, name, folder, keyring, None)


def finish_rotation(
    link: LinkConfig, name: str, folder: Path, keyring: Keyring, stop: threading.Event
) -> None:
    """Go over to keys that a rotation has left behind, before anything is sealed with the old ones.

    Nobody but the host knows which of the two count, so it is asked until `stop` is set.
    """
    if keyring.rotation is not None and not may_ask(link):
        _log.warning("%s has new keys that wait for `ternmesh enrol rotate --finish`", name)
        return
    while keyring.rotation is not None and not stop.is_set():
        _log.info("%s has new keys: it waits for the host to take them", name)
        try:
            _rotate(link, name, folder, keyring, stop)
        except Refused as error:
            _log.error("%s; it is asked again in %d s", error, REFUSED_S)
            stop.wait(REFUSED_S)


def _rotate(
    link: LinkConfig, name: str, folder: Path, keyring: Keyring, stop: threading.Event | None
) -> bool:
    asked, roster = keyring.rotation, keyring.roster
    assert asked is not None, "begin the rotation first"

    def read(body: bytes) -> bool:
        rotation.check_answer(body, roster.host, roster.fleet, asked)
        return True

    if not _ask(link, name, folder, rotation.write_request(asked), read, stop):
        return False
    keyring.finish_rotation()
    _log.info("%s has new keys, and the host takes no others", name)
    return True


def _ask(
    link: LinkConfig,
    name: str,
    folder: Path,
    body: bytes,
    read: Callable[[bytes], T | None],
    stop: threading.Event | None = None,
) -> T | None:
    """What `read` makes of the answer; None after a while, or when `stop` is set. Refused."""
    transport = make_transport(link, name, RadioStores(folder))
    transport.open()
    try:
        return _converse(transport, seal.seal(seal.Header(seal.ENROL, 0), body), read, stop)
    finally:
        transport.close()


def _converse(
    transport: Transport,
    frame: bytes,
    read: Callable[[bytes], T | None],
    stop: threading.Event | None,
) -> T | None:
    again_at, again_s = 0.0, AGAIN_S
    give_up_at = time.monotonic() + PATIENCE_S if stop is None else math.inf
    while (now := time.monotonic()) < give_up_at and not (stop and stop.is_set()):
        if now >= again_at and _sent(transport, frame):
            again_at, again_s = now + again_s, min(2 * again_s, AGAIN_MAX_S)
        arrival = transport.receive(WAIT_S)
        for frame_in in () if arrival is None else arrival.frames:
            found = _read(frame_in, read)
            if found is not None:
                return found
    return None


def _sent(transport: Transport, frame: bytes) -> bool:
    try:
        transport.send(HOST, [frame])
    except (Busy, NotConnected):
        return False
    return True


def _read(frame: bytes, read: Callable[[bytes], T | None]) -> T | None:
    """What the host says, if this is its answer: whatever else passes is not for us."""
    try:
        header, body = seal.open_seal(frame)
        if header.context != seal.ENROL:
            return None
        message = control.read_control(body) if body[0] == control.KIND else None
        if not isinstance(message, Refusal):
            return read(body)
    except WireError:
        return None
    why = _REFUSALS.get(message.reason, "its log says why")
    raise Refused(f"the host refuses ({message.reason}): {why}")
