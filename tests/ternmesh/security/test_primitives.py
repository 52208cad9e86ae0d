import json
from pathlib import Path
from typing import Any

import pytest

from ternmesh.errors import SealError, SecurityError, WireError
from ternmesh.security import primitives

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "published.json").read_text()
)


def published(family: str) -> pytest.MarkDecorator:
    rows = VECTORS[family]
    return pytest.mark.parametrize("case", rows, ids=[row["source"] for row in rows])


def raw(case: dict[str, Any], *names: str) -> list[bytes]:
    return [bytes.fromhex(case[name]) for name in names]


@published("ed25519")
def test_ed25519(case: dict[str, Any]) -> None:
    public, message, signature = raw(case, "public", "message", "signature")
    if case["valid"]:
        primitives.verify(public, signature, message)
    else:
        with pytest.raises(WireError, match="signature"):
            primitives.verify(public, signature, message)


def test_ed25519_signs_as_rfc_8032_does() -> None:
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    known = next(row for row in VECTORS["ed25519"] if "josefsson" in row["source"])
    assert primitives.verify_key(seed).hex() == known["public"]
    assert primitives.sign(seed, bytes.fromhex(known["message"])).hex() == known["signature"]


@published("x25519")
def test_x25519(case: dict[str, Any]) -> None:
    public, private, shared = raw(case, "public", "private", "shared")
    if case["valid"]:
        assert primitives.shared_secret(private, public) == shared
    else:
        with pytest.raises(SecurityError, match="no shared secret"):
            primitives.shared_secret(private, public)


@published("hkdf")
def test_hkdf(case: dict[str, Any]) -> None:
    secret, salt, info, key = raw(case, "ikm", "salt", "info", "okm")
    assert primitives.hkdf(secret, salt, info, case["size"]) == key


@published("ccm")
def test_aes_ccm(case: dict[str, Any]) -> None:
    key, nonce, head, body, sealed = raw(case, "key", "nonce", "head", "body", "sealed")
    assert primitives.Ccm(key).seal(nonce, head, body) == sealed
    assert primitives.Ccm(key).open(nonce, head, sealed) == body
    for at in (0, len(sealed) - 1):
        wrong = bytearray(sealed)
        wrong[at] ^= 1
        with pytest.raises(SealError):
            primitives.Ccm(key).open(nonce, head, bytes(wrong))
    with pytest.raises(SealError):
        primitives.Ccm(key).open(nonce, head, sealed[:7])


@pytest.mark.skipif(not primitives._HAS_MLDSA, reason="cryptography before 48")
@published("mldsa44")
def test_mldsa(case: dict[str, Any]) -> None:
    seed, public, message, signature = raw(case, "seed", "public", "message", "signature")
    key = primitives.QuantumKey(seed)
    assert key.public == public
    primitives.verify_quantum(public, signature, message)
    primitives.verify_quantum(public, key.sign(b"other"), b"other")
    for wrong in (signature[:-1], bytes(2420), signature[:-1] + b"\x7f"):
        with pytest.raises(WireError, match="signature"):
            primitives.verify_quantum(public, wrong, message)


def test_a_library_without_mldsa_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "_HAS_MLDSA", False)
    with pytest.raises(SecurityError, match="install version 48"):
        primitives.QuantumKey(bytes(32))
    with pytest.raises(SecurityError, match="install version 48"):
        primitives.verify_quantum(b"", b"", b"")


def test_points_of_small_order_are_weak() -> None:
    """Each of them, in all encodings; (u, v) of order 8 doubles to a point with y = 0."""
    p = 2**255 - 19
    y8 = next(y for y in sorted(primitives._WEAK) if 1 < y < p - 1)
    d = -121665 * pow(121666, -1, p) % p
    x_squared = (y8 * y8 - 1) * pow(d * y8 * y8 + 1, -1, p) % p
    assert (y8 * y8 + x_squared) % p == 0
    for y in (0, 1, y8, p - y8, p - 1, p, p + 1):
        for top in (0, 1 << 255):
            assert primitives.is_weak((y | top).to_bytes(32, "little"))
    assert not primitives.is_weak(primitives.verify_key(bytes(32)))
