"""Disks of the simulation: they follow the rules of ternmesh_store, in memory.

What was recorded is lost in a crash unless it was committed.
"""

from dataclasses import replace

import numpy as np

from ternmesh.plan import Plan
from ternmesh.swarm import bundle_records, member, records
from ternmesh.swarm.bundle_records import (
    BundleMade,
    BundlerEvent,
    BundleSettled,
    RunFollowed,
    VersionReached,
)
from ternmesh.swarm.events import (
    Advanced,
    BodyAccepted,
    CountersReserved,
    FellSilent,
    HostEvent,
    Joined,
    NodeEvent,
    NodeJoined,
    PacketForgotten,
    PacketMade,
    PacketReceived,
    ReferenceMade,
    ResidualChanged,
    RoundOpened,
)
from ternmesh.swarm.records import Link, NodeRecord


class NodeDisk:
    """A node's state, and in the same transaction what its program has submitted so far."""

    def __init__(self, dimension: int) -> None:
        self.committed = self.working = member.new_state(dimension)
        self.submitted = self._submitted = np.zeros(dimension)

    def record(self, event: NodeEvent) -> None:
        state = self.working
        match event:
            case CountersReserved(limit):
                state = replace(state, counter=limit)
            case Joined(run, context, plan):
                if (run, plan) != (state.run, state.plan):
                    fresh = member.new_state(plan.dimension)
                    state = replace(fresh, run=run, plan=plan, counter=state.counter)
                    self._submitted = np.zeros(plan.dimension)
                state = replace(state, context=context)
            case Advanced(version, reference, fixed, residual, finished):
                state = replace(
                    state,
                    version=version,
                    reference=reference,
                    fixed=fixed,
                    residual=residual,
                    finished=finished,
                    pending=None,
                    received=False,
                    silent=False,
                )
            case PacketMade(pending):
                state = replace(state, pending=pending, received=False, silences=0)
            case FellSilent(_, residual, in_a_row):
                state = replace(state, residual=residual, silent=True, silences=in_a_row)
            case PacketReceived():
                state = replace(state, received=True)
            case ResidualChanged(residual):
                state = replace(state, residual=residual)
        self.working = state

    def note_submitted(self, delta: np.ndarray) -> None:
        self._submitted = self._submitted + delta

    def commit(self) -> None:
        self.committed, self.submitted = self.working, self._submitted

    def forget(self) -> None:
        """A crash: what was not committed is gone."""
        self.working, self._submitted = self.committed, self.submitted


class HostDisk:
    """The host's run, its plan and its state."""

    def __init__(self, run: bytes, plan: Plan, counter: int = 0) -> None:
        self.run, self.plan = run, plan
        state = replace(records.new_state(plan.dimension), counter=counter)
        self.committed = self.working = state
        self._made: list[tuple[ReferenceMade, tuple[tuple[int, bytes], ...]]] = []

    def record(self, event: HostEvent) -> None:
        state = self.working
        match event:
            case CountersReserved(limit):
                state = replace(state, counter=limit)
            case NodeJoined(context, name, samples):
                old = {node.context: node for node in state.nodes}
                before = old.get(context, NodeRecord(context, name, samples))
                old[context] = replace(before, samples=samples)
                state = replace(state, nodes=tuple(old.values()))
            case BodyAccepted(context, _, body):
                state = replace(state, bodies=(*state.bodies, (context, body)))
            case PacketForgotten(context, _):
                kept = tuple(item for item in state.bodies if item[0] != context)
                state = replace(state, bodies=kept)
            case RoundOpened():
                state = replace(state, started=True)
            case ReferenceMade():
                self._made.append((event, state.bodies))
                state = self._advance(event)
        self.working = state

    def _advance(self, event: ReferenceMade) -> records.CoordinatorState:
        state, counted = self.working, {entry.context: entry for entry in event.counted}
        bundles = dict(event.bundles)
        nodes = [
            replace(n, counted=counted[n.context], bundle=bundles.get(n.context))
            if n.context in counted
            else n
            for n in state.nodes
        ]
        return replace(
            state,
            version=event.version,
            reference=event.reference,
            fixed=event.fixed,
            residual=event.residual,
            finished=event.finished,
            nodes=tuple(nodes),
            chain=(*state.chain, Link(event.version, event.reference, event.content))[-8:],
            bodies=(),
        )

    def commit(self) -> list[tuple[ReferenceMade, tuple[tuple[int, bytes], ...]]]:
        """Makes all durable; returns the references just made, each with what it had to count."""
        self.committed, made, self._made = self.working, self._made, []
        return made

    def forget(self) -> None:
        """A crash: what was not committed is gone."""
        self.working, self._made = self.committed, []


class GatewayDisk:
    """What a bundling gateway keeps."""

    def __init__(self, dimension: int) -> None:
        self.committed = self.working = bundle_records.new_state(dimension)

    def record(self, event: BundlerEvent) -> None:
        state = self.working
        match event:
            case CountersReserved(limit):
                state = replace(state, counter=limit)
            case RunFollowed(run, plan):
                fresh = bundle_records.new_state(plan.dimension)
                state = replace(fresh, run=run, plan=plan, counter=state.counter)
            case BundleMade(bundle):
                state = replace(state, pending=bundle)
            case BundleSettled(residual):
                state = replace(state, pending=None, residual=residual)
            case VersionReached(version):
                state = replace(state, version=version)
        self.working = state

    def commit(self) -> None:
        self.committed = self.working

    def forget(self) -> None:
        """A crash: what was not committed is gone."""
        self.working = self.committed
