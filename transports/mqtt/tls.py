"""TLS to a broker: certificate files, and explanations of failures."""

import ssl
from dataclasses import dataclass

NO_PASSPHRASE = ""  # With None, OpenSSL would ask for one at the terminal, and wait.
# Reasons of OpenSSL (x509_vfy.h).
_NOT_YET_VALID, _EXPIRED, _OTHER_NAME, _OTHER_ADDRESS = 9, 10, 62, 64


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files: the authorities (None: the system's), our certificate and its key."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None


def check_ca_file(path: str) -> None:
    """ValueError unless the file at `path` holds certificates."""
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        raise ValueError(f"ca_file {path} holds no certificates: {_why(error)}") from error


def check_certificate(certificate: str, key: str) -> None:
    """ValueError unless the files hold a certificate and its key without a passphrase."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, NO_PASSPHRASE)
    except OSError as error:
        raise ValueError(
            f"certificate_file {certificate} and key_file {key} are no certificate and its key "
            f"({_why(error)}): both are PEM files, the key without a passphrase"
        ) from error


def _why(error: OSError) -> str:
    """The reason without OpenSSL's names and line numbers."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error.strerror)


def explain(error: OSError, broker: str, files: TlsFiles | None) -> str:
    """Why `broker` could not be reached, and what to do; `files` is None without TLS."""
    match error:
        case ssl.SSLCertVerificationError() if files is not None:
            return f"the certificate of {broker} {_distrust(error, files)}"
        case ssl.SSLError() | ConnectionResetError():
            return f"cannot reach {broker}: {error}; {doubt(files)}"
        case _:
            return f"cannot reach {broker}: {error}"


def doubt(files: TlsFiles | None) -> str:
    """What to check where a broker closes the connection; `files` is None without TLS."""
    if files is None:
        return "is it a port for TLS (mqtts://)?"
    if files.certificate is None:
        return "is it a port for TLS, and does it ask for a certificate (certificate_file)?"
    return "is it a port for TLS, and does it trust our certificate?"


def _distrust(error: ssl.SSLCertVerificationError, files: TlsFiles) -> str:
    what = error.verify_message.rstrip(".")
    if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
        return f"is not valid now ({what}): renew it, or set the clock of this machine"
    if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
        return f"is for another name ({what}): write the URL with a name that it is for"
    signers = files.ca or "the system's certificates"
    return f"is signed by no authority in {signers} ({what}): set ca_file to the one that signed it"
