"""How a running node checks and looks for new releases of its model.

A release must be signed by the host of the fleet, or by enough of the fleet's signers.
"""

import logging
import time
from typing import Any

from edge.config import NodeConfig
from edge.errors import BoardFault, NotSigned
from edge.releases.rollout import report
from edge.releases.store import Releases, accept_unsigned
from ternmesh.config import ConfigError
from ternmesh.errors import WireError
from ternmesh.release import Verify
from ternmesh.security.signatures import Signers, verify_release
from ternmesh_service.keyring import Keyring, NoKeyring

LOOK_S = 1.0  # between two looks at the folder

_log = logging.getLogger(__name__)


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


class ReleaseWatch:
    """Looks for new releases at most once in `LOOK_S`, and logs each problem once."""

    def __init__(self, releases: Releases) -> None:
        self.report: dict[str, Any] | None = None  # of the last look, for the status
        self._releases = releases
        self._look_at = 0.0
        self._logged: set[str] = set()

    def sees_new_release(self) -> bool:
        """Whether a release was installed that has not been tried; False between two looks."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        try:
            standing = self._releases.standing()
            signed, refused = self._releases.survey(standing.floor)
        except BoardFault as error:
            self._log_once(f"no new release can be seen: {error}")
            return False
        for version, reason in refused.items():
            self._log_once(f"release {version} is not taken: {reason}")
        self.report = report(standing, refused)
        return bool(signed)

    def _log_once(self, sentence: str) -> None:
        if sentence not in self._logged:
            self._logged.add(sentence)
            _log.warning(sentence)
