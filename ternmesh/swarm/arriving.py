"""References and snapshots in pieces, on their way to a node."""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from ternmesh.errors import WireError
from ternmesh.plan import Plan
from ternmesh.swarm.step import read_step
from ternmesh.trust.signing import QUANTUM
from ternmesh.wire.pieces import Assembly
from ternmesh.wire.reference import Certificate, Reference, Snapshot, object_max

BESIDE_MAX = 4  # signatures that wait for their object


class Check(Protocol):
    """`Notary.check_certificate` of a run."""

    def __call__(
        self, content: bytes, certificate: Certificate, beside: Sequence[bytes] = ()
    ) -> None:
        """WireError unless enough signers stand for the content."""


class Arriving:
    """What was said to all is put together apart from what was said to this node alone.

    So nobody who can speak to all spoils the answers to this node's own hellos: what a forger
    costs is a question and a unicast. `forged` counts the pieces that were found out.
    """

    def __init__(self, dimension: int, model_hash: bytes) -> None:
        self._dimension, self._model_hash = dimension, model_hash
        self._assemblies: dict[bool, Assembly] = {}
        self._beside: dict[bool, deque[bytes]] = {}

    @property
    def forged(self) -> int:
        """Pieces beside true ones, which only a member can have sealed."""
        return sum(assembly.forged for assembly in self._assemblies.values())

    def expect(self, plan: Plan) -> None:
        """Objects of a run with this plan come now; what has begun to arrive stays."""
        if not self._assemblies:
            longest = object_max(plan.dimension, plan.down.count, plan.frame_mtu)
            self._assemblies = {i: Assembly(plan.frame_mtu, longest) for i in (False, True)}
            self._beside = {i: deque(maxlen=BESIDE_MAX) for i in (False, True)}

    def forget(self) -> None:
        """What has begun to arrive is of a run that is over."""
        self._assemblies.clear()

    def add(
        self, body: bytes, is_for_all: bool, check: Check
    ) -> tuple[Reference | Snapshot, bytes] | None:
        """The object that a piece completes and the hash of its content, else None.

        WireError, also from `check`, which is asked about the certificate first, with the
        signatures that came before the object to stand beside it.
        """
        content = self._assemblies[is_for_all].add(body)
        if content is None:
            return None
        if content[0] == QUANTUM:
            self._beside[is_for_all].append(content)
            return None
        also = partial(check, beside=tuple(self._beside[is_for_all]))
        step, name = read_step(content, self._dimension, self._model_hash, also)
        if is_for_all and isinstance(step, Snapshot):  # it lists what was counted of one node only
            raise WireError("kind", "a snapshot is for one node")
        return step, name
