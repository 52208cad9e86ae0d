"""What an end reads before it belongs to a fleet: its identity file, and a host's answers."""

from collections.abc import Iterator

from bench.fuzz_targets.desks import CODE
from bench.fuzz_targets.seals import fleet, member
from bench.fuzz_targets.target import Target, same, scratch_folder
from bench.fuzz_targets.trust import someone
from edge import joining
from ternmesh.errors import TrustError, WireError
from ternmesh.trust import enrolment, rotation
from ternmesh.trust.identity import Role, parse_private, private_text, write_identity
from ternmesh.trust.keys import FLEET_SIZE
from ternmesh.wire import control, seal
from ternmesh_store.keyring import read_identity_file

_READ = enrolment.read_code(CODE)
_ROTATION = bytes(244)
_HOST = someone("base", Role.HOST)


def _check_identity_file(data: bytes) -> None:
    path = scratch_folder() / "identity"
    path.touch(0o600)
    path.write_bytes(data)
    found = read_identity_file(path)
    same(parse_private(private_text(found)), found, "an identity")


def _check_answer(data: bytes) -> None:
    """Only an answer with the host's proof is believed; nobody guesses one."""
    content = data[1:]
    for frame in (data, seal.seal(seal.Header(seal.ENROL, 0), content or b"\0")):
        for read in (_read_enrolled, _read_rotated):
            same(joining._read(frame, read), None, "an answer without a proof")
    found = enrolment.read_answer(_proven(content), member().public, _READ)
    same(write_identity(found[0]), content[FLEET_SIZE:], "the host in an answer")
    same(found[1], content[:FLEET_SIZE], "the fleet in an answer")


def _read_enrolled(body: bytes) -> object:
    return enrolment.read_answer(body, member().public, _READ)


def _read_rotated(body: bytes) -> bool:
    rotation.check_answer(body, _HOST.public, fleet().fleet, _ROTATION)
    return True


def _proven(content: bytes) -> bytes:
    own = write_identity(member().public)
    proof = enrolment._proof(_READ, "enrol answer", own, content)
    return bytes((enrolment.ANSWER,)) + content + proof


def _answers() -> Iterator[bytes]:
    content = bytes(FLEET_SIZE) + write_identity(_HOST.public)
    yield b"\0" + content
    yield b"\0" + bytes((enrolment.ANSWER,)) + content + bytes(enrolment.PROOF_SIZE)
    yield b"\0" + bytes((rotation.ANSWER,)) + bytes(64)
    yield b"\0" + control.write_control(control.Refusal(0, "code"))


TARGETS = (
    Target(
        "identity_file",
        _check_identity_file,
        lambda: [private_text(member()).encode(), private_text(_HOST).encode() + b"\n"],
        (TrustError,),
    ),
    Target("enrol_answer", _check_answer, _answers, (WireError, TrustError)),
)
