"""One node's packet on its way into the host: bodies in any order, repeated, damaged."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import WireError
from ternmesh.hypervector.encoder import Hypervector, decode_slice, gather
from ternmesh.hypervector.scale import decode_scale
from ternmesh.plan import Plan
from ternmesh.swarm.bitmap import write_bitmap
from ternmesh.wire import manifest, share
from ternmesh.wire.manifest import Manifest

Decoded = tuple[int, NDArray[np.int8], int]


@dataclass(slots=True)
class Intake:
    """What has arrived of one packet for one round; bounded by the number of shares of the plan."""

    plan: Plan
    model: bytes
    round: int
    manifest: Manifest | None = None
    bodies: dict[int, bytes] = field(default_factory=dict)
    decoded: dict[int, Decoded] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether a reference could count it: its manifest and at least one share are here."""
        return self.manifest is not None and bool(self.bodies)

    @property
    def complete(self) -> bool:
        """Whether nothing more is to come."""
        return self.manifest is not None and len(self.bodies) == self.plan.up.count

    @property
    def have(self) -> bytes:
        """The bitmap of the shares that are here."""
        return write_bitmap(self.bodies, self.plan.up.count)

    def add(self, body: bytes) -> bool:
        """Take one body; False if it is here already. WireError if it does not belong."""
        if body[0] == manifest.KIND:
            return self._add_manifest(manifest.read_manifest(body))
        return self._add_share(share.read_share(body), body)

    def hypervector(self) -> Hypervector:
        """The packed vector of the shares that are here."""
        return gather(list(self.decoded.values()), self.plan.up)

    def _add_manifest(self, item: Manifest) -> bool:
        if item.model != self.model:
            raise WireError("wrong model", "a packet for another model")
        if item.shares != self.plan.up.count:
            raise WireError("vector length", f"a packet here has {self.plan.up.count} shares")
        self._check_contributors(item)
        if self.manifest == item:
            return False
        if self.manifest is not None:
            raise WireError("conflict", "a second, different packet for the same round")
        self.manifest = item
        self._check_digest()
        return True

    def _add_share(self, item: share.Share, body: bytes) -> bool:
        index = item.slice.index
        if index >= self.plan.up.count:
            raise WireError("vector length", f"a packet here has {self.plan.up.count} shares")
        if index in self.bodies:
            if self.bodies[index] != body:
                raise WireError("conflict", "a second, different share for the same place")
            return False
        if decode_scale(item.slice.scale) > self.plan.scale_max:
            raise WireError("scale", "a share's scale is beyond what the plan allows")
        trits, scale = decode_slice(item.slice, self.plan.up)
        self._check_votes(int(np.abs(trits).max(initial=0)), scale)
        self.bodies[index], self.decoded[index] = body, (index, trits, scale)
        self._check_digest()
        return True

    def _check_contributors(self, item: Manifest) -> None:
        if item.contributors:
            raise WireError("bundle", "bundled packets are not taken from this node")

    def _check_votes(self, largest: int, _scale: int) -> None:
        if largest > 1:
            raise WireError("bundle", "votes are not taken from this node")

    def whole(self) -> list[bytes]:
        """The bodies that the digest covers."""
        return [self.bodies[index] for index in range(self.plan.up.count)]

    def _check_digest(self) -> None:
        """Refuse a whole packet that is not what its manifest names; the owner forgets it."""
        if self.manifest is None or not self.complete:
            return
        if manifest.packet_digest(self.whole()) != self.manifest.digest:
            raise WireError("digest", "the shares are not those that the manifest names")
