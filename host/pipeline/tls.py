"""TLS between ranks: both ends are known by the Ed25519 keys of the fleet's identities.

An identity signs a certificate for a key that lives as long as the process. Who knows the public
identity builds the authority that such a certificate must come from: TLS trusts its name and key,
and never looks at the signature of the authority itself.
"""

import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ternmesh.security.identity import Identity, PublicIdentity
from ternmesh.security.primitives import SEED_SIZE

SUFFIX = ".ternmesh"  # of the name in a certificate; fingerprint before it
# The keys do not outlive the process. So clocks need not be right.
SINCE, UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)


def name_of(identity: PublicIdentity) -> str:
    """The name in the certificates of an identity."""
    return identity.fingerprint.hex() + SUFFIX


def is_loopback(host: str) -> bool:
    """Whether a host of `addresses` is this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def context(own: Identity, peers: Sequence[PublicIdentity], *, is_server: bool) -> ssl.SSLContext:
    """TLS 1.3 with a certificate of `own`, which takes peers with these identities alone."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    if is_server:
        made.num_tickets = 0  # connections carry bytes one way: nobody would read them
    made.load_verify_locations(cadata="".join(_authority(peer) for peer in peers))
    with tempfile.TemporaryDirectory() as folder:  # ssl reads keys from files alone; mode 0700
        path = Path(folder, "certificate.pem")
        path.write_text(_certificate(own))
        made.load_cert_chain(path)
    return made


def peer_name(connection: ssl.SSLSocket) -> str:
    """The name of the peer's authority, whose key signed its certificate.

    A peer may write any other name into its own certificate.
    """
    issuer: Any = (connection.getpeercert() or {}).get("issuer", ())
    return next((str(value) for ((_, value),) in issuer), "")


def authority_of(identity: PublicIdentity) -> str:
    """What `peer_name` returns for a peer with this identity."""
    return f"{name_of(identity)} authority"


def _authority(peer: PublicIdentity) -> str:
    key = Ed25519PublicKey.from_public_bytes(peer.verify)
    return _pem(peer, authority_of(peer), key, Ed25519PrivateKey.generate())


def _certificate(own: Identity) -> str:
    key = Ed25519PrivateKey.generate()
    signer = Ed25519PrivateKey.from_private_bytes(own.seeds[:SEED_SIZE])
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return private + _pem(own.public, name_of(own.public), key.public_key(), signer)


def _pem(owner: PublicIdentity, name: str, key: Ed25519PublicKey, signer: Ed25519PrivateKey) -> str:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    is_authority = name == authority_of(owner)
    depth = 0 if is_authority else None  # it signs no other: that could have any name
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(authority_of(owner)))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(SINCE)
        .not_valid_after(UNTIL)
        .add_extension(x509.BasicConstraints(is_authority, depth), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name_of(owner))]), critical=False)
    )
    return builder.sign(signer, None).public_bytes(Encoding.PEM).decode()
