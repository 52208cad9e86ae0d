"""Whose releases a board takes: those that the host of its fleet has signed."""

from functools import partial

from edge.config import NodeConfig
from edge.errors import ModelError
from edge.releases import accept_unsigned
from ternmesh.config import ConfigError
from ternmesh.errors import WireError
from ternmesh.release import Verify
from ternmesh.trust.identity import PublicIdentity
from ternmesh.trust.release_signatures import verify_release
from ternmesh.trust.signing import Signers
from ternmesh_store.keyring import Keyring, NoKeyring


def release_check(config: NodeConfig, keyring: Keyring | NoKeyring) -> Verify:
    """What a node checks before it reads a release; ConfigError where it can check nothing."""
    if config.releases.insecure:
        return accept_unsigned
    if isinstance(keyring, NoKeyring):
        raise ConfigError(
            "releases.dir needs keys: whoever may write there could run a model here; if that is "
            "meant, say releases.insecure = true"
        )
    return signed_by(keyring.roster.host, keyring.roster.fleet)


def signed_by(host: PublicIdentity, fleet: bytes) -> Verify:
    """The check that a host has signed; ModelError otherwise."""
    return partial(_check, host, fleet)


def _check(host: PublicIdentity, fleet: bytes, content: bytes, signatures: bytes) -> None:
    try:
        verify_release(Signers((host,)), fleet, content, signatures)
    except WireError as error:
        raise ModelError(
            f"this release is not signed by the host of this fleet: {error}"
        ) from error
