from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.security import primitives
from ternmesh.security.identity import Role
from ternmesh.security.primitives import QuantumKey
from ternmesh.security.session import group_name
from ternmesh.security.signatures import (
    RELEASE,
    SIGNED,
    SOFTWARE,
    Signers,
    SigningContext,
    open_signed,
    sign_body,
    sign_content,
    sign_quantum,
    sign_release,
    sign_update,
    signatures_of,
    verify_beside,
    verify_certificate,
    verify_release,
    verify_update,
)
from ternmesh.wire import control
from ternmesh.wire.global_update import UNCERTIFIED, Certificate, certify, split_certificate
from ternmesh.wire.update import Manifest, read_manifest, update_hash, write_manifest
from tests.ternmesh.security.trust_ends import entropy, someone

HOST, THEO = someone("greenhouse", Role.HOST), someone("theo")
PLACE = SigningContext(bytes(16), b"run-id-8", bytes(range(32)))
PACKET = update_hash([b"one", b"two"])
ALL_OF_US = group_name(bytes(16))
HEAD = Manifest(5, PLACE.model_hash[:8], 120, PACKET[:4], 2)
OTHER_PLACES = [
    replace(PLACE, fleet=b"\1" * 16),
    replace(PLACE, run=b"another!"),
    replace(PLACE, model_hash=bytes(32)),
]


def bad() -> pytest.RaisesExc[WireError]:
    return pytest.raises(WireError, match=r"signature|signed|signer", check=_is_signature)


def _is_signature(error: WireError) -> bool:
    return error.reason == "signature"


def test_a_signature_fills_exactly_what_the_manifest_reserves() -> None:
    signed = sign_update(THEO, PLACE, 5, HEAD, PACKET)
    plain, body = write_manifest(HEAD), write_manifest(signed)
    assert len(body) == len(plain)
    assert body[:-64] == plain[:-64]
    verify_update(THEO.public, PLACE, 5, read_manifest(body), PACKET)


def test_a_packets_signature_covers_all_that_counts() -> None:
    signed = sign_update(THEO, PLACE, 5, HEAD, PACKET)
    check = verify_update
    check(THEO.public, PLACE, 5, signed, PACKET)
    for changed in (
        replace(signed, samples=121),
        replace(signed, chunks=3),
        replace(signed, contributors=(1, 2)),
        replace(signed, evaluation=((1, 325),)),
        replace(signed, signature=bytes(64)),
    ):
        with bad():
            check(THEO.public, PLACE, 5, changed, PACKET)
    with bad():
        check(THEO.public, PLACE, 5 + 65536, signed, PACKET)  # the whole round
    with bad():
        check(THEO.public, PLACE, 5, signed, PACKET[:4] + bytes(28))  # the whole hash
    with bad():
        check(HOST.public, PLACE, 5, signed, PACKET)
    for place in OTHER_PLACES:
        with bad():
            check(THEO.public, place, 5, signed, PACKET)


def test_receipts_and_announces_are_signed_for_one_or_for_all() -> None:
    receipt = control.write_control(control.Receipt(5, PACKET[:4], b"\x07"))
    theo = THEO.public.fingerprint
    data = sign_body(HOST, PLACE, theo, receipt)
    assert len(data) == len(receipt) + 65
    assert open_signed(HOST.public, PLACE, theo, data) == receipt
    for sender, place, to in (
        (THEO, PLACE, theo),
        (HOST, OTHER_PLACES[1], theo),
        (HOST, PLACE, ALL_OF_US),
    ):
        with bad():
            open_signed(sender.public, place, to, data)


@given(st.binary(max_size=200))
def test_any_bytes_are_no_signed_body(data: bytes) -> None:
    for body in (data, bytes((SIGNED,)) + data):
        with bad():
            open_signed(HOST.public, PLACE, ALL_OF_US, body)


def certified(*indexes: int, content: bytes = b"content") -> Certificate:
    keys = [someone(f"signer {index}".replace(" ", "-"), Role.HOST) for index in range(4)]
    return tuple(sign_content(keys[i], i, PLACE, content) for i in indexes)


