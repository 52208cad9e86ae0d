"""Who must have signed a release: the host of the fleet, or enough of the fleet's signers."""

from edge.config import NodeConfig
from edge.errors import NotSigned
from edge.releases.store import accept_unsigned
from ternmesh.config import ConfigError
from ternmesh.errors import WireError
from ternmesh.release import Verify
from ternmesh.security.signatures import Signers, verify_release
from ternmesh_service.keyring import Keyring, NoKeyring


def release_check(config: NodeConfig, keyring: Keyring | NoKeyring) -> Verify:
    """The check of a release's signatures; ConfigError if the node has no keys for it."""
    if config.releases.insecure:
        return accept_unsigned
    if isinstance(keyring, NoKeyring):
        raise ConfigError(
            "releases.dir needs keys: without them, anyone who may write there could run a model "
            "here; if that is intended, set releases.insecure = true"
        )

    def check(content: bytes, signatures: bytes) -> None:  # the host's key may change meanwhile
        signed_by(keyring.signers, keyring.member_list.fleet)(content, signatures)

    return check


def signed_by(signers: Signers, fleet: bytes) -> Verify:
    """The check that enough of `signers` have signed; it raises NotSigned."""
    who = "the host of this fleet"
    if len(signers.keys) > 1:
        who = f"{signers.needed} of the {len(signers.keys)} signers of this fleet"

    def check(content: bytes, signatures: bytes) -> None:
        try:
            verify_release(signers, fleet, content, signatures)
        except WireError as error:
            raise NotSigned(f"this release is not signed by {who}: {error}") from error

    return check
