"""Bugs planted on purpose: the simulation must find each within a few seeds.

A simulation that finds nothing proves nothing. Some of them are bugs that this core really had.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ternmesh.codec.encoder import add_residual, settle_residual
from ternmesh.codec.scale import to_vector
from ternmesh.errors import WireError
from ternmesh.federated import channel, host, joining, local_update
from ternmesh.federated.aggregation import update_delta_q24
from ternmesh.federated.channel import SealedQueue
from ternmesh.federated.events import Pending, ResidualChanged
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.open_round import OpenRound, UpdateReassembler
from ternmesh.plan import Plan
from ternmesh.security.peer_session import PeerSession
from ternmesh.timers import Backoff
from ternmesh.wire import control, global_update
from tests.sim import simfleet, simprocess
from tests.sim.planted import Bug, each, instead, keeping, plant
from tests.sim.simledger import Violation

pytestmark = pytest.mark.no_cover

SEEDS = 60  # the budget; the hardest needs about half
FIRST = (5, 40, 4, 7, 1, 3)  # they find most

Method = Callable[..., Any]


def settle_all(
    pending: Pending, counted: object, address: int, model_hash: bytes, plan: Plan
) -> np.ndarray:
    delta_q24 = update_delta_q24(pending.bodies[1:], model_hash, pending.round, plan)
    return settle_residual(pending.corrected, to_vector(delta_q24))


def adding_again(add: Method) -> Method:
    def method(self: Any, item: Any, body: bytes) -> Any:
        if self.bodies.get(item.slice.index) != body:
            return add(self, item, body)
        self.hypervector().scales[item.slice.index] *= 2
        return False

    return method


def settle_late(self: simprocess.Process) -> None:
    events = self.record()
    self.send()
    if events and self._cut():
        return
    self.commit()
    self.after_commit(events)
    self._arm()


def check_loosely(number: int, version: int, *, is_open: bool) -> None:
    if not is_open or not version - 1 <= number <= version:
        raise WireError("old round", "planted")


def dropping_the_residual(end_round: Method) -> Method:
    def method(self: HostProtocol, now: float) -> None:
        end_round(self, now)
        self.residual = np.zeros_like(self.residual)

    return method


def aim_at_nothing(self: NodeProtocol, version: int, phase: int, now: float) -> None:
    self.host_phase = phase


def overwriting(submit: Method) -> Method:
    def method(self: NodeProtocol, number: int, delta: np.ndarray, now: float) -> None:
        if self.pending is None:
            submit(self, number, delta, now)
            return
        self.residual = add_residual(self.residual, delta)
        self.channel.events.append(ResidualChanged(self.residual))

    return method


def dropping_when_silent(submit: Method) -> Method:
    def method(self: NodeProtocol, *rest: Any) -> None:
        before, was_silent = self.residual, self.silent
        submit(self, *rest)
        if self.silent and not was_silent:
            self.residual = before
            events: Any = self.channel.events
            events[-1] = replace(events[-1], residual=before)

    return method


def keeping_the_target(welcome: Method) -> Method:
    def method(self: NodeProtocol, *rest: Any) -> None:
        target = self.target
        welcome(self, *rest)
        self.target = max(self.target, target)

    return method


def entering_freely(enter: Method) -> Method:
    def method(self: PeerSession, *rest: Any) -> None:
        if self._current is not None:
            self._current.begun_own = 0
        enter(self, *rest)

    return method


MUTANTS: dict[str, tuple[Bug, ...]] = {
    "each update that was sent is taken for counted": (
        (local_update, "settle_update", instead(settle_all)),
    ),
    "the list is looked at, the bitmap in it is not": (
        (local_update, "only_counted", instead(lambda carried, have: carried)),
    ),
    "what was counted stays in the residual": (
        (
            local_update,
            "only_counted",
            instead(lambda carried, have: carried.only(np.zeros(1, np.bool_))),
        ),
    ),
    "a chunk that comes again is added again": ((UpdateReassembler, "_add_chunk", adding_again),),
    "receipts and updates leave before they are durable": (
        (simprocess.Process, "settle", instead(settle_late)),
    ),
    "counters are reserved without telling anybody": (
        (SealedQueue, "reserve", lambda reserve: lambda self: reserve(self) and None),
    ),
    "an update for the round before is taken for this one": (
        (host, "check_round", instead(check_loosely)),
    ),
    "the host does not clear what it has counted": (
        (HostProtocol, "end_round", keeping("round", "updates")),
    ),
    "the mean divides by all, not by those who sent this chunk": (
        (
            UpdateReassembler,
            "hypervector",
            lambda gather: (
                lambda self: replace(gather(self), present=np.ones_like(gather(self).present))
            ),
        ),
    ),
    "the host drops what its global update could not carry": (
        (HostProtocol, "end_round", dropping_the_residual),
    ),
    "a node that missed a global update waits for ever": (
        (Backoff, "soon", instead(lambda self, now: None)),
        (NodeProtocol, "_aim", instead(aim_at_nothing)),
    ),
    "a snapshot does not say what was counted of its node": (
        (
            global_update,
            "write_global_snapshot",
            lambda write: lambda snapshot: write(replace(snapshot, counted=())),
        ),
    ),
    "work that came while an update was pending is overwritten": (
        (NodeProtocol, "submit", overwriting),
    ),
    "what was too little for an update is dropped": (
        (NodeProtocol, "submit", dropping_when_silent),
    ),
    "a silence that is not on disk is answered": (
        (
            OpenRound,
            "add",
            lambda add: lambda self, at, body: add(self, at, body) and body[0] != control.KIND,
        ),
    ),
    "who was silent in one round is not waited for in the next": (
        (HostProtocol, "end_round", keeping("round", "silent")),
    ),
    "in a new run the node waits for the version of the old one": (
        (NodeProtocol, "_receive_welcome", keeping_the_target),
    ),
    "each word of a stranger takes a place in the counters": (
        (joining, "REASONS_MAX", instead(1 << 30)),
    ),
    "each refused frame of a burst leaves an event": (
        (channel, "REFUSED_SHOWN_MAX", instead(1 << 30)),
    ),
}


@each(MUTANTS, "a node that missed a global update waits for ever")
def test_a_planted_bug_is_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *MUTANTS[mutant])
    with pytest.raises(Violation, match="seed"):
        run_seeds()


def test_a_bug_planted_in_the_seals_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that opens begins a session, also one of a process that has ended."""
    plant(monkeypatch, (PeerSession, "_enter", entering_freely))
    with pytest.raises(Violation, match="clone"):
        run_keyed_seeds()


def run_seeds() -> None:
    for seed in dict.fromkeys((*FIRST, *range(SEEDS))):
        simfleet.run_seed(seed)


def run_keyed_seeds() -> None:
    for seed in range(5 * SEEDS):
        simfleet.run_seed(seed, simfleet.draw_with_keys)
