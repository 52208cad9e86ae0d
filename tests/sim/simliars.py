"""Fleets with liars: boards that learn a target and report on it, and some that spoil it.

The bounds, the reputations and the guard are those of the product here, so the ledger takes the
weights of a round from the host, and adds up itself what they make of the boards' updates. It knows
what each version stood for, and so what must be left after the host has gone back to one.
"""

import random
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from ternmesh.codec.scale import UNIT, to_float
from ternmesh.federated.evaluation import Evaluation, write_values
from ternmesh.federated.events import GlobalUpdateMade
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.rules import AggregationSettings
from ternmesh.wire.control import OPEN
from tests.sim.simfleet import Fleet, Options, draw
from tests.sim.simledger import Ledger, expect
from tests.sim.simprocess import DIMENSION, HostProcess, NodeProcess

TARGET = np.random.default_rng(3).normal(0, 0.05, DIMENSION).astype(np.float32)
GUARD = 0.02  # of the loss at the beginning, which is 3.7
LIES = 0.4  # the share of rounds in which a liar lies


def draw_with_liars(seed: int) -> Options:
    """The faults of all fleets but resets, some with keys; a minority lies now and then."""
    options, rng = draw(seed), random.Random(f"liars {seed}")
    nodes = rng.randint(3, 6)
    return replace(
        options,
        nodes=nodes,
        liars=rng.randint(0, (nodes - 1) // 2),
        returns=rng.choice((0, 0, 1, 3)),
        rounds=rng.randint(6, 14),
        min_peers=rng.randint(2, nodes),
        chain_max=rng.choice((2, 8, 64)),
        keyed=rng.random() < 0.3,
        old_copies=rng.choice((0, 0, 0, 1)),
        hostile=0.0,
        burst=False,
        reset=False,
        vanish=0,
        silence=0.0,
        faults_s=rng.uniform(20, 60),
    )


def loss_of(adapter: np.ndarray) -> float:
    return float(np.sum((adapter - TARGET) ** 2))


class LearningNode(NodeProcess):
    """A board that goes a third of the way to the target, or as far away from it as it can."""

    def delta(self) -> np.ndarray:
        node, rng = self.endpoint, np.random.default_rng(self.fleet.rng.getrandbits(32))
        node.evaluation = write_values(Evaluation(min(60.0, loss_of(to_float(node.model_q24)))))
        noise = rng.normal(0, 0.005, DIMENSION)
        is_liar = int(self.name.removeprefix("node")) < self.fleet.options.liars
        if is_liar and node.version > 2 and self.fleet.rng.random() < LIES:
            return (-0.5 * np.sign(TARGET) + noise).astype(np.float32)
        return ((TARGET - to_float(node.model_q24)) / 3 - node.residual + noise).astype(np.float32)


class LiarLedger(Ledger):
    """What each version stands for: its adapter, and what the host had left to send."""

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self.weights: dict[int, dict[int, tuple[float, float]]] = {}  # by round and address
        self.left_out: dict[int, frozenset[int]] = {}  # by round, where the host goes back
        self.parts: dict[
            int, dict[str, np.ndarray]
        ] = {}  # by round: update, and which numbers came
        self.means_of: dict[int, np.ndarray] = {
            0: self.means.copy()
        }  # by version: adapter and residual of the host
        self.adapters: dict[int, np.ndarray] = {0: np.zeros(self.plan.dimension)}
        self.guarded = self.asked = 0  # returns

    def note_reference(
        self, made: GlobalUpdateMade, bodies: tuple[tuple[int, bytes], ...], names: dict[int, str]
    ) -> None:
        number, before = made.version - 1, self.means.copy()
        if made.returns_to is not None and not made.counted:
            self.asked += 1
            self.means = self.adapters[made.returns_to].copy()
        else:
            super().note_reference(made, bodies, names)
            weights = {names[a]: w for a, w in self.weights.get(number, {}).items()}
            for name, part in self.parts.get(number, {}).items():
                weight, factor = weights[name]
                part *= np.array([[weight * factor], [weight]])
            self.means = before + self._mean(number)
            if made.returns_to is not None:
                expect(number in self.left_out, "the host goes back and leaves nobody out")
                without = {names[address] for address in self.left_out[number]}
                self.guarded += 1
                self.means = self.means_of[made.returns_to].copy()
                for past in range(made.returns_to, number + 1) if without else ():
                    self.means += self._mean(past, without)
        self.means_of[made.version] = self.means.copy()
        self.adapters[made.version] = made.model_q24 * UNIT

    def _count(self, name: str, number: int, chunks: list[bytes], samples: float) -> np.ndarray:
        part = super()._count(name, number, chunks, samples)
        self.parts.setdefault(number, {})[name] = part / samples
        return part

    def _mean(self, number: int, without: Collection[str] = ()) -> np.ndarray:
        parts = self.parts.get(number, {})
        counted = (part for name, part in parts.items() if name not in without)
        total = sum(counted, np.zeros((2, DIMENSION)))
        mean: np.ndarray = total[0] / np.where(total[1] > 0, total[1], 1.0)
        return mean


class GuardedHost(HostProcess):
    """A host whose owner sometimes goes back."""

    aggregation = AggregationSettings(guard=GUARD)
    ledger: LiarLedger

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.ledger = LiarLedger(fleet.plan)

    def load(self) -> HostProtocol:
        made = super().load()
        combine, check = made.combiner.aggregation.combine, made.combiner.guard.check

        def noted_combine(updates: Any, number: int, *rest: Any) -> Any:
            step = combine(updates, number, *rest)
            rows = made.combiner.aggregation.sent.rows()
            self.ledger.weights[number] = {item.address: (w, f) for item, w, f in rows}
            return step

        def noted_check(*, version: int, **kept: Any) -> Any:
            rollback = check(version=version, **kept)
            if rollback is not None:
                self.ledger.left_out[version] = rollback.excluded
            return rollback

        made.combiner.aggregation.combine = noted_combine  # type: ignore[method-assign, assignment]
        made.combiner.guard.check = noted_check  # type: ignore[method-assign]
        return made

    def go_back(self) -> None:
        """The owner names one of the last versions."""
        host = self.endpoint
        if host is not None and host.phase == OPEN and not host.state.is_behind:
            host.return_to(host.version - self.fleet.rng.randint(1, 4), self.fleet.now)
            self.settle()


class LiarFleet(Fleet):
    """A fleet of such nodes and host."""

    new_host = GuardedHost
    new_node = LearningNode
    host: GuardedHost

    def __init__(self, seed: int, options: Options) -> None:
        super().__init__(seed, options)
        for _ in range(options.returns):
            self.after(self.rng.uniform(5, 1.5 * options.faults_s), self.host.go_back)
