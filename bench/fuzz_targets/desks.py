"""The desk of a host: enrolment and rotation by members and strangers, and what passes it by."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import cast

from bench.fuzz_targets.programs import odd
from bench.fuzz_targets.seals import fleet, member
from bench.fuzz_targets.target import Target, joined, number, parts, same
from bench.fuzz_targets.trust import someone
from host import membership
from host.desk import Desk
from ternmesh.errors import WireError
from ternmesh.trust import enrolment, rotation
from ternmesh.trust.identity import (
    ENTROPY_SIZE,
    Identity,
    PublicIdentity,
    Role,
    identity_text,
    make_identity,
    rotation_text,
    write_identity,
)
from ternmesh.trust.roster import Roster, write_rotation
from ternmesh.trust.statement import statement
from ternmesh.wire import seal
from ternmesh_store.keyring import Keyring

_PEERS = ("ada", "theodor", "base", "someone")
_STEPS_MAX = 64
_HEADER = seal.Header(seal.ENROL, 0)
CODE = enrolment.make_code(bytes(range(enrolment.ENTROPY_SIZE)))
_READ = enrolment.read_code(CODE)


class _Keyring:
    """What a desk uses of a keyring."""

    def __init__(self) -> None:
        self.own, self.roster = someone("base", Role.HOST), Roster(fleet())
        self.kept = self.roster.state

    def keep_roster(self) -> None:
        """To disk."""
        self.kept = self.roster.state

    keep_rotation = keep_roster

    def rekey(self) -> None:
        """For all but whom was revoked."""


class _Endpoint:
    """What stands behind the desk: it only notes what it gets."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def receive_frames(self, _peer: str, frames: Sequence[bytes], _now: float) -> None:
        """Note them."""
        self.frames += frames

    def next_timeout(self) -> float | None:
        """Never."""
        return None

    def handle_timeout(self, _now: float) -> None:
        """Nothing is ever due."""

    def next_event(self) -> object | None:
        """None."""
        return None

    def frames_to_send(self, _now: float) -> list[tuple[str, list[bytes]]]:
        """None."""
        return []


def _check_desk(data: bytes) -> None:
    """Peers say anything; some of it carries the proof that liars among them could make."""
    endpoint, keyring = _Endpoint(), _Keyring()
    desk: Desk[object] = Desk(endpoint, cast("Keyring", keyring), Counter())
    desk._codes.issue(CODE, Role.NODE, 1000.0, 0.0)
    now, passed = 0.0, 0
    for item in list(parts(data))[:_STEPS_MAX]:
        choice, peer = number(item, 0, 1), _PEERS[number(item, 0, 1) >> 2 & 3]
        now += (choice >> 4) * 10.0
        frame = _frame(choice & 3, item[1:], keyring.roster)
        is_for_desk = _is_for_desk(frame)
        desk.receive_frames(peer, [frame], now)
        passed += not is_for_desk
        same(len(endpoint.frames), passed, "the number of frames that passed the desk")
        same(keyring.kept, keyring.roster.state, "the roster on disk")
        for to, answers in desk.frames_to_send(now):
            same((to, len(answers)), (peer, 1), "the answers of the desk")
    if len(keyring.roster.state.members) > 2:
        raise AssertionError("one code enrolled two members")


def _frame(kind: int, body: bytes, roster: Roster) -> bytes:
    if kind == 1:
        body = bytes((enrolment.REQUEST,)) + _READ.label + body + _proof(body)
    elif kind == 2:
        message = statement("rotation", roster.fleet, body)
        signatures = (end.sign(message) for end in (member(), _other()))
        body = rotation.write_request(body + b"".join(signatures))
    elif kind == 3:
        return body
    return seal.seal(_HEADER, body or b"\0")


def _is_for_desk(frame: bytes) -> bool:
    try:
        header, body = seal.open_seal(frame)
    except WireError:
        return False
    asks = body[0] in (enrolment.REQUEST, rotation.REQUEST)
    return asks and header.context == seal.ENROL


def _proof(body: bytes) -> bytes:
    return enrolment._proof(_READ, "enrol request", body)


def _other() -> Identity:
    return someone("theodor", Role.NODE)


def _conversations() -> Iterator[bytes]:
    new = PublicIdentity("ada", Role.NODE, _other().public.verify, _other().public.exchange)
    rotates = b"\x02" + member().public.fingerprint + write_identity(new)
    enrols = b"\x05" + write_identity(_other().public)
    yield joined([enrols, b"\x45" + enrols[1:], b"\x00hello", b"\x03hello"])
    yield joined([rotates, b"\x42" + rotates[1:], b"\x46" + rotates[1:], enrols])


def _check_requests(data: bytes) -> None:
    """What the control socket asks about the fleet's members has an answer, and goes to disk."""
    try:
        request = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(request, dict):
        return  # the socket itself refuses it
    keyring = _Keyring()
    known = cast("Keyring", keyring)
    desk: Desk[object] = Desk(_Endpoint(), known, Counter())
    for answer in (membership.answer(known, request), membership.code(desk, request, 0.0)):
        json.dumps(answer)
    same(keyring.kept, keyring.roster.state, "the roster on disk")


def _requests() -> Iterator[bytes]:
    new = make_identity("ada", Role.NODE, bytes(range(ENTROPY_SIZE)))
    turned = write_rotation(member(), new, fleet().fleet)
    said: list[dict[str, object]] = [
        {"enrol": "list"},
        {"enrol": "export"},
        {"enrol": "add", "identity": identity_text(_other().public)},
        {"enrol": "revoke", "name": "ada"},
        {"enrol": "rotate", "rotation": rotation_text(turned)},
        {"enrol": "code", "role": "node", "minutes": 10},
    ]
    for request in said:
        yield json.dumps(request).encode()
    yield from odd(json.dumps(said[-1]).encode())


TARGETS = (
    Target("desk", _check_desk, _conversations),
    Target("membership", _check_requests, _requests, ()),
)
