"""A gateway's bundle on its way into the host: whose packets it holds, and its shares."""

from collections.abc import Collection
from dataclasses import dataclass, field

from ternmesh.errors import WireError
from ternmesh.swarm.intake import Intake
from ternmesh.wire import contributions, manifest, share
from ternmesh.wire.contributions import Contribution
from ternmesh.wire.manifest import Manifest
from ternmesh.wire.reference import Counted


def is_of_bundle(body: bytes) -> bool:
    """Whether a body in a node's name belongs to a bundle, not to the node's own packet."""
    has_contributors = body[0] == manifest.KIND and manifest.has_contributors(body)
    return has_contributors or body[0] in (contributions.KIND, contributions.SHARE_KIND)


@dataclass(slots=True)
class BundleIntake(Intake):
    """What has arrived of a bundle in the name of `lead`; `nodes` are those it may be made of.

    `rows` has what each contributor's packet is, by context, once manifest and list are here.
    """

    lead: int = 0
    nodes: Collection[int] = ()
    rows: dict[int, Contribution] = field(default_factory=dict)
    listed: bytes = b""  # the body of contributions

    @property
    def usable(self) -> bool:
        """Whether a reference could count it: it is known whose it is, and a share is here."""
        return bool(self.rows) and bool(self.bodies)

    @property
    def complete(self) -> bool:
        """Whether nothing more is to come."""
        return bool(self.rows) and len(self.bodies) == self.plan.up.count

    def add(self, body: bytes) -> bool:
        """Take one body; False if it is here already. WireError if it does not belong."""
        if body[0] == manifest.KIND:
            return self._add_manifest(manifest.read_manifest(body))
        if body[0] == contributions.KIND:
            return self._add_contributions(body)
        return self._add_share(share.read_share(body, contributions.SHARE_KIND), body)

    def counted(self, context: int) -> Counted:
        """The row of a contributor's packet, as far as the bundle is here."""
        return Counted(context, self.round, self.rows[context].digest, self.have)

    def counted_itself(self) -> Counted:
        """The bundle's own row: by it a gateway knows that this bundle was counted."""
        assert self.manifest is not None
        return Counted(self.lead, self.round, self.manifest.digest, self.have)

    def _add_contributions(self, body: bytes) -> bool:
        contributions.read_contributions(body)
        if self.listed:
            if self.listed != body:
                raise WireError("conflict", "a second, different list of contributions")
            return False
        self.listed = body
        self._check_digest()
        return True

    def _check_contributors(self, item: Manifest) -> None:
        if len(item.contributors) < 2 or item.contributors[0] != self.lead:
            raise WireError("manifest", "a bundle comes in the name of the first of two or more")
        if not all(context in self.nodes for context in item.contributors):
            raise WireError("unknown node", "a bundle names a context that nobody was given")

    def _check_votes(self, largest: int, scale: int) -> None:
        if largest * scale > self.plan.scale_max:
            raise WireError("scale", "a bundle's votes are beyond what the plan allows")

    def whole(self) -> list[bytes]:
        """The bodies that the digest covers: the list, then the shares."""
        return [self.listed, *Intake.whole(self)]

    def _check_digest(self) -> None:
        """Also whether the list is that of the manifest: if not, the owner forgets all of it."""
        if self.manifest is not None and self.listed and not self.rows:
            rows = contributions.read_contributions(self.listed)
            named = self.manifest.contributors
            if len(rows) != len(named) or sum(r.samples for r in rows) != self.manifest.samples:
                raise WireError("digest", "the contributions are not those of the manifest")
            self.rows = dict(zip(named, rows, strict=True))
        Intake._check_digest(self)
