"""A small certificate authority, and the broker's certificate."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
SERVER_DAYS = 825
EARLIER = timedelta(days=1)  # the clock of a board may be behind


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key, both PEM."""

    public: bytes
    key: bytes


def make_authority(name: str, now: datetime) -> Certificate:
    """The authority that the boards of a deployment trust; it can sign servers only."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(f"{name} authority")
    builder = _builder(subject, subject, key.public_key(), now, AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return Certificate(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))


def make_server(names: Sequence[str], authority: Certificate, now: datetime) -> Certificate:
    """A broker's certificate for DNS names and addresses; ValueError for an empty name."""
    signer = x509.load_pem_x509_certificate(authority.public)
    signing_key = load_pem_private_key(authority.key, password=None)
    assert isinstance(signing_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_named(names[0]), signer.subject, key.public_key(), now, SERVER_DAYS)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName([_alternative(name) for name in names]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), False),
    ):
        builder = builder.add_extension(extension, critical)
    return Certificate(_pem(builder.sign(signing_key, hashes.SHA256())), _key_pem(key))


def names_in(certificate: bytes) -> list[str]:
    """The DNS names and addresses that a PEM certificate is for; ValueError."""
    parsed = x509.load_pem_x509_certificate(certificate)
    try:
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound as error:
        raise ValueError("the certificate names no server") from error
    return [
        *names.get_values_for_type(x509.DNSName),
        *(str(address) for address in names.get_values_for_type(x509.IPAddress)),
    ]


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    now: datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
