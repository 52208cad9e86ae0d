"""What makes the next global update of what counts in a round: rule, guard, and encoding.

All of it follows from the plan, the updates that counted and the order of the rounds, and from no
time.
"""

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import sha256

import cbor2
import numpy as np

from ternmesh.codec.encoder import zero_residual
from ternmesh.codec.scale import add_q24, to_float
from ternmesh.federated.aggregation import make_step, older_adapter
from ternmesh.federated.guard import Guard
from ternmesh.federated.open_round import Count
from ternmesh.federated.registry import CHAIN_BYTES_MAX, NodeRegistry, UpdateChain
from ternmesh.federated.robust import MEANS, RobustAggregation, Weighted
from ternmesh.federated.rules import AggregationSettings
from ternmesh.federated.state import RegisteredNode
from ternmesh.plan import Plan
from ternmesh.types import ModelQ24, Vector

PULL = 0.25  # the part of the way to the mean of the adapters
ENDS_MAX = 8  # adapters in the mean; beyond it, an older one counts less than a newer one
_COUNT = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Combined:
    """What a round comes to before it is encoded."""

    vector: Vector  # what the rule makes of the round's updates
    residual: Vector  # what earlier global updates could not carry
    base_q24: ModelQ24  # the global adapter to which the encoded sum of both is added
    returns_to: int | None = None  # the version of `base_q24`, where it is an older one


@dataclass(frozen=True, slots=True)
class Proposal:
    """The next global update before it is certified: what it says, and what it leads to."""

    version: int
    chunks: tuple[bytes, ...]
    model_q24: ModelQ24  # the global adapter after it
    residual: Vector  # what it could not carry
    probe: tuple[bytes, ...] = ()
    returns_to: int | None = None  # as in `Combined`


class Combiner:
    """The rule of a run with its memories. `mean`, `standings`, `kept`: stored of earlier ones."""

    def __init__(
        self,
        *,
        plan: Plan,
        settings: AggregationSettings,
        model_hash: bytes,
        run: bytes,
        nodes: NodeRegistry[RegisteredNode],
        mean: bytes,
        standings: bytes,
        kept: Iterable[bytes] = (),
    ) -> None:
        self.aggregation = RobustAggregation(plan, model_hash, settings, run, standings)
        self.guard = Guard(
            plan,
            model_hash,
            settings.guard if self.aggregation.has_probes else 0.0,
            keeps_steps=settings.name not in MEANS,
        )
        for version, sent in self.guard.load(kept):
            self.aggregation.remember(version, sent)
        self.consolidation = Consolidation(plan.dimension, mean)
        self.muted: frozenset[str] = frozenset()  # nodes that count nothing
        self.returned = ""  # which global update went back to which version, and why
        self._plan = plan
        self._fixed = settings.fixed
        self._model_hash = model_hash
        self.nodes = nodes

    def mute(self, names: Collection[str]) -> None:
        """From now on nodes with these names count nothing, as if `fixed` said so."""
        self.muted = frozenset(names)
        self._fix_weights()

    @property
    def silenced(self) -> frozenset[str]:
        """The nodes that count nothing, by the owner or the settings."""
        return self.muted | {name for name, weight in self._fixed.items() if not weight}

    def forget(self, address: int, residual: Vector) -> Vector:
        """The host's residual without what a revoked node may still have in it."""
        self.aggregation.before = None  # no momentum of its updates
        return self.guard.forget(address, residual)

    def combine(
        self,
        count: Count,
        *,
        silent: Iterable[int],
        version: int,
        model_q24: ModelQ24,
        residual: Vector,
        chain: UpdateChain,
    ) -> Combined:
        """What the updates of the round of `version` come to, by the rule.

        Where the updates of earlier rounds have spoiled the global adapter, the guard goes back to
        an older one in place of that.
        """
        self._fix_weights()
        vector = self.aggregation.combine(count.updates, version, silent, to_float(model_q24))
        if self._plan.rounds == 0 and not count.rows:  # the news before have been learned
            vector = vector + self.consolidation.step(model_q24)
        reputations = self.aggregation.reputations
        # Only the guard may keep what the nodes sent: with many nodes it is much.
        sent, self.aggregation.sent = self.aggregation.sent, Weighted()
        rollback = self.guard.check(
            version=version,
            residual=residual,
            sent=sent,
            step=vector,
            reputations=reputations,
            oldest=chain.reach(CHAIN_BYTES_MAX),  # as far as nodes can follow
        )
        older_q24 = None if rollback is None else self._older(rollback.version, model_q24, chain)
        if rollback is None or older_q24 is None:
            return Combined(vector, residual, model_q24)
        self.guard.reset()
        why = f": since then the boards' loss has risen by {rollback.rise:.2f}"
        if rollback.excluded:
            names = sorted(self.nodes[address].name for address in rollback.excluded)
            why += f", likely by {', '.join(names)}"
        else:
            reputations.ask(update.address for update in count.updates)
        self._note_return(version + 1, rollback.version, why)
        zeros = zero_residual(self._plan.dimension)
        return Combined(zeros, rollback.residual, older_q24, rollback.version)

    def return_to(self, version: int, model_q24: ModelQ24, chain: UpdateChain) -> Combined | None:
        """Go back to an older version, and learn on from there; None where it is not kept."""
        older_q24 = self._older(version, model_q24, chain)
        if older_q24 is None:
            return None
        self.guard.reset()
        self._note_return(chain.newest + 1, version)
        zeros = zero_residual(self._plan.dimension)
        return Combined(zeros, zeros, older_q24, version)

    def _note_return(self, number: int, version: int, why: str = "") -> None:
        # Both are of the adapters that are taken back.
        self.consolidation = Consolidation(self._plan.dimension)
        self.aggregation.before = None
        self.returned = f"global update {number} goes back to version {version}{why}"

    def _older(self, version: int, model_q24: ModelQ24, chain: UpdateChain) -> ModelQ24 | None:
        """The global adapter of an older version; None where the steps since are not kept."""
        links = chain.newest_first()
        return older_adapter(model_q24, links, version, self._model_hash, self._plan)

    def _fix_weights(self) -> None:
        """Give the nodes that the settings or the owner name their weights."""
        fixed = {**self._fixed, **dict.fromkeys(self.muted, 0.0)}
        named = {name: self.nodes.named(name) for name in fixed}
        self.aggregation.reputations.fixed = {
            node.address: fixed[name] for name, node in named.items() if node is not None
        }

    def encode(self, combined: Combined, version: int, newest: bytes) -> Proposal:
        """The chunks of the global update to `version`, and the adapter and residual after it.

        `newest` is the hash of the global update before: what is drawn follows from it.
        """
        probe = self.aggregation.probe(version, newest) if combined.returns_to is None else ()
        chunks, delta_q24, residual = make_step(
            combined.vector,
            combined.residual,
            self._model_hash,
            version,
            self._plan,
            has_probe=bool(probe),
        )
        model_q24 = add_q24(combined.base_q24, delta_q24)
        return Proposal(version, chunks, model_q24, residual, probe, combined.returns_to)


