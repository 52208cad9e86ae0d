"""Who belongs to a fleet, and who no longer does. SPEC.md section 9.5.

A key that is known is never replaced by a first contact: only its owner's signature rotates it, and
only the host's list revokes it. A host of several fleets has a roster for each.
"""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from ternmesh.errors import TrustError, WireError
from ternmesh.trust.identity import (
    FINGERPRINT_SIZE,
    Identity,
    PublicIdentity,
    Role,
    read_identity,
    write_identity,
)
from ternmesh.trust.keys import FLEET_SIZE
from ternmesh.trust.primitives import SIGNATURE_SIZE, verify
from ternmesh.trust.statement import statement

HOST, ALL = "host", "all"
MEMBERS_MAX = 4096
REVOKED_MAX = 4096
ROTATED_MAX = 12  # by one name, in all: none is ever forgotten, as a gateway may still know it
OVER_MAX = REVOKED_MAX + MEMBERS_MAX * ROTATED_MAX  # keys that are over; they fit a u16
_LIST = struct.Struct("<IH")


@dataclass(frozen=True, slots=True)
class RosterState:
    """What must survive: `revoked` are fingerprints, `number` that of the list they came in.

    `rotated` are the fingerprints that members have left behind, each behind the name of its owner.
    """

    fleet: bytes
    host: PublicIdentity
    members: tuple[PublicIdentity, ...] = ()
    revoked: tuple[bytes, ...] = ()
    number: int = 0
    rotated: tuple[tuple[str, bytes], ...] = ()


def found_fleet(name: str, host: PublicIdentity) -> RosterState:
    """A new fleet of this host: the 16 bytes that name it depend on the host's first key."""
    if host.role is not Role.HOST:
        raise TrustError(f"{host.name} is no host: a fleet is founded by one")
    digest = hashlib.sha256(b"ternmesh fleet" + write_identity(host) + name.encode()).digest()
    return RosterState(digest[:FLEET_SIZE], host)


class Roster:
    """The members of one fleet by the names that the bearer knows them by."""

    def __init__(self, state: RosterState) -> None:
        self.fleet, self.number = state.fleet, state.number
        self._host = state.host
        self._members = {member.name: member for member in state.members}
        self._revoked = set(state.revoked)
        self._rotated = {fingerprint: name for name, fingerprint in state.rotated}

    @property
    def state(self) -> RosterState:
        """What must survive; the lists are sorted."""
        members = tuple(sorted(self._members.values(), key=lambda member: member.name))
        revoked = tuple(sorted(self._revoked))
        rotated = tuple(sorted((name, old) for old, name in self._rotated.items()))
        return RosterState(self.fleet, self._host, members, revoked, self.number, rotated)

    @property
    def host(self) -> PublicIdentity:
        """The host of the fleet."""
        return self._host

    def find(self, peer: str) -> PublicIdentity:
        """The identity of a peer; WireError "unknown key" or "revoked"."""
        found = self._host if peer == HOST else self._members.get(peer)
        if found is None:
            raise WireError("unknown key", f"{peer} is not enrolled in this fleet")
        if found.fingerprint in self._revoked:
            raise WireError("revoked", f"the key of {peer} was revoked")
        return found

    def enrol(self, public: PublicIdentity) -> bool:
        """Take a member in; False where it is in already. TrustError, never another key."""
        if public.name in (HOST, ALL) or public.role is Role.HOST:
            raise TrustError("the names host and all, and the role of the host, are taken")
        if self._is_over(public.fingerprint):
            raise TrustError(
                f"the key of {public.name} was revoked or rotated: make it a new identity"
            )
        known = self._members.get(public.name)
        if known == public:
            return False
        if known is not None and known.fingerprint not in self._revoked:
            raise TrustError(
                f"{public.name} is enrolled with another key: only a rotation signed by that key "
                "replaces it"
            )
        others = (self._host, *self._members.values())
        if any(public.verify == o.verify or public.exchange == o.exchange for o in others):
            raise TrustError(f"the key of {public.name} is enrolled under another name")
        if known is None and len(self._members) >= MEMBERS_MAX:
            raise TrustError(f"a fleet has at most {MEMBERS_MAX} members")
        self._members[public.name] = public
        return True

    def rotate(self, data: bytes) -> PublicIdentity:
        """Take a member's rotation (`write_rotation`); its new identity. WireError."""
        old, new = read_rotation(data, self.fleet, self._owner_of(data))
        if self._is_over(new.fingerprint):
            raise WireError("revoked", f"{new.name} cannot go back to a key that is over")
        others = [self._host, *self._members.values()]
        others.remove(old)
        if any(new.verify == o.verify or new.exchange == o.exchange for o in others):
            raise WireError("enrolment", f"the new key of {new.name} is somebody else's")
        if list(self._rotated.values()).count(new.name) >= ROTATED_MAX:
            raise WireError(
                "full", f"{new.name} has changed its keys {ROTATED_MAX} times: give it a new name"
            )
        self._rotated[old.fingerprint] = new.name
        self._members[new.name] = new
        return new

    def rotated(self, data: bytes) -> PublicIdentity | None:
        """The member whose rotation from an old key is in force already, if this names one."""
        try:
            new = read_identity(data[FINGERPRINT_SIZE : -2 * SIGNATURE_SIZE])
        except TrustError:
            return None
        is_in_force = self._members.get(new.name) == new
        is_of_it = self._rotated.get(data[:FINGERPRINT_SIZE]) == new.name
        return new if is_in_force and is_of_it else None

    def revoke(self, data: bytes) -> bool:
        """Take the host's list (`write_revocations`); False for one that is known. WireError."""
        number, revoked = read_revocations(data, self.fleet, self._host)
        if number < self.number:
            raise WireError("replay", "a list of revocations older than the one in force")
        if number == self.number:
            return False
        if len(self._revoked | revoked) > OVER_MAX:
            raise WireError("full", "too many keys were revoked in this fleet")
        self._revoked |= revoked  # nobody comes back
        self.number = number
        return True

    def _is_over(self, fingerprint: bytes) -> bool:
        return fingerprint in self._revoked or fingerprint in self._rotated

    def _owner_of(self, data: bytes) -> PublicIdentity:
        for member in self._members.values():
            if member.fingerprint == data[:FINGERPRINT_SIZE]:
                if member.fingerprint in self._revoked:
                    raise WireError("revoked", f"a revoked key of {member.name} cannot be rotated")
                return member
        raise WireError("unknown key", "a rotation of a key that nobody here has")


