"""The members of a fleet, and their keys: enrolled, and revoked. SPEC.md section 9.5.

A known key is never replaced: the host revokes it, and enrols another under the same name. A host
of several fleets has one member list for each.

The host also signs a list of the whole fleet. With it a gateway knows its boards, and a board its
gateway. Anybody may carry it. An old one does no harm: a revoked key stays revoked.

The host's list has a number that rises with every change, and is in every announce: a host whose
list is an old copy, in which a revoked key would be good again, is found out by its boards.
"""

import base64
import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ternmesh.errors import SecurityError, WireError
from ternmesh.security.host_keys import HostKeys
from ternmesh.security.identity import (
    FINGERPRINT_SIZE,
    Identity,
    PublicIdentity,
    Role,
    read_identity,
    write_identity,
)
from ternmesh.security.key_derivation import FLEET_SIZE
from ternmesh.security.primitives import statement, verify
from ternmesh.security.signatures import Signers
from ternmesh.wire.update import SIGNATURE_SIZE

HOST, ALL = "host", "all"  # names that no member may have
MEMBERS_MAX = 16_384
REVOKED_MAX = 4096
MARK = "TM1-FLEET:"  # the begin of the line with the whole fleet
TEXT_MAX = 1 << 22
CLAIM_JUMP_MAX = 1 << 16  # a board may claim a number so much above the host's: it could lie
NUMBER_MAX = 0xFFFFFFFF
_NUMBER = struct.Struct("<I")
_COUNT = struct.Struct("<H")


@dataclass(frozen=True, slots=True)
class MemberListState:
    """The stored state of a member list."""

    fleet: bytes  # 16 bytes that name the fleet
    hosts: HostKeys
    members: tuple[PublicIdentity, ...] = ()
    revoked: tuple[bytes, ...] = ()  # fingerprints
    number: int = 0  # rises with every change; on a board, the highest that the host has announced

    @property
    def host(self) -> PublicIdentity:
        """The host, with its present key."""
        return self.hosts.present


def found_fleet(name: str, host: PublicIdentity | HostKeys) -> MemberListState:
    """The state of a new fleet. Its 16-byte name depends on the host's first key."""
    hosts = host if isinstance(host, HostKeys) else HostKeys(host, host)
    first = hosts.first
    if first.role is not Role.HOST:
        raise SecurityError(f"{first.name} is not a host: only a host can found a fleet")
    digest = hashlib.sha256(b"ternmesh fleet" + write_identity(first) + name.encode()).digest()
    return MemberListState(digest[:FLEET_SIZE], hosts)


class MemberList:
    """The members of one fleet, by their names on the bearer."""

    def __init__(self, state: MemberListState) -> None:
        self._claimed = 0  # on the host: the highest number that a board has seen
        self._take(state)

    def _take(self, state: MemberListState) -> None:
        self.fleet = state.fleet
        self.number = state.number
        self.hosts = state.hosts
        self._members = {member.name: member for member in state.members}
        self._revoked = set(state.revoked)

    @property
    def state(self) -> MemberListState:
        """The state to store; its lists are sorted."""
        members = tuple(sorted(self._members.values(), key=lambda member: member.name))
        revoked = tuple(sorted(self._revoked))
        return MemberListState(self.fleet, self.hosts, members, revoked, self.number)

    @property
    def host(self) -> PublicIdentity:
        """The host, with its present key."""
        return self.hosts.present

    def find(self, peer: str) -> PublicIdentity:
        """The identity of a peer; WireError "unknown key" or "revoked"."""
        member = self.host if peer == HOST else self._members.get(peer)
        if member is None:
            raise WireError("unknown key", f"{peer} is not enrolled in this fleet")
        if self._revoked and member.fingerprint in self._revoked:
            raise WireError("revoked", f"the key of {peer} was revoked")
        return member

    def known(self, name: str) -> PublicIdentity | None:
        """A member by its name, also one that was revoked."""
        return self._members.get(name)

    def boards(self) -> Iterator[str]:
        """The names of the boards that may train."""
        for name, member in self._members.items():
            if member.role is Role.NODE and member.fingerprint not in self._revoked:
                yield name

    def revoked(self, peer: str) -> bytes | None:
        """The fingerprint of a member whose key was revoked; None for all others."""
        key = self._members[peer].fingerprint if peer in self._members else None
        return key if key in self._revoked else None

    def enrol(self, public: PublicIdentity) -> bool:
        """Add a member; False if it is a member already. SecurityError, also for another key."""
        if public.name in (HOST, ALL) or public.role is Role.HOST:
            raise SecurityError("a member cannot have the names host or all, or the role host")
        if public.fingerprint in self._revoked:
            raise SecurityError(f"the key of {public.name} was revoked: make it a new identity")
        known = self._members.get(public.name)
        if known == public:
            return False
        if known is not None and known.fingerprint not in self._revoked:
            raise SecurityError(
                f"another board is enrolled as {public.name}. If this is a second board, give it a "
                "`name` of its own and make its identity again. Only if it replaces the first one: "
                "`ternmesh enrol revoke` that, and add this one"
            )
        others = (self.host, *self._members.values())
        if any(public.verify == o.verify or public.exchange == o.exchange for o in others):
            raise SecurityError(f"the key of {public.name} is enrolled under another name")
        if known is None and len(self._members) >= MEMBERS_MAX:
            raise SecurityError(f"a fleet has at most {MEMBERS_MAX} members")
        self._members[public.name] = public
        self.renumber()
        return True

    def follow_host(self, rotation: bytes, signers: Signers) -> bool:
        """Follow the host to its next key; False where this changes nothing. WireError."""
        before = self.hosts
        self.hosts = before.follow(rotation, self.fleet, signers)
        return self.hosts != before

    def take_over(self, hosts: HostKeys) -> None:
        """On the host: its key has changed to the present one of `hosts`."""
        self.hosts = hosts
        self.renumber()

    def revoke(self, name: str) -> None:
        """Revoke a member's key for ever. SecurityError."""
        member = self._members.get(name)
        if member is None:
            raise SecurityError(f"{name} is not enrolled: `ternmesh enrol list` shows the members")
        if member.fingerprint in self._revoked:
            return
        if len(self._revoked) >= REVOKED_MAX:
            raise SecurityError(
                f"a fleet can revoke at most {REVOKED_MAX} keys: found a new fleet (see "
                "SECURITY.md)"
            )
        self._revoked.add(member.fingerprint)
        self.renumber()

    def learn(self, data: bytes) -> bool:
        """On a gateway or board: add the content of the host's list (`write_fleet`). SecurityError.

        True if anything has changed. A known key stays, unless the list says that it is over.
        """
        before = self.state
        content, signature = data[:-SIGNATURE_SIZE], data[-SIGNATURE_SIZE:]
        try:
            verify(self.host.verify, signature, statement("members", self.fleet, content))
            number, members, revoked = _read(content)
        except (WireError, struct.error, IndexError) as error:
            raise SecurityError("this list of a fleet is not signed by this end's host") from error
        gone = {*before.revoked, *revoked}
        merged = MemberList(replace(before, revoked=tuple(gone)))
        for member in members:
            if member.fingerprint not in gone:
                merged.enrol(member)
        self._take(replace(merged.state, number=max(before.number, number)))
        return self.state != before

    def claim(self, number: int) -> None:
        """On the host: note that a board has seen this number. The next change passes it."""
        if self.number < number <= self.number + CLAIM_JUMP_MAX:
            self._claimed = max(self._claimed, number)

    def renumber(self) -> None:
        """Give the list the next number, beyond those that boards have seen."""
        self.number = min(NUMBER_MAX, max(self.number, self._claimed) + 1)

    def owner_of(self, fingerprint: bytes) -> PublicIdentity:
        """The member with this key; WireError "unknown key" or "revoked"."""
        for member in self._members.values():
            if member.fingerprint == fingerprint:
                return self.find(member.name)
        raise WireError("unknown key", "no member has this key")


