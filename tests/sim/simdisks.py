"""Disks of the simulation: they follow the rules of ternmesh_store, in memory.

What was recorded is lost in a crash unless it was committed.
"""

from dataclasses import replace

import numpy as np

from ternmesh.federated import events
from ternmesh.federated.guard import KEPT_MAX
from ternmesh.federated.management import BoardRecord
from ternmesh.federated.state import (
    ChainLink,
    HostState,
    Learned,
    RegisteredNode,
    new_host_state,
    new_node_state,
)
from ternmesh.plan import Plan, genesis
from tests.sim.simledger import MODEL


class NodeDisk:
    """A node's state, and in the same transaction what its program has submitted so far."""

    def __init__(self, dimension: int) -> None:
        self.committed = self.working = new_node_state(dimension)
        self.submitted = self._submitted = np.zeros(dimension)
        self.settings = self._settings = events.SettingsTaken(0, ())

    def record(self, event: events.NodeEvent) -> None:
        state = self.working
        match event:
            case events.CountersReserved(limit):
                state = replace(state, counter=limit)
            case events.Joined(run, address, plan):
                if (run, plan) != (state.run, state.plan):
                    fresh = new_node_state(plan.dimension)
                    before = state.before
                    if state.version > 0:
                        made = state.pending
                        residual = state.residual if made is None else made.corrected
                        before = Learned(state.model_q24, residual)
                    counter = state.counter
                    state = replace(
                        fresh,
                        run=run,
                        plan=plan,
                        global_hash=genesis(MODEL, run, plan),
                        counter=counter,
                        before=before,
                    )
                    self._submitted = np.zeros(plan.dimension)
                state = replace(state, address=address)
            case events.Advanced(
                version, global_hash, model_q24, residual, finished, content, oldest
            ):
                before = state.before
                if before is not None and np.array_equal(residual, before.residual):
                    self._submitted = self._submitted + residual  # it came along
                link = (ChainLink(version, global_hash, content, event.rows),) if content else ()
                chain = (*state.chain, *link)
                state = replace(
                    state,
                    version=version,
                    global_hash=global_hash,
                    model_q24=model_q24,
                    residual=residual,
                    finished=finished,
                    pending=None,
                    received=False,
                    silent=False,
                    own_q24=event.own_q24,
                    before=None,
                    chain=tuple(kept for kept in chain if oldest and kept.version >= oldest),
                )
            case events.UpdateMade(pending):
                state = replace(state, pending=pending, received=False, silences=0)
            case events.FellSilent(_, residual, in_a_row):
                state = replace(state, residual=residual, silent=True, silences=in_a_row)
            case events.UpdateReceived():
                state = replace(state, received=True)
            case events.ResidualChanged(residual):
                state = replace(state, residual=residual)
            case events.SettingsTaken():
                self._settings = event
        self.working = state

    def note_submitted(self, delta: np.ndarray) -> None:
        self._submitted = self._submitted + delta

    def commit(self) -> None:
        self.committed, self.submitted = self.working, self._submitted
        self.settings = self._settings

    def forget(self) -> None:
        """A crash: what was not committed is gone."""
        self.working, self._submitted = self.committed, self.submitted
        self._settings = self.settings


class HostDisk:
    """The host's run, its plan and its state."""

    def __init__(self, run: bytes, plan: Plan, counter: int = 0) -> None:
        self.run, self.plan = run, plan
        state = replace(new_host_state(plan.dimension), counter=counter)
        self.committed = self.working = state
        self._made: list[tuple[events.GlobalUpdateMade, tuple[tuple[int, bytes], ...]]] = []
        self.copy = state  # what the operator has put aside
        self.boards: dict[str, events.BoardChanged] = {}
        self._boards = self.boards

    def carry(self, before: HostState) -> None:
        """Begin with what another run has learned."""
        state = replace(self.committed, model_q24=before.model_q24, residual=before.residual)
        self.committed = self.working = self.copy = state

    def record(self, event: events.HostEvent) -> None:
        state = self.working
        match event:
            case events.CountersReserved(limit):
                state = replace(state, counter=limit)
            case events.NodeJoined(address, name, samples):
                old = {node.address: node for node in state.nodes}
                before = old.get(address, RegisteredNode(address, name, samples))
                old[address] = replace(before, samples=samples)
                state = replace(state, nodes=tuple(old.values()))
            case events.BodyAccepted(address, _, body):
                state = replace(state, bodies=(*state.bodies, (address, body)))
            case events.UpdateForgotten(address, _):
                kept = tuple(item for item in state.bodies if item[0] != address)
                state = replace(state, bodies=kept)
            case events.RoundOpened():
                state = replace(state, started=True)
            case events.BoardChanged(name):
                self._boards = self._boards | {name: event}
            case events.RunAdopted(run):
                self.run, state = run, replace(state, is_first=False, bodies=())
            case events.GlobalUpdateMade():
                self._made.append((event, state.bodies))
                state = self._advance(event)
        self.working = state

    def _advance(self, event: events.GlobalUpdateMade) -> HostState:
        state, counted = self.working, {entry.address: entry for entry in event.counted}
        version = event.version
        chain = state.chain if version == state.version + 1 else ()
        nodes = [
            replace(n, counted=counted[n.address]) if n.address in counted else n
            for n in state.nodes
        ]
        return replace(
            state,
            version=version,
            global_hash=event.global_hash,
            model_q24=event.model_q24,
            residual=event.residual,
            finished=event.finished,
            nodes=tuple(nodes),
            chain=(*chain, ChainLink(version, event.global_hash, event.content, event.rows))[-8:],
            bodies=(),
            mean=event.mean or state.mean,
            standings=event.standings or state.standings,
            kept=(*state.kept, *filter(None, [event.kept]))[-KEPT_MAX:],
        )

    def commit(self) -> list[tuple[events.GlobalUpdateMade, tuple[tuple[int, bytes], ...]]]:
        """Makes all durable; returns the references just made, each with what it had to count."""
        self.committed, made, self._made = self.working, self._made, []
        self.boards = self._boards
        return made

    def forget(self) -> None:
        """A crash: what was not committed is gone."""
        self.working, self._made, self._boards = self.committed, [], self.boards

    def load(self) -> HostState:
        """The state with which the host starts; it takes over the nodes, so these are copies."""
        kept = [(n.address, n.name, n.samples, n.counted) for n in self.committed.nodes]
        return replace(self.committed, nodes=tuple(RegisteredNode(*row) for row in kept))

    def load_boards(self, now: float) -> dict[str, BoardRecord]:
        """What the host knows of its boards when it starts."""
        return {
            name: BoardRecord(row.number, row.wanted, row.report, now)
            for name, row in self.boards.items()
        }

    def set_back(self) -> None:
        """The operator brings the copy back."""
        self.committed = self.working = self.copy
