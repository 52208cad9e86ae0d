"""How a board enrols over its link with a one-time code of the host. SPEC.md section 9.6.

The board repeats its request until the host answers or refuses it. A refusal is not authenticated,
and may be the answer to a forged request: it ends an attempt only if no proved answer follows soon.
"""

import time
from contextlib import closing

from ternmesh.errors import SecurityError, WireError
from ternmesh.federated.refusals import why
from ternmesh.security.enrolment import (
    ANSWER,
    EnrolmentCode,
    read_answer,
    refusal_in_clear,
    write_list_request,
    write_request,
)
from ternmesh.security.identity import Identity, PublicIdentity
from ternmesh.security.membership import MemberListState
from ternmesh.wire.frame import UNASSIGNED, Header, open_seal, seal_open
from ternmesh_store.state_file import StateFile
from transports.base import HOST, Busy, NotConnected, Transport
from transports.factory import is_linked, make_transport
from transports.link_config import LinkConfig

GIVE_UP_S = 120.0  # without an answer
REPEAT_S = 3.0  # before a request is first repeated; the interval doubles each time
ANSWER_S = 2.0  # after a refusal, for the answer to the board's own request
ASK_S = 7.0  # for an answer whether the host knows a board
KNOWN = "role"  # the refusal of a member that gets no list of all members
WAIT_S = 0.25  # of one wait for an arrival


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

    frame = seal_open(Header(UNASSIGNED, 0), write_request(own, code))
    repeat_at, repeat_s = 0.0, REPEAT_S
    refused: EnrolmentRefused | None = None
    with closing(make_transport(link, name, state)) as transport:
        transport.open()
        give_up_at = time.monotonic() + GIVE_UP_S
        while (now := time.monotonic()) < give_up_at:
            if now >= repeat_at and _send(transport, frame):
                repeat_at = now + repeat_s
                repeat_s = 2 * repeat_s
            arrival = transport.receive(WAIT_S)
            for answer in () if arrival is None else arrival.frames:
                try:
                    fleet = _read(answer, own, code)
                except EnrolmentRefused as error:
                    if refused is None:
                        refused, give_up_at = error, min(give_up_at, now + ANSWER_S)
                    continue
                if fleet is not None:
                    return fleet
    raise refused or SecurityError(
        "the host does not answer: it must be running, with the same broker and fleet; see its log"
    )


def ask_host(transport: Transport, own: Identity, fleet: bytes) -> str | None:
    """The reason of the host's refusal; `KNOWN` where it knows this key, None without an answer.

    Anybody on the link could answer: nothing but advice may follow from it.
    """
    question = seal_open(Header(UNASSIGNED, 0), write_list_request(own, fleet, 0))
    give_up_at, repeat_at = time.monotonic() + ASK_S, 0.0
    while (now := time.monotonic()) < give_up_at:
        if now >= repeat_at and _send(transport, question):
            repeat_at = now + REPEAT_S
        arrival = transport.receive(WAIT_S)
        for answer in () if arrival is None else arrival.frames:
            try:
                if (reason := refusal_in_clear(answer)) is not None:
                    return reason
            except WireError:
                continue
    return None


def _send(transport: Transport, frame: bytes) -> bool:
    try:
        transport.send(HOST, [frame])
    except (Busy, NotConnected):
        return False
    return True


def _read(frame: bytes, own: PublicIdentity, code: EnrolmentCode) -> MemberListState | None:
    """The fleet in the host's answer, or None for any other frame. Refused."""
    try:
        reason = refusal_in_clear(frame)
        if reason is None:
            header, body = open_seal(frame)
            is_answer = header.address == UNASSIGNED and body[0] == ANSWER
            return read_answer(body, own, code) if is_answer else None
    except WireError:
        return None
    advice = why(reason, on_host=False)
    raise EnrolmentRefused(f"the host refuses ({reason}): {advice}")