def write_rotation(old: Identity, new: Identity, fleet: bytes) -> bytes:
    """The bytes by which an identity changes its keys, signed by the old and by the new one."""
    if (old.public.name, old.public.role) != (new.public.name, new.public.role):
        raise ValueError("a rotation keeps name and role")
    content = old.public.fingerprint + write_identity(new.public)
    message = statement("rotation", fleet, content)
    return content + old.sign(message) + new.sign(message)


def read_rotation(
    data: bytes, fleet: bytes, old: PublicIdentity
) -> tuple[PublicIdentity, PublicIdentity]:
    """`old` and its new identity; WireError."""
    content, signatures = data[: -2 * SIGNATURE_SIZE], data[-2 * SIGNATURE_SIZE :]
    try:
        new = read_identity(content[FINGERPRINT_SIZE:])
    except TrustError as error:
        raise WireError("enrolment", str(error)) from error
    if content[:FINGERPRINT_SIZE] != old.fingerprint or (new.name, new.role) != (
        old.name,
        old.role,
    ):
        raise WireError("enrolment", "a rotation keeps name and role, and names the old key")
    message = statement("rotation", fleet, content)
    verify(old.verify, signatures[:SIGNATURE_SIZE], message)
    verify(new.verify, signatures[SIGNATURE_SIZE:], message)
    return old, new


def write_revocations(
    host: Identity, fleet: bytes, number: int, fingerprints: Iterable[bytes]
) -> bytes:
    """The host's list; `number` rises with every list. TrustError for one that is too long."""
    rows = sorted(set(fingerprints))
    if any(len(row) != FINGERPRINT_SIZE for row in rows):
        raise ValueError(f"a fingerprint has {FINGERPRINT_SIZE} bytes")
    if len(rows) > REVOKED_MAX:
        raise TrustError(
            f"a fleet can revoke at most {REVOKED_MAX} keys: begin a new one (SECURITY.md says how)"
        )
    content = _LIST.pack(number, len(rows)) + b"".join(rows)
    return content + host.sign(statement("revocations", fleet, content))


def read_revocations(data: bytes, fleet: bytes, host: PublicIdentity) -> tuple[int, set[bytes]]:
    """Number and fingerprints of a list; WireError. Its signature is checked before its content."""
    content, signature = data[:-SIGNATURE_SIZE], data[-SIGNATURE_SIZE:]
    verify(host.verify, signature, statement("revocations", fleet, content))
    if len(content) < _LIST.size:
        raise WireError("length", "a list of revocations is shorter than its head")
    number, count = _LIST.unpack_from(content)
    body = content[_LIST.size :]
    rows = [body[at : at + FINGERPRINT_SIZE] for at in range(0, len(body), FINGERPRINT_SIZE)]
    if len(body) != count * FINGERPRINT_SIZE or rows != sorted(set(rows)) or count > REVOKED_MAX:
        raise WireError("enrolment", "a list of revocations is sorted, and as long as it says")
    return number, set(rows)
