"""What is signed, by whom, and what a signature does not fit."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ternmesh.errors import SecurityError, WireError
from ternmesh.security import primitives, signatures
from ternmesh.security.identity import Role, identity_text, parse_quantum, quantum_text
from ternmesh.security.session import group_name
from ternmesh.wire.global_update import UNCERTIFIED, Certificate
from ternmesh.wire.update import Manifest, read_manifest, update_hash, write_manifest
from tests.ternmesh.security.trust_ends import someone

HOST, THEO, DORA = someone("greenhouse", Role.HOST), someone("theo"), someone("dora")
ANN, BEN = someone("ann"), someone("ben")
LINES = [identity_text(one.public) for one in (HOST, ANN, BEN)]
PLACE = signatures.SigningContext(bytes(16), b"run-id-8", bytes(range(32)))
OTHER_PLACES = (
    replace(PLACE, fleet=b"\1" * 16),
    replace(PLACE, run=b"another!"),
    replace(PLACE, model_hash=bytes(32)),
)
PACKET = update_hash([b"one", b"two"])
FOR_ALL, FOR_THEO = group_name(bytes(16)), THEO.public.fingerprint
HEAD = Manifest(5, PLACE.model_hash[:8], 120, PACKET[:4], 2)
UPDATE = signatures.sign_update(THEO, PLACE, 5, HEAD, PACKET)
REGION = replace(HEAD, members=2, root=bytes(16), state=bytes(16))
OF_REGION = signatures.sign_update(THEO, PLACE, 5, REGION, PACKET)
BODY = signatures.sign_body(HOST, PLACE, FOR_THEO, b"content")
ONE, FLEET, DIGEST = signatures.Signers((HOST.public,)), bytes(range(16)), bytes(32)
VERSION = signatures.sign_release(HOST, FLEET, DIGEST, ONE, domain=signatures.SOFTWARE)
KEYS = [someone(f"signer-{index}", Role.HOST) for index in range(4)]
TWO_OF_THREE = signatures.Signers(tuple(key.public for key in KEYS[:3]), 2)
QUANTUM = signatures.quantum_key(HOST) if primitives._HAS_MLDSA else None
BESIDE = b"" if QUANTUM is None else signatures.sign_quantum(QUANTUM, PLACE, b"content")
HOST_AND_QUANTUM = signatures.Signers(
    (HOST.public,), quantum=b"" if QUANTUM is None else QUANTUM.public
)
needs_mldsa = pytest.mark.skipif(QUANTUM is None, reason="cryptography before 48")


def rows(*indexes: int, content: bytes = b"content") -> Certificate:
    return tuple(signatures.sign_content(KEYS[index], index, PLACE, content) for index in indexes)


def spoilt(data: bytes, at: int = -1) -> bytes:
    wrong = bytearray(data)
    wrong[at] ^= 1
    return bytes(wrong)


ROW = signatures.sign_content(HOST, 0, PLACE, b"content")
# The check, its arguments, and what is in their place: by number, one after the other.
CHECKS: dict[str, tuple[Callable[..., object], Sequence[Any], list[tuple[int, Any]]]] = {
    "an update": (
        signatures.verify_update,
        (THEO.public, PLACE, 5, UPDATE, PACKET),
        [
            (0, HOST.public),
            *((1, place) for place in OTHER_PLACES),
            (2, 5 + 65536),  # the whole round
            (3, replace(UPDATE, samples=121)),
            (3, replace(UPDATE, chunks=3)),
            (3, replace(UPDATE, members=2, root=bytes(16))),
            (3, replace(UPDATE, evaluation=((1, 325),))),
            (3, replace(UPDATE, signature=bytes(64))),
            (4, PACKET[:4] + bytes(28)),  # the whole hash
        ],
    ),
    "an update of a region": (
        signatures.verify_update,
        (THEO.public, PLACE, 5, OF_REGION, PACKET),
        [
            (3, replace(OF_REGION, members=3)),
            (3, replace(OF_REGION, root=b"\1" * 16)),
            (3, replace(OF_REGION, state=b"\1" * 16)),
        ],
    ),
    "a body for one": (
        signatures.open_signed,
        (HOST.public, PLACE, FOR_THEO, BODY),
        [
            (0, THEO.public),
            *((1, place) for place in OTHER_PLACES),
            (2, FOR_ALL),
            (3, spoilt(BODY)),
            (3, spoilt(BODY, 0)),
            (3, BODY[:65]),
        ],
    ),
    "a certificate of one": (
        signatures.verify_certificate,
        (ONE, PLACE, b"content", (ROW,)),
        [
            *((1, place) for place in OTHER_PLACES),
            (2, b"other"),
            (3, UNCERTIFIED),
            (3, ((0, BODY[1:65]),)),  # a signature of another thing
            (3, (signatures.sign_content(HOST, 0, PLACE, b"content", signatures.RELEASE),)),
        ],
    ),
    "a certificate of two": (  # R9.7-4
        signatures.verify_certificate,
        (TWO_OF_THREE, PLACE, b"content", rows(0, 2)),
        [
            *((3, rows(*indexes)) for indexes in ((0,), (0, 0), (1, 0), (0, 3), ())),
            (3, (*rows(0, 1), (2, rows(1)[0][1]))),  # one wrong row of three
        ],
    ),
    "a version of ternmesh": (
        signatures.verify_release,
        (ONE, FLEET, DIGEST, VERSION, signatures.SOFTWARE),
        [(1, bytes(16)), (2, bytes(31) + b"x"), (4, signatures.RELEASE)],
    ),
    "a signature beside": (
        signatures.verify_beside,
        (HOST_AND_QUANTUM, PLACE, b"content", (b"", BESIDE), "reference"),
        [
            (2, b"other"),
            (3, ()),
            (3, (spoilt(BESIDE or b"x"),)),
            (3, (spoilt(BESIDE or b"xx", 1),)),
            (3, (BESIDE[:-1],)),
            (3, (BESIDE + b"\0",)),
            (4, signatures.RELEASE),
        ],
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=needs_mldsa if n == "a signature beside" else ()) for n in CHECKS],
)
def test_a_signature_fits_what_was_signed_and_nothing_else(name: str) -> None:
    check, arguments, changes = CHECKS[name]
    check(*arguments)
    for place, value in changes:
        changed = [*arguments]
        changed[place] = value
        with pytest.raises(WireError) as caught:
            check(*changed)
        assert caught.value.reason == "signature", (place, value)


def test_a_signature_fills_exactly_what_the_manifest_reserves() -> None:
    plain, body = write_manifest(HEAD), write_manifest(UPDATE)
    assert body[:-64] == plain[:-64]
    assert read_manifest(body) == UPDATE
    assert len(BODY) == len(b"content") + 65


# Who signs, by configuration


def test_the_order_of_the_lines_says_nothing() -> None:
    assert signatures.choose_signers(HOST.public, LINES, 2) == signatures.choose_signers(
        HOST.public, LINES[::-1], 2
    )
    assert signatures.choose_signers(HOST.public, (), 1).keys == (HOST.public,)


@pytest.mark.parametrize(
    ("lines", "needed", "reason"),
    [
        (LINES, 4, r"security\.threshold is 4, .* 1 to 16 different keys may sign"),
        ((), 2, r"security\.threshold"),
        ([*LINES, LINES[0]], 2, r"security\.threshold"),
        (LINES, 0, r"security\.threshold"),
        (["ann"], 1, "TM1:"),
    ],
)
def test_rules_that_nobody_could_meet_are_refused(lines, needed, reason) -> None:
    with pytest.raises(SecurityError, match=reason):
        signatures.choose_signers(HOST.public, lines, needed)


def test_who_cannot_check_such_a_signature_is_told_at_its_start(monkeypatch) -> None:
    line = quantum_text(bytes(1312))
    monkeypatch.setattr(primitives, "_HAS_MLDSA", False)
    with pytest.raises(SecurityError, match="install version 48"):
        signatures.choose_signers(HOST.public, LINES, 2, line)
    signatures.choose_signers(HOST.public, LINES, 2)


def test_as_many_sign_as_it_takes() -> None:
    signers = signatures.choose_signers(HOST.public, LINES, 2)
    signing = signatures.local_signers(signers, (BEN, HOST, ANN))
    assert len(signing) == 2
    assert all(signers.keys[index] == one.public for index, one in signing)
    with pytest.raises(SecurityError, match="1 of their private keys"):
        signatures.local_signers(signers, (HOST, DORA))


def test_a_release_is_signed_by_one_after_the_other() -> None:
    signers = signatures.choose_signers(HOST.public, LINES, 2)
    one = signatures.sign_release(HOST, FLEET, b"manifest", signers)
    assert signatures.signatures_of(signers, FLEET, b"manifest", one) == 1
    with pytest.raises(WireError, match="2 signers"):
        signatures.verify_release(signers, FLEET, b"manifest", one)
    two = signatures.sign_release(ANN, FLEET, b"manifest", signers, one)
    signatures.verify_release(signers, FLEET, b"manifest", two)
    assert signatures.sign_release(ANN, FLEET, b"manifest", signers, two) == two, "twice is once"
    signatures.verify_release(
        signers, FLEET, b"manifest", signatures.sign_release(BEN, FLEET, b"manifest", signers, two)
    )
    other = signatures.sign_release(BEN, FLEET, b"another", signers, two)
    assert signatures.signatures_of(signers, FLEET, b"another", other) == 1, (
        "what was for the last is gone"
    )
    assert signatures.signatures_of(ONE, FLEET, DIGEST, VERSION) == 0, "a version is no release"
    with pytest.raises(ValueError, match="not in list"):
        signatures.sign_release(DORA, FLEET, b"manifest", signers)


@needs_mldsa
def test_a_release_with_a_quantum_key_needs_that_signature_too() -> None:
    line = quantum_text(QUANTUM.public)
    assert parse_quantum(line) == QUANTUM.public
    signers = signatures.choose_signers(HOST.public, LINES, 2, line)
    assert signatures.own_quantum(signers, HOST) is not None
    with pytest.raises(SecurityError, match="not this host's key"):
        signatures.own_quantum(signers, ANN)
    signed = signatures.sign_release(
        ANN, FLEET, DIGEST, signers, signatures.sign_release(HOST, FLEET, DIGEST, signers)
    )
    with pytest.raises(WireError, match="ML-DSA-44"):
        signatures.verify_release(signers, FLEET, DIGEST, signed)
    signed = signatures.sign_release(HOST, FLEET, DIGEST, signers, signed, QUANTUM)
    signatures.verify_release(signers, FLEET, DIGEST, signed)
    signatures.verify_release(
        signers, FLEET, DIGEST, signatures.sign_release(BEN, FLEET, DIGEST, signers, signed)
    )
    for at in (0, 1, 5, 100, 2437):
        with pytest.raises(WireError):
            signatures.verify_release(signers, FLEET, DIGEST, spoilt(signed, at))
    with pytest.raises(SecurityError, match="copy it again"):
        parse_quantum(line[:-2])
    assert len(BESIDE) == signatures.QUANTUM_SIZE == 2438
    assert -(-len(BESIDE) // (222 - 14 - 11)) == signatures.QUANTUM_FRAMES, "the price on a radio"
