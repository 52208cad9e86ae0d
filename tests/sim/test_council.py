"""A whole fleet of voters: one adapter, nothing counted twice or lost, and it goes on by itself."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from host.council import Council
from ternmesh.errors import WireError
from ternmesh.federated import replica
from ternmesh.federated.agreement.voter import Voter
from ternmesh.federated.state import RegisteredNode
from ternmesh_store.database import StoreError
from ternmesh_store.host_store import HostStore
from tests.sim.planted import Bug, groups, instead, plant
from tests.sim.simcouncil import Simulation
from tests.sim.simledger import Violation

pytestmark = pytest.mark.no_cover

SEEDS, GROUPS = 100, 5
BUG_SEEDS = 60


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "host")


@groups(GROUPS, 1)
def test_a_fleet_of_voters_goes_on(group: int) -> None:  # R13.7-1, R13.7-3
    for seed in range(group, SEEDS, GROUPS):
        Simulation(seed).run()


def test_after_a_power_cut_a_voter_that_was_behind_goes_on_without_one(  # R13.7-7
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sim = Simulation(0)
    sim.loss, sim.is_healed = 0.0, True

    def turn_until(done: Callable[[], bool]) -> None:
        for _ in range(600):
            sim.turn()
            if done():
                return
        raise sim.violation("no progress")

    for seat in sim.seats:
        seat.start()
    turn_until(lambda: min(seat.store.version for seat in sim.seats) >= 2)
    leader = next(seat for seat in sim.seats if seat.host)
    behind, gone = (seat for seat in sim.seats if seat is not leader)
    behind.kill()
    turn_until(lambda: gone.store.version > behind.store.version + 1)
    reached, decided = leader.store.version, leader.proposal
    monkeypatch.setattr(sim, "send", lambda *_: None)
    turn_until(lambda: leader.proposal != decided)  # the next one, which nobody else has
    monkeypatch.undo()
    for seat in sim.seats:
        seat.kill()
    leader.start()
    behind.start()
    turn_until(lambda: min(behind.store.version, leader.store.version) > reached)


def known_nodes(known: Iterable[RegisteredNode], joined: Any, _places: int) -> Any:
    """Boards that a former leader alone has taken in count."""
    before = {node.address: node for node in known}
    for address, name, samples in joined:
        node = before.pop(address, RegisteredNode(address, name))
        if node.name != name:
            raise WireError("agreement", "another name")
        yield replace(node, samples=samples)


MUTANTS: dict[str, tuple[Bug, ...]] = {
    "boards of a former leader count": ((replica, "_nodes", instead(known_nodes)),),
    "an open round is not forgotten": (
        (HostStore, "forget_open_round", instead(lambda self: None)),
    ),
    "nobody gives copies": ((Council, "_take_copy", instead(lambda *_: None)),),
    "a copy need not be decided": ((Council, "_check_decided", instead(lambda *_: None)),),
    "a liar mutes boards": ((Council, "bears_liars", instead(property(lambda self: False))),),
    "who is muted is taken from a copy": ((HostStore, "keep_muted", instead(lambda *_: None)),),
    "missing signatures are not asked for": ((Council, "_take_rows", instead(lambda *_: None)),),
    "votes are not on disk": ((Voter, "_stored", instead(lambda self: b"")),),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_bug_is_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *MUTANTS[mutant])
    with pytest.raises((Violation, StoreError, AssertionError)):
        run_seeds()


def run_seeds() -> None:
    for seed in range(BUG_SEEDS):
        Simulation(seed).run()
