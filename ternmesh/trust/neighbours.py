"""Whom an end knows beside its host: a gateway its boards, a board its gateway. SPEC.md 9.5.

The host signs a list of its fleet. Who trusts the host takes members from it, whoever has carried
it; a list that is old does no harm, since nobody comes back who was revoked.
"""

import base64
import struct
from dataclasses import replace
from typing import Protocol

from ternmesh.errors import TrustError, WireError
from ternmesh.trust.identity import (
    FINGERPRINT_SIZE,
    Identity,
    PublicIdentity,
    Role,
    read_identity,
    write_identity,
)
from ternmesh.trust.primitives import SIGNATURE_SIZE, verify
from ternmesh.trust.roster import HOST, MEMBERS_MAX, OVER_MAX, Roster, RosterState
from ternmesh.trust.statement import statement

MARK = "TM1-FLEET:"
TEXT_MAX = 1 << 21
_COUNT = struct.Struct("<H")


class Members(Protocol):
    """Who belongs to a fleet, as the seals ask."""

    fleet: bytes

    def find(self, peer: str) -> PublicIdentity:
        """The identity of a peer; WireError "unknown key" or "revoked"."""


class Behind:
    """A roster as a board behind a gateway uses it: on its radio, `host` is the gateway.

    TrustError where that is not known, or is none.
    """

    def __init__(self, roster: Roster, gateway: str) -> None:
        self.fleet = roster.fleet
        self._roster, self._gateway = roster, gateway
        try:
            found = roster.find(gateway)
        except WireError as error:
            raise TrustError(
                f"link.gateway is {gateway!r}: {error}; `ternmesh enrol import` takes what "
                "`ternmesh enrol export` on the host has written"
            ) from error
        if found.role not in (Role.GATEWAY, Role.RELAY):
            raise TrustError(f"link.gateway is {gateway!r}, which is a {found.role.name.lower()}")

    def find(self, peer: str) -> PublicIdentity:
        """See `Members`."""
        return self._roster.find(self._gateway if peer == HOST else peer)


def write_fleet(host: Identity, state: RosterState) -> str:
    """The host's list of its members and of the keys that are over, as one line."""
    gone = {*state.revoked, *(fingerprint for _, fingerprint in state.rotated)}
    members = [write_identity(m) for m in state.members if m.fingerprint not in gone]
    content = _COUNT.pack(len(members)) + b"".join(bytes((len(m),)) + m for m in sorted(members))
    content += _COUNT.pack(len(gone)) + b"".join(sorted(gone))
    signature = host.sign(statement("members", state.fleet, content))
    return MARK + base64.b64encode(content + signature).decode()


def read_fleet(text: str, roster: Roster) -> RosterState:
    """The state of `roster` with all that its host says in such a line; TrustError.

    A key that is known stays, unless the host says that it was revoked or rotated.
    """
    coded = text.strip().removeprefix(MARK)
    try:
        if len(text) > TEXT_MAX or coded == text.strip():
            raise ValueError
        data = base64.b64decode(coded, validate=True)
    except ValueError as error:
        raise TrustError(f"this is no list of a fleet: one begins with {MARK}") from error
    content, signature = data[:-SIGNATURE_SIZE], data[-SIGNATURE_SIZE:]
    try:
        verify(roster.host.verify, signature, statement("members", roster.fleet, content))
        members, revoked = _read(content)
    except (WireError, struct.error, IndexError) as error:
        raise TrustError("this list of a fleet was not signed by this end's host") from error
    state = roster.state
    own = {fingerprint for _, fingerprint in state.rotated}
    gone = {*state.revoked, *revoked, *own}
    found = Roster(replace(state, revoked=tuple(sorted(gone - own))))
    for member in members:
        if member.fingerprint not in gone:
            found.enrol(member)
    return found.state


def _read(content: bytes) -> tuple[list[PublicIdentity], list[bytes]]:
    """Members and revoked fingerprints of a list whose signature is right."""
    members, at = [], _COUNT.size
    for _ in range(_count(content, 0, MEMBERS_MAX)):
        end = at + 1 + content[at]
        members.append(read_identity(content[at + 1 : end]))
        at = end
    count = _count(content, at, OVER_MAX)
    at += _COUNT.size
    if len(content) != at + count * FINGERPRINT_SIZE:
        raise IndexError
    starts = range(at, len(content), FINGERPRINT_SIZE)
    return members, [content[start : start + FINGERPRINT_SIZE] for start in starts]


def _count(content: bytes, at: int, most: int) -> int:
    (count,) = _COUNT.unpack_from(content, at)
    if count > most:
        raise IndexError
    return int(count)
