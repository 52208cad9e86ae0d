"""The golden bytes of sections 3 and 9, read by a second implementation made from SPEC.md alone."""

import base64
import hashlib
import hmac
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESCCM

from ternmesh.security import enrolment, identity, membership

FOLDER = Path(__file__).parents[2] / "vectors"
KEYED: dict[str, dict[str, Any]] = json.loads((FOLDER / "keyed.json").read_text())
TRUST: dict[str, dict[str, Any]] = json.loads((FOLDER / "trust.json").read_text())
PACKETS: dict[str, dict[str, Any]] = json.loads((FOLDER / "packets.json").read_text())
SEEDS = {
    "host": bytes(range(64)),
    "theo": bytes(range(100, 164)),
    "new host": bytes(range(150, 214)),
}
NAMES = {"host": (b"greenhouse", 3), "theo": (b"theo", 0), "new host": (b"greenhouse", 3)}
EPHEMERALS = {"theo": bytes(range(32)), "host": bytes(range(32, 64))}  # private keys
RUN, MODEL = bytes.fromhex("a1a2a3a4a5a6a7a8"), bytes(range(32))


def kept(name: str) -> bytes:
    return bytes.fromhex(TRUST[name]["bytes"])


def spec_hkdf(secret: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    key, block, out = hmac.digest(salt or bytes(32), secret, "sha256"), b"", b""
    while len(out) < size:
        block = hmac.digest(key, block + info + bytes((len(out) // 32 + 1,)), "sha256")
        out += block
    return out[:size]


def spec_keys(who: str) -> bytes:
    signing = Ed25519PrivateKey.from_private_bytes(SEEDS[who][:32])
    exchange = X25519PrivateKey.from_private_bytes(SEEDS[who][32:])
    return signing.public_key().public_bytes_raw() + exchange.public_key().public_bytes_raw()


def spec_identity(who: str) -> bytes:
    name, role = NAMES[who]
    return bytes((1, role, len(name))) + name + spec_keys(who)


def spec_fingerprint(who: str) -> bytes:
    return hashlib.sha256(b"ternmesh fingerprint" + spec_keys(who)).digest()[:16]


def spec_fleet() -> bytes:
    return hashlib.sha256(b"ternmesh fleet" + spec_identity("host") + b"tomatoes").digest()[:16]


def spec_pair() -> bytes:
    exchange = X25519PrivateKey.from_private_bytes(SEEDS["host"][32:])
    shared = exchange.exchange(X25519PublicKey.from_public_bytes(spec_keys("theo")[32:]))
    both = sorted((spec_identity("host"), spec_identity("theo")))
    info = b"ternmesh pair" + b"".join(bytes((len(item),)) + item for item in both)
    return spec_hkdf(shared, spec_fleet(), info, 32)


def spec_exchange(private: bytes, public: bytes) -> bytes:
    key = X25519PrivateKey.from_private_bytes(private)
    return key.exchange(X25519PublicKey.from_public_bytes(public))


def spec_public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def spec_noise_keys(s_i: bytes, s_r: bytes, e_i: bytes, e_r: bytes) -> tuple[bytes, bytes]:
    """The two keys at the end of Noise's handshake KK, of four private keys."""
    chain = b"Noise_KK_25519_AESGCM_SHA256".ljust(32, b"\0")
    for private, other in ((e_i, s_r), (s_i, s_r), (e_i, e_r), (s_i, e_r)):
        chain = spec_hkdf(spec_exchange(private, spec_public(other)), chain, b"", 64)[:32]
    both = spec_hkdf(b"", chain, b"", 64)
    return both[:32], both[32:]


def spec_secret(suite: int, sender: str) -> bytes:
    """The secret of one direction; a node's role comes first, so that theo is the initiator."""
    statics = SEEDS["theo"][32:], SEEDS["host"][32:]
    halves = spec_noise_keys(*statics, EPHEMERALS["theo"], EPHEMERALS["host"])
    ends = [spec_identity(who) for who in ("theo", "host")]
    script = b"ternmesh session" + bytes((suite,)) + spec_fleet()
    script += b"".join(bytes((len(end),)) + end for end in ends)
    script += spec_public(EPHEMERALS["theo"]) + spec_public(EPHEMERALS["host"])
    half = halves[0] if sender == "theo" else halves[1]
    return spec_hkdf(half, hashlib.sha256(script).digest(), b"ternmesh traffic", 32)


def spec_open(case: dict[str, Any]) -> tuple[tuple[int, ...], bytes]:
    """Claims (where there are any) and body of a frame of the vectors."""
    frame, suite, sender = bytes.fromhex(case["bytes"]), case["suite"], case["sender"]
    first, address = struct.unpack_from("<BH", frame)
    is_broadcast = address == 0xFFFF
    assert first == 1 << 5 | suite << 2 | is_broadcast << 1  # the broadcast key has epoch 1
    counter, sent_by = case["counter"], spec_fingerprint(sender)
    assert frame[3:6] == counter.to_bytes(8, "little")[:3]
    nonce = struct.pack("<HQ", address, counter) + bytes(3)
    head = frame[:6]
    if address == 0:
        assert frame[6:38] == spec_public(EPHEMERALS[sender])
        assert frame[38:43] == counter.to_bytes(8, "little")[3:]
        info = b"ternmesh opening" + bytes((suite,)) + sent_by
        key = spec_hkdf(spec_pair(), frame[6:38], info, 16)
        assert AESCCM(key, 8).decrypt(nonce, frame[43:51], frame[:43]) == b""
        head = frame[:51]
        if len(frame) == len(head):
            return (), b""
    if is_broadcast:
        info = b"ternmesh broadcast" + bytes((suite,)) + sent_by
        info += struct.pack("<IQ", 1, counter >> 20)
        key = spec_hkdf(bytes.fromhex(group(suite)), spec_fleet(), info, 16)
    else:
        generation = struct.pack("<Q", counter >> 20)
        key = spec_hkdf(spec_secret(suite, sender), generation, b"ternmesh generation", 16)
    plain = AESCCM(key, 8).decrypt(nonce, frame[len(head) :], head + bytes.fromhex(case["run"]))
    return ((), plain) if address else (struct.unpack_from("<QI", plain), plain[12:])


def group(suite: int) -> str:
    """The broadcast key, which stands in the body that gives it away."""
    name = {1: "end to end 3", 2: "hop 3"}[suite]
    body: str = KEYED[name]["body"]
    assert body[:10] == "0b01000000"
    return body[10:42]


@pytest.mark.parametrize("case", KEYED.values(), ids=list(KEYED))
def test_frames(case: dict[str, Any]) -> None:
    assert spec_open(case)[1].hex() == case["body"]


def test_claims_follow_each_other() -> None:
    claims = [spec_open(KEYED[f"end to end {number}"])[0] for number in range(4)]
    assert claims == [(), (0, 0), (1 << 25, 0), (8, 0)]


def test_the_keys_of_a_session_are_those_of_another_noise_implementation() -> None:
    published = json.loads((FOLDER / "published.json").read_text())
    [case] = published["noise_kk"]
    names = ("static_i", "static_r", "ephemeral_i", "ephemeral_r")
    s_i, s_r, e_i, e_r = (bytes.fromhex(case[name]) for name in names)
    keys = spec_noise_keys(s_i, s_r, e_i, e_r)
    assert [key.hex() for key in keys] == [case["key_of_i"], case["key_of_r"]]


def test_identities() -> None:
    assert kept("identity of the host") == spec_identity("host")
    assert kept("identity of a node") == spec_identity("theo")
    assert kept("fingerprint") == spec_fingerprint("theo")
    assert kept("fleet") == spec_fleet()
    check = hashlib.sha256(b"TM1:" + spec_identity("theo")).digest()[:4]
    text = "TM1:" + base64.b32encode(spec_identity("theo") + check).decode().rstrip("=")
    assert TRUST["text of an identity"]["text"] == text
    assert identity.identity_text(identity.parse_identity(text)) == text


def spec_statement(*parts: bytes) -> bytes:
    return b"ternmesh 1 " + b"".join(struct.pack("<I", len(part)) + part for part in parts)


def spec_verify(who: str, signature: bytes, *parts: bytes) -> None:
    key = Ed25519PublicKey.from_public_bytes(spec_keys(who)[:32])
    key.verify(signature, spec_statement(*parts))


def test_membership_list() -> None:
    data = kept("membership list")
    theo = kept("identity of a node")
    rest = struct.pack("<IHB", 1, 1, len(theo)) + theo + struct.pack("<H", 0)
    assert data[:-64] == rest
    spec_verify("host", data[-64:], b"members", spec_fleet(), data[:-64])


def test_list_request() -> None:
    data = kept("list request")
    content = struct.pack("<I", 2) + spec_fingerprint("theo")
    assert data[:-64] == b"\x13" + content
    spec_verify("theo", data[-64:], b"list request", spec_fleet(), content)


def test_the_rotation_of_a_host_and_its_notices() -> None:
    data, old, new = kept("host rotation"), spec_identity("host"), spec_identity("new host")
    content = spec_fingerprint("host") + new
    assert data.startswith(content)
    proof, rows = data[len(content) : len(content) + 64], data[len(content) + 64 :]
    spec_verify("new host", proof, b"rotation", spec_fleet(), content)
    assert (len(rows), rows[0], rows[-1]) == (66, 0, 1)
    place = (spec_fleet(), bytes(8), bytes(32))
    signed = hashlib.sha256(content + proof).digest()
    spec_verify("host", rows[1:65], b"host rotation", *place, signed)
    assert kept("host keys") == new + old + struct.pack("<H", len(data)) + data
    frames = [kept(f"host rotation, frame {number}") for number in range(3)]
    assert all(frame[:7] == b"\x20" + bytes(5) + b"\x14" for frame in frames)
    name = hashlib.sha256(data).digest()[:4] + struct.pack("<I", len(data))
    for number, frame in enumerate(frames):
        assert len(frame) <= 100
        assert frame[7:17] == name + struct.pack("<H", number)
    assert b"".join(frame[17:-8] for frame in frames) == data
    notice = kept("revoked")
    assert notice[:7] == b"\x20" + bytes(5) + b"\x12"
    spec_verify("host", notice[7:-8], b"revoked", spec_fleet(), spec_fingerprint("theo"))


def test_enrolment() -> None:
    letters = TRUST["code"]["text"].replace("-", "")
    entropy = base64.b32decode(letters + "====")
    assert entropy == bytes(range(12))
    check = hashlib.sha256(b"ternmesh code" + entropy).digest()[0] >> 4
    assert letters == base64.b32encode(entropy + bytes((check << 4,))).decode()[:20]
    key = spec_hkdf(entropy, b"", b"ternmesh enrolment", 36)
    request, answer = kept("enrolment request"), kept("enrolment answer")
    theo = spec_identity("theo")
    proof = hmac.digest(key[:32], spec_statement(b"enrol request", theo), "sha256")[:16]
    assert request == b"\x0c" + key[32:] + theo + proof
    told = spec_fleet() + spec_identity("host")
    proof = hmac.digest(key[:32], spec_statement(b"enrol answer", theo, told), "sha256")[:16]
    assert answer == b"\x0d" + told + proof
    code = enrolment.read_code(TRUST["code"]["text"])
    public = identity.read_identity(theo)
    found = enrolment.read_answer(answer, public, code)
    assert membership.found_fleet("tomatoes", found.host) == found


def test_signatures() -> None:
    place = (spec_fleet(), RUN, MODEL)
    body = kept("signed manifest")
    samples, chunks = struct.unpack_from("<I", body, 11)[0], struct.unpack_from("<H", body, 19)[0]
    numbers = struct.pack("<IIH", 5, samples, chunks)
    packet = bytes.fromhex(PACKETS["digest"]["sha256"])
    spec_verify("theo", body[-64:], b"packet", *place, numbers, packet, b"", b"")
    data = kept("signed receipt")
    spec_verify("host", data[1:65], b"body", *place, spec_fingerprint("theo"), data[65:])
    assert data[0] == 0x0E
    data, secret = kept("signed announce"), bytes.fromhex(group(1))
    to_all = hashlib.sha256(b"ternmesh broadcast key" + secret).digest()[:16]
    spec_verify("host", data[1:65], b"body", place[0], bytes(8), MODEL, to_all, data[65:])
    certified = kept("certificate")
    content, index, signature = certified[:-66], certified[-66], certified[-65:-1]
    assert (content, index, certified[-1]) == (b"content", 0, 1)
    digest = hashlib.sha256(content).digest()
    spec_verify("host", signature, b"reference", *place, digest)
