"""Whose releases a board takes: those that the host of its fleet, or its signers, have signed."""

from functools import partial

from edge.config import NodeConfig
from edge.errors import NotSigned
from edge.releases import accept_unsigned
from ternmesh.config import ConfigError
from ternmesh.errors import WireError
from ternmesh.release import Verify
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
    return signed_by(keyring.signers, keyring.roster.fleet)


def signed_by(signers: Signers, fleet: bytes) -> Verify:
    """The check that enough of them have signed; NotSigned otherwise."""
    return partial(_check, signers, fleet)


def _check(signers: Signers, fleet: bytes, content: bytes, signatures: bytes) -> None:
    try:
        verify_release(signers, fleet, content, signatures)
    except WireError as error:
        who = "the host of this fleet"
        if len(signers.keys) > 1:
            who = f"{signers.needed} of the {len(signers.keys)} signers of this fleet"
        raise NotSigned(f"this release is not signed by {who}: {error}") from error