def state_hash(combiner: Combiner, *, residual: Vector, membership: int) -> bytes:
    """The hash of all that the next round depends on beside its updates and the global adapter."""
    parts = (
        combiner.aggregation.digest(),
        combiner.guard.digest(),
        combiner.consolidation.stored(),
        residual.astype("<f4").tobytes(),
        cbor2.dumps([membership, sorted(combiner.muted)]),
    )
    return sha256(b"".join(sha256(part).digest() for part in parts)).digest()


class Consolidation:
    """What keeps a fleet from forgetting: a step to the mean of its adapters after each news.

    New samples move the global adapter away from what nodes that left have taught it, and farther
    than the samples need. The mean of the adapters at the ends of the news is better for the old
    samples (Izmailov et al., "Averaging weights leads to wider optima", UAI 2018), but worse for
    the newest: so the host makes one step of `PULL` to it, in a global update that counts nobody.

    The program keeps what `stored` returns on disk; bytes of another size are ignored.
    """

    def __init__(self, dimension: int, stored: bytes = b"") -> None:
        self.mean = np.zeros(dimension, dtype=np.float32)
        self.count = 0  # adapters in the mean, at most `ENDS_MAX`
        if len(stored) == _COUNT.size + self.mean.nbytes:
            (self.count,) = _COUNT.unpack_from(stored)
            self.mean = np.frombuffer(stored, "<f4", offset=_COUNT.size).astype(np.float32)

    def stored(self) -> bytes:
        """Return what must be on disk."""
        return _COUNT.pack(self.count) + self.mean.astype("<f4").tobytes()

    def step(self, model_q24: ModelQ24) -> Vector:
        """Count an adapter that has just learned news; return the step from it (float32, D)."""
        adapter = to_float(model_q24)
        self.count = min(self.count + 1, ENDS_MAX)
        self.mean = self.mean + (adapter - self.mean) / np.float32(self.count)
        return np.float32(PULL) * (self.mean - adapter)
