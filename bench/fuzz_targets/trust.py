"""Identities, what two ends keep of each other, signed lists, and releases of models.

Where a proof stands before the content, the target makes the right one: what is behind it is
fuzzed, as nobody guesses a signature.
"""

from functools import cache

import numpy as np

from bench.fuzz_targets.target import Target, same
from edge.errors import ModelError
from edge.onnx_check import check
from ternmesh import release
from ternmesh.errors import BundleError, TrustError, WireError
from ternmesh.trust import enrolment, identity, roster, session
from ternmesh.trust.statement import statement

_FLEET = b"fleet of 16 byte"
_ENTROPY = bytes((7 * index) % 256 for index in range(identity.ENTROPY_SIZE))
_CODE = enrolment.make_code(_ENTROPY[: enrolment.ENTROPY_SIZE])


@cache
def someone(name: str, role: identity.Role) -> identity.Identity:
    """An identity that is the same in every process."""
    entropy = bytes(value ^ len(name) for value in _ENTROPY)
    return identity.make_identity(name, role, entropy)


def _host() -> identity.Identity:
    return someone("base", identity.Role.HOST)


def _node() -> identity.Identity:
    return someone("ada", identity.Role.NODE)


def _check_identity(data: bytes) -> None:
    public = identity.read_identity(data)
    same(identity.write_identity(public), data, "a public identity")
    same(identity.parse_identity(identity.identity_text(public)), public, "an identity's text")


def _check_identity_text(data: bytes) -> None:
    public = identity.parse_identity(data.decode())
    same(identity.identity_text(public), data.decode().strip(), "an identity's text")


def _check_code(data: bytes) -> None:
    code = enrolment.read_code(data.decode())
    same((len(code.key), len(code.label)), (enrolment.KEY_SIZE, enrolment.LABEL_SIZE), "a code")


def _check_request(data: bytes) -> None:
    code = enrolment.read_code(_CODE)
    proof = enrolment._proof(code, "enrol request", data)
    for body in (data, bytes((enrolment.REQUEST,)) + code.label + data + proof):
        issued = enrolment.Enrolments()
        issued.issue(_CODE, identity.Role.NODE, 60.0, 0.0)
        known = roster.Roster(roster.found_fleet("attic", _host().public))
        try:
            public, answer = issued.accept(body, known, 1.0)
        except WireError:
            continue
        if public == _node().public:
            same(enrolment.read_answer(answer, public, code)[0], _host().public, "an answer")


def _check_claims(data: bytes) -> None:
    claims, body = session.read_claims(data)
    same(session.write_claims(claims) + body, data, "claims")


def _check_keys(data: bytes) -> None:
    again = session.write_keys(*session.read_keys(data))
    same(again[1:], data[1:], "a broadcast key")


def _check_peer_state(data: bytes) -> None:
    state = session.read_peer("ada", data)
    same(session.read_peer("ada", session.write_peer(state)), state, "what is kept of a peer")


def _check_group_state(data: bytes) -> None:
    state = session.read_group(data)
    same(session.read_group(session.write_group(state)), state, "what is kept of a group")


def _check_rotation(data: bytes) -> None:
    old = _node()
    message = statement("rotation", _FLEET, data)
    roster.read_rotation(data + 2 * old.sign(message), _FLEET, old.public)


def _check_revocations(data: bytes) -> None:
    signed = data + _host().sign(statement("revocations", _FLEET, data))
    number, rows = roster.read_revocations(signed, _FLEET, _host().public)
    same(roster.write_revocations(_host(), _FLEET, number, rows), signed, "a list of revocations")


def _check_release(data: bytes) -> None:
    same(release.write_manifest(release.read_manifest(data)), data, "a release's manifest")


def _check_model(data: bytes) -> None:
    check(memoryview(data))


def _release() -> bytes:
    files = tuple(release.FileEntry(10, bytes(32)) for _ in release.FILES)
    return release.write_manifest(release.Manifest("tiny", 3, bytes(32), files, 5, 6, bytes(32)))


def _model() -> bytes:
    from onnx import TensorProto, helper, numpy_helper  # only for its seed

    one = numpy_helper.from_array(np.ones(2, np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    nodes = [helper.make_node("Add", ["x", "w"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [one])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    content: bytes = made.SerializeToString()
    return content


TARGETS = (
    Target(
        "identity",
        _check_identity,
        lambda: [identity.write_identity(who.public) for who in (_host(), _node())],
        (TrustError,),
    ),
    Target(
        "identity_text",
        _check_identity_text,
        lambda: [identity.identity_text(_node().public).encode()],
        (TrustError, UnicodeDecodeError),
    ),
    Target(
        "enrol_code",
        _check_code,
        lambda: [_CODE.encode(), _CODE.lower().encode()],
        (TrustError, UnicodeDecodeError),
        length_max=64,
    ),
    Target("enrol_request", _check_request, lambda: [identity.write_identity(_node().public)]),
    Target(
        "claims",
        _check_claims,
        lambda: [session.write_claims(session.Claims(b"session1", 4)) + b"body"],
    ),
    Target("broadcast_key", _check_keys, lambda: [session.write_keys(3, bytes(16), 9)]),
    Target("peer_state", _check_peer_state, lambda: [bytes(session._PEER.size)], (TrustError,)),
    Target("group_state", _check_group_state, lambda: [bytes(session._GROUP.size)], (TrustError,)),
    Target(
        "rotation",
        _check_rotation,
        lambda: [_node().public.fingerprint + identity.write_identity(_node().public)],
    ),
    Target(
        "revocations",
        _check_revocations,
        lambda: [roster.write_revocations(_host(), _FLEET, 2, [bytes(16), b"\x01" * 16])[:-64]],
    ),
    Target("release", _check_release, lambda: [_release()], (BundleError,)),
    Target("onnx", _check_model, lambda: [_model()], (ModelError,), memory_max=2 << 20),
)
