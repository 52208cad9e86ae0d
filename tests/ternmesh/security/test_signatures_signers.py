"""Who signs, by configuration."""

import pytest

from ternmesh.errors import SecurityError, WireError
from ternmesh.security import primitives
from ternmesh.security.identity import Role, identity_text, parse_quantum, quantum_text
from ternmesh.security.signatures import (
    choose_signers,
    local_signers,
    own_quantum,
    quantum_key,
    sign_release,
    signatures_of,
    verify_release,
)
from tests.ternmesh.security.trust_ends import someone

HOST, ANN, BEN = someone("greenhouse", Role.HOST), someone("ann"), someone("ben")
LINES = [identity_text(one.public) for one in (HOST, ANN, BEN)]
FLEET, CONTENT = bytes(range(16)), b"a manifest"


def test_the_order_of_the_lines_says_nothing() -> None:
    assert choose_signers(HOST.public, LINES, 2) == choose_signers(HOST.public, LINES[::-1], 2)
    assert choose_signers(HOST.public, (), 1).keys == (HOST.public,)


def test_rules_that_nobody_could_meet_are_refused() -> None:
    for lines, needed in ((LINES, 4), ((), 2), ([*LINES, LINES[0]], 2), (LINES, 0)):
        with pytest.raises(SecurityError, match=r"security\.threshold"):
            choose_signers(HOST.public, lines, needed)
    with pytest.raises(SecurityError, match="TM1:"):
        choose_signers(HOST.public, ["ann"], 1)


def test_who_cannot_check_such_a_signature_is_told_at_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = quantum_text(quantum_key(HOST).public)
    monkeypatch.setattr(primitives, "_HAS_MLDSA", False)
    with pytest.raises(SecurityError, match="install version 48"):
        choose_signers(HOST.public, LINES, 2, line)
    choose_signers(HOST.public, LINES, 2)


def test_as_many_sign_as_it_takes() -> None:
    signers = choose_signers(HOST.public, LINES, 2)
    rows = local_signers(signers, (BEN, HOST, ANN))
    assert len(rows) == 2
    assert all(signers.keys[index] == one.public for index, one in rows)
    with pytest.raises(SecurityError, match="1 of their private keys"):
        local_signers(signers, (HOST, someone("dora")))


def test_a_release_is_signed_by_one_after_the_other() -> None:
    signers = choose_signers(HOST.public, LINES, 2)
    one = sign_release(HOST, FLEET, CONTENT, signers)
    assert signatures_of(signers, FLEET, CONTENT, one) == 1
    with pytest.raises(WireError, match="2 signers"):
        verify_release(signers, FLEET, CONTENT, one)
    two = sign_release(ANN, FLEET, CONTENT, signers, one)
    verify_release(signers, FLEET, CONTENT, two)
    assert sign_release(ANN, FLEET, CONTENT, signers, two) == two, "twice is once"
    verify_release(signers, FLEET, CONTENT, sign_release(BEN, FLEET, CONTENT, signers, two))
    other = sign_release(BEN, FLEET, b"another", signers, two)
    assert signatures_of(signers, FLEET, b"another", other) == 1, "what was for the last is gone"
    with pytest.raises(ValueError, match="not in list"):
        sign_release(someone("dora"), FLEET, CONTENT, signers)


def test_a_release_with_a_quantum_key_needs_that_signature_too() -> None:
    key = quantum_key(HOST)
    line = quantum_text(key.public)
    assert parse_quantum(line) == key.public
    signers = choose_signers(HOST.public, LINES, 2, line)
    assert own_quantum(signers, HOST) is not None
    with pytest.raises(SecurityError, match="not this host's key"):
        own_quantum(signers, ANN)
    signed = sign_release(ANN, FLEET, CONTENT, signers, sign_release(HOST, FLEET, CONTENT, signers))
    with pytest.raises(WireError, match="ML-DSA-44"):
        verify_release(signers, FLEET, CONTENT, signed)
    signed = sign_release(HOST, FLEET, CONTENT, signers, signed, key)
    verify_release(signers, FLEET, CONTENT, signed)
    verify_release(signers, FLEET, CONTENT, sign_release(BEN, FLEET, CONTENT, signers, signed))
    for at in (0, 1, 5, 100, 2437):
        wrong = bytearray(signed)
        wrong[at] ^= 1
        with pytest.raises(WireError):
            verify_release(signers, FLEET, CONTENT, bytes(wrong))
    with pytest.raises(SecurityError, match="copy it again"):
        parse_quantum(line[:-2])
    with pytest.raises(SecurityError, match="ML-DSA-44"):
        parse_quantum(LINES[0])


def test_the_price_on_a_radio_is_what_is_told() -> None:
    from ternmesh.security.signatures import (
        QUANTUM_FRAMES,
        QUANTUM_SIZE,
        SigningContext,
        sign_quantum,
    )

    data = sign_quantum(quantum_key(HOST), SigningContext(FLEET, bytes(8), bytes(32)), CONTENT)
    assert len(data) == QUANTUM_SIZE
    assert -(-len(data) // (222 - 14 - 11)) == QUANTUM_FRAMES
