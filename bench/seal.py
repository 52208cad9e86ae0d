"""What keys cost: bytes around a frame and an update.

COSE is encoded in the same run (cbor2, and the same cryptography); OSCORE, LoRaWAN and Meshtastic
are the published layouts of their headers, counted.
"""

import hashlib
from contextlib import suppress

import cbor2

from bench.result import Figure, Result
from ternmesh.errors import WireError
from ternmesh.security.identity import Identity, Role, make_identity
from ternmesh.security.keyed_sealing import SYNC_OVERHEAD, KeyedSealing
from ternmesh.security.membership import MemberList, found_fleet
from ternmesh.security.primitives import Ccm
from ternmesh.security.session import ANSWER, SealingState
from ternmesh.security.signatures import SigningContext, sign_update
from ternmesh.wire.frame import FRAME_OVERHEAD, UNASSIGNED
from ternmesh.wire.update import Manifest, write_manifest

FRAME = 222
UP, BODY = 3, FRAME - FRAME_OVERHEAD
# Counted from the standards: LoRaWAN 1.0.x data frame (MHDR 1, DevAddr 4, FCtrl 1, FCnt 2, FPort 1,
# MIC 4); OSCORE's own examples (RFC 8613, C.4 and C.7); Meshtastic's header of 16 and, for a direct
# message with keys, tag 8 and nonce 4; the same with an XEdDSA signature and its framing.
PUBLISHED = {
    "lorawan_frame_bytes": 13.0,
    "oscore_request_bytes": 13.0,
    "oscore_response_bytes": 11.0,
    "meshtastic_frame_bytes": 28.0,
    "meshtastic_signed_bytes": 82.0,
}


def measure(*, quick: bool) -> Result:
    """Sizes are exact, so `quick` is exact too."""
    figures = {
        "frame_overhead_bytes": Figure(frame_overhead(), "<=14"),
        "packet_overhead_bytes": Figure(packet_overhead(), "<=80"),
    }
    peers = {
        "cose_encrypt0_frame_bytes": float(len(_cose_seal(Ccm(bytes(16)), bytes(BODY), 1)) - BODY),
        "cose_sign1_bytes": float(len(cose_sign1(someone("cose", Role.NODE), bytes(100))) - 100),
        **PUBLISHED,
    }
    notes = [
        f"a frame of {FRAME} bytes, the same {FRAME_OVERHEAD} on every bearer; a hello, welcome or "
        f"sync has {SYNC_OVERHEAD}",
        "a packet: the Ed25519 signature, and the seal of the frame that it travels in",
        "COSE_Encrypt0: AES-CCM-16-64-128, kid of 2 bytes, Partial IV of 3, no CBOR tag; "
        "COSE_Sign1: Ed25519, kid of 2 bytes",
        "LoRaWAN, OSCORE and Meshtastic: counted from their published layouts, not run",
    ]
    return Result("seal", figures, peers, notes, quick=quick)


def someone(name: str, role: Role) -> Identity:
    """An identity that is the same in every run."""
    return make_identity(name, role, hashlib.sha512(name.encode()).digest())


def met() -> tuple[KeyedSealing, KeyedSealing]:
    """A host and a node that know each other; they have used the counters below 2."""
    host, node = someone("greenhouse", Role.HOST), someone("theo", Role.NODE)
    member_list = MemberList(found_fleet("tomatoes", host.public))
    member_list.enrol(node.public)
    at_host = KeyedSealing(host, member_list, 1, bytes(range(32)), 0, SealingState(), hub=None)
    at_node = KeyedSealing(node, member_list, 1, bytes(range(1, 33)), 0, SealingState(), hub="host")
    with suppress(WireError):  # an opening
        at_host.open("theo", at_node.seal("host", UNASSIGNED, 0, ANSWER))
    [(_, address, question)] = at_host.due(0.0)
    at_node.open("host", at_host.seal("theo", address, 0, question))
    at_host.open("theo", at_node.seal("host", UNASSIGNED, 1, ANSWER))
    return at_host, at_node


def frame_overhead() -> float:
    """Bytes that a keyed frame has beside its body."""
    _, node = met()
    return float(len(node.seal("host", UP, 2, bytes(BODY))) - BODY)


def packet_overhead() -> float:
    """Bytes that a packet has for its signature: that, and the seal of its frame."""
    node, place = someone("theo", Role.NODE), SigningContext(bytes(16), bytes(8), bytes(32))
    head = Manifest(0, bytes(8), 1, bytes(4), 8)
    signed = write_manifest(sign_update(node, place, 0, head, bytes(32)))
    _, at_node = met()
    unsigned = len(signed) - len(head.signature)
    return float(len(at_node.seal("host", UP, 2, signed)) - unsigned)


def cose_sign1(own: Identity, body: bytes) -> bytes:
    """A COSE_Sign1 (RFC 9052) with Ed25519 around a body."""
    protected = cbor2.dumps({1: -8})
    message = cbor2.dumps(["Signature1", protected, b"", body])
    return cbor2.dumps([protected, {4: b"id"}, body, own.sign(message)])


def _cose_seal(cipher: Ccm, body: bytes, counter: int) -> bytes:
    protected, partial = cbor2.dumps({1: 10}), counter.to_bytes(3, "big")
    head = cbor2.dumps(["Encrypt0", protected, b""])
    sealed = cipher.seal(bytes(10) + partial, head, body)
    return cbor2.dumps([protected, {4: b"id", 6: partial}, sealed])
