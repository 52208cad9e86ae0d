"""Reassembles global updates and global snapshots from fragments, on a node."""

from collections import Counter, deque
from collections.abc import Callable, Sequence

from ternmesh.errors import WireError
from ternmesh.federated.aggregation import read_step
from ternmesh.federated.events import Pending
from ternmesh.federated.state import ChainLink
from ternmesh.plan import Plan
from ternmesh.security.signatures import QUANTUM
from ternmesh.wire.fragments import Reassembler
from ternmesh.wire.global_update import (
    GIVEN,
    Certificate,
    Counted,
    GlobalSnapshot,
    GlobalUpdate,
    hash_adapter,
    read_given,
)
from ternmesh.wire.proof import PROOF, Proof, proved_rows, read_proof, write_proof

BESIDE_MAX = 4  # signatures that are kept until their object arrives
PROOFS_MAX = 8  # proofs that are kept for the node
PROOF_TRIES = 5  # times that a global update comes without a proof, until it counts nothing


# `MessageAuthenticator.check_certificate` for one run: content, certificate, objects beside it
Check = Callable[[bytes, Certificate, Sequence[bytes]], None]


class GlobalReassembler:
    """Reassembles broadcast objects and objects for this node separately.

    A member that forges broadcast fragments therefore cannot damage the answers to this node's
    hellos: the node loses a broadcast, says hello, and receives the object in frames of its own.
    """

    def __init__(self, dimension: int, model_hash: bytes) -> None:
        self._dimension = dimension
        self._model_hash = model_hash
        self._origin = b""
        self._assemblies: dict[bool, Reassembler] = {}  # by whether the object is for all nodes
        self._beside: dict[bool, deque[bytes]] = {}  # signatures that came before their object
        # Not checked yet, by whether they came for all nodes
        self._proofs = {i: deque[Proof](maxlen=PROOFS_MAX) for i in (False, True)}
        self._unproved: Counter[int] = Counter()  # global updates without a proof, by version

    @property
    def forged(self) -> int:
        """The number of fragments that contradict others; only a member can have sealed these."""
        return sum(assembly.forged for assembly in self._assemblies.values())

    def expect(self, plan: Plan, origin: bytes) -> None:
        """Prepare for the objects of a run with this plan; unfinished objects are kept.

        `origin` is the genesis hash of the run.
        """
        self._origin = origin
        if not self._assemblies:
            self._assemblies = {
                i: Reassembler(plan.frame_mtu, plan.object_max) for i in (False, True)
            }
            self._beside = {i: deque(maxlen=BESIDE_MAX) for i in (False, True)}

    def forget(self) -> None:
        """Drop unfinished objects: their run is over."""
        self._assemblies.clear()

    def add(
        self, body: bytes, is_for_all: bool, check: Check
    ) -> tuple[GlobalUpdate | GlobalSnapshot, ChainLink] | None:
        """Add a fragment. Return the completed object, read and as it came, else None.

        Raises WireError, also from `check`. `check` gets the content, its certificate and the
        signatures that arrived before the object.
        """
        content = self._assemblies[is_for_all].add(body)
        if content is None:
            return None
        if content[0] == QUANTUM:
            self._beside[is_for_all].append(content)
            return None
        if content[0] == PROOF:
            self._proofs[is_for_all].append(read_proof(content))
            return None
        beside = tuple(self._beside[is_for_all])

        def check_all(content: bytes, certificate: Certificate) -> None:
            check(content, certificate, beside)

        if content[0] == GIVEN and is_for_all:
            raise WireError("kind", "a given adapter is for one node")
        if content[0] == GIVEN:
            return self._take_given(content, check_all)
        step, name = read_step(content, self._dimension, self._model_hash, check_all)
        if is_for_all and isinstance(step, GlobalSnapshot):
            raise WireError("kind", "a snapshot is for one node: it lists that node's rows only")
        return step, ChainLink(step.version, name, content)

    def proved(
        self, step: GlobalUpdate, address: int, pending: Pending, *, has_aggregator: bool
    ) -> tuple[Sequence[Counted] | None, bytes]:
        """What a global update counts of a node, and the proof; None while a proof is missing.

        Any member can forge a proof for all nodes: there it shows only that this very update
        counts. A host that lost its disk may have none: it counts nothing, after some tries.
        """
        for is_for_all in (False, True):
            for proof in tuple(self._proofs[is_for_all]):
                if proof.version != step.version or bool(proof.via) != has_aggregator:
                    continue
                try:
                    found = proved_rows(step, proof, address)
                except WireError:
                    continue  # of other addresses, or wrong
                own = pending.round, pending.digest
                if not is_for_all or [(row.round, row.digest) for row in found] == [own]:
                    self._unproved.clear()
                    return found, write_proof(proof)
        self._unproved[step.version] += 1
        return ((), b"") if self._unproved[step.version] > PROOF_TRIES else (None, b"")

    def _take_given(
        self, content: bytes, check: Callable[[bytes, Certificate], None]
    ) -> tuple[GlobalSnapshot, ChainLink]:
        """A snapshot that no signer had to make: a global update, and the adapter of its hash."""
        data, model_q24 = read_given(content, self._dimension)
        step, name = read_step(data, self._dimension, self._model_hash, check)
        if not isinstance(step, GlobalUpdate):
            raise WireError("reference", "a given adapter comes with a global update")
        if hash_adapter(self._origin, step.version, model_q24) != step.adapter_hash:
            raise WireError("reference", "a given adapter is not that of its global update")
        snapshot = GlobalSnapshot(
            version=step.version,
            global_hash=name,
            model=step.model,
            finished=step.finished,
            deadline_ms=step.deadline_ms,
            counted=step.counted,
            state=model_q24,
        )
        return snapshot, ChainLink(step.version, name, data)