def signers(needed: int) -> Signers:
    keys = tuple(someone(f"signer-{index}", Role.HOST).public for index in range(3))
    return Signers(keys, needed)


def test_k_of_n_certify_a_reference() -> None:
    for indexes in ((0, 2), (0, 1, 2), (1, 2)):
        data = certify(b"content", certified(*indexes))
        content, certificate = split_certificate(data)
        verify_certificate(signers(2), PLACE, content, certificate)


@pytest.mark.parametrize(
    "indexes", [(0,), (0, 0), (1, 0), (0, 3), ()], ids=["few", "twice", "order", "who", "none"]
)
def test_a_certificate_that_does_not_hold(indexes: tuple[int, ...]) -> None:  # R9.7-4
    with bad():
        verify_certificate(signers(2), PLACE, b"content", certified(*indexes))


def test_one_wrong_row_spoils_a_certificate() -> None:  # R9.7-4
    rows = certified(0, 1, 2)
    wrong = (*rows[:2], (2, rows[1][1]))
    with bad():
        verify_certificate(signers(2), PLACE, b"content", wrong)
    with bad():
        verify_certificate(signers(2), PLACE, b"other", rows)
    with bad():
        verify_certificate(signers(1), PLACE, b"content", UNCERTIFIED)


def test_a_signed_release_is_no_signed_version_of_ternmesh() -> None:
    one, fleet, digest = Signers((HOST.public,)), bytes(16), bytes(32)
    signed = sign_release(HOST, fleet, digest, one, domain=SOFTWARE)
    verify_release(one, fleet, digest, signed, SOFTWARE)
    assert signatures_of(one, fleet, digest, signed, SOFTWARE) == 1
    assert signatures_of(one, fleet, digest, signed) == 0
    with bad():
        verify_release(one, fleet, digest, signed)
    with bad():
        verify_release(one, bytes(15) + b"x", digest, signed, SOFTWARE)
    with bad():
        verify_release(one, fleet, bytes(31) + b"x", signed, SOFTWARE)


def test_no_signature_counts_in_another_place_or_for_another_thing() -> None:
    row = sign_content(HOST, 0, PLACE, b"content")
    one = Signers((HOST.public,))
    verify_certificate(one, PLACE, b"content", (row,))
    with bad():
        verify_certificate(one, PLACE, b"content", (row,), RELEASE)
    for place in OTHER_PLACES:
        with bad():
            verify_certificate(one, place, b"content", (row,))
    body = sign_body(HOST, PLACE, ALL_OF_US, b"content")
    with bad():
        verify_certificate(one, PLACE, b"content", ((0, body[1:65]),))


def test_signers_are_a_rule_that_can_be_met() -> None:
    key = HOST.public
    for keys, needed in (((), 1), ((key,), 0), ((key,), 2), ((key, key), 1)):
        with pytest.raises(ValueError, match="keys may sign"):
            Signers(keys, needed)


@pytest.mark.skipif(not primitives._HAS_MLDSA, reason="cryptography before 48")
def test_a_second_signature_that_outlives_quantum_computers() -> None:
    key = QuantumKey(entropy("quantum")[:32])
    data = sign_quantum(key, PLACE, b"content")
    signers = Signers((HOST.public,), quantum=key.public)
    assert len(data) == 2438
    verify_beside(signers, PLACE, b"content", (b"", data))
    for wrong in (
        data[:1] + b"\1" + data[2:],
        data[:-1] + bytes((data[-1] ^ 1,)),
        data[:-1],
        data + b"\0",
    ):
        with bad():
            verify_beside(signers, PLACE, b"content", (wrong,))
    with bad():
        verify_beside(signers, PLACE, b"other", (data,))
    with bad():
        verify_beside(signers, PLACE, b"content", (data,), RELEASE)
    with bad():
        verify_beside(signers, PLACE, b"content", ())
