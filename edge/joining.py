"""How a board enrols over its link with the host's one-time code. SPEC.md section 9.6."""

import time
from pathlib import Path

from edge.config import NodeConfig
from ternmesh.errors import TrustError, WireError
from ternmesh.trust.enrolment import ANSWER, Code, read_answer, write_request
from ternmesh.trust.identity import PublicIdentity
from ternmesh.trust.roster import RosterState
from ternmesh.wire import seal
from ternmesh_store.radio_stores import RadioStores
from transports.base import HOST, Busy, NotConnected, Transport
from transports.bearer import make_transport

PATIENCE_S, AGAIN_S = 120.0, 3.0


def join(config: NodeConfig, own: PublicIdentity, code: Code) -> RosterState:
    """The fleet of the host that issued the code; TrustError if it does not answer."""
    transport = make_transport(config.link, config.name, RadioStores(Path(config.state_dir)))
    transport.open()
    try:
        return _ask(transport, own, code)
    finally:
        transport.close()


def _ask(transport: Transport, own: PublicIdentity, code: Code) -> RosterState:
    frame = seal.seal(seal.Header(seal.ENROL, 0), write_request(own, code))
    give_up_at, again_at = time.monotonic() + PATIENCE_S, 0.0
    while (now := time.monotonic()) < give_up_at:
        if now >= again_at and _sent(transport, frame):
            again_at = now + AGAIN_S
        arrival = transport.receive(0.25)
        for frame_in in () if arrival is None else arrival.frames:
            found = _answer(frame_in, own, code)
            if found is not None:
                return found
    raise TrustError(
        "the host does not answer: it must be running, and the code be of `ternmesh enrol code`, "
        "not too old and not used; the host's log says why it refuses"
    )


def _sent(transport: Transport, frame: bytes) -> bool:
    try:
        transport.send(HOST, [frame])
    except (Busy, NotConnected):
        return False
    return True


def _answer(frame: bytes, own: PublicIdentity, code: Code) -> RosterState | None:
    """What the host says, if this is its answer: whatever else passes is not for us."""
    try:
        _, body = seal.open_seal(frame)
        if body[0] != ANSWER:
            return None
        host, fleet = read_answer(body, own, code)
    except WireError:
        return None
    return RosterState(fleet, host)