class MembersBehindGateway:
    """The member list of a board behind a gateway: on its radio, `host` is the gateway.

    SecurityError if the gateway is unknown, or is not a gateway or relay.
    """

    def __init__(self, member_list: MemberList, gateway: str) -> None:
        self.fleet = member_list.fleet
        self._member_list = member_list
        self._gateway = gateway
        try:
            member = member_list.find(gateway)
        except WireError as error:
            raise SecurityError(
                f"link.gateway is {gateway!r}: {error}; run `ternmesh enrol export` on the host "
                "and `ternmesh enrol import` here"
            ) from error
        if member.role not in (Role.GATEWAY, Role.RELAY):
            raise SecurityError(
                f"link.gateway is {gateway!r}, which is a {member.role.name.lower()}, not a gateway"
            )

    def find(self, peer: str) -> PublicIdentity:
        """The identity of a peer; WireError "unknown key" or "revoked"."""
        return self._member_list.find(self._gateway if peer == HOST else peer)


Members = MemberList | MembersBehindGateway


def write_fleet(host: Identity, state: MemberListState) -> bytes:
    """The host's signed list of members and of revoked keys."""
    content = fleet_content(state)
    return content + host.sign(statement("members", state.fleet, content))


def fleet_content(state: MemberListState) -> bytes:
    """What the host signs of a list."""
    members = [write_identity(m) for m in state.members if m.fingerprint not in state.revoked]
    content = _NUMBER.pack(state.number)
    content += _COUNT.pack(len(members)) + b"".join(bytes((len(m),)) + m for m in sorted(members))
    return content + _COUNT.pack(len(state.revoked)) + b"".join(sorted(state.revoked))


def fleet_text(data: bytes) -> str:
    """Such a list as one line of text."""
    return MARK + base64.b64encode(data).decode()


def parse_fleet(text: str) -> bytes:
    """The list in such a line; SecurityError."""
    coded = text.strip().removeprefix(MARK)
    try:
        if len(text) > TEXT_MAX or coded == text.strip():
            raise ValueError
        return base64.b64decode(coded, validate=True)
    except ValueError as error:
        raise SecurityError(
            f"this is not the list of a fleet: it must begin with {MARK}"
        ) from error


def _read(content: bytes) -> tuple[int, list[PublicIdentity], list[bytes]]:
    """Number, members and revoked fingerprints of a verified list; IndexError or struct.error."""
    (number,) = _NUMBER.unpack_from(content)
    members = []
    at = _NUMBER.size + _COUNT.size
    for _ in range(_count(content, _NUMBER.size, MEMBERS_MAX)):
        end = at + 1 + content[at]
        members.append(read_identity(content[at + 1 : end]))
        at = end
    count = _count(content, at, REVOKED_MAX)
    at += _COUNT.size
    if len(content) != at + count * FINGERPRINT_SIZE:
        raise IndexError
    starts = range(at, len(content), FINGERPRINT_SIZE)
    return number, members, [content[start : start + FINGERPRINT_SIZE] for start in starts]


def _count(content: bytes, at: int, most: int) -> int:
    (count,) = _COUNT.unpack_from(content, at)
    if count > most:
        raise IndexError
    return int(count)
