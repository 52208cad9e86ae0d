"""The phases of a node and of a run: every phase is reached, and only the table's steps are taken.

How nodes join, come back and are refused is tested with the two ends of a fleet, in `test_node`
and `test_host`: split training uses the same session.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from ternmesh.errors import StateError
from ternmesh.federated.joining import MEMBERSHIP_LEGAL, Membership, MembershipStep
from ternmesh.federated.node import LEGAL, NodePhase, NodeStep
from ternmesh.federated.state import RUN_LEGAL, WIRE_PHASES, RunState, RunStep, next_state
from ternmesh.wire.control import PHASES

Table = Mapping[Any, Mapping[Any, Any]]


def reachable(table: Table, first: object) -> set[object]:
    found, waiting = {first}, [first]
    while waiting:
        new = set(table[waiting.pop()].values()) - found
        found |= new
        waiting += new
    return found


@pytest.mark.parametrize(
    ("table", "first", "phases", "steps"),
    [
        (LEGAL, NodePhase.NO_RUN, set(NodePhase), set(NodeStep)),
        (MEMBERSHIP_LEGAL, Membership.UNKNOWN, set(Membership), set(MembershipStep)),
        (RUN_LEGAL, RunState.GATHERING, set(RunState), set(RunStep)),
    ],
)
def test_every_phase_is_reached_and_every_step_is_used(
    table: Table, first: object, phases: set[object], steps: set[object]
) -> None:
    assert table.keys() == reachable(table, first) == phases
    assert {step for row in table.values() for step in row} == steps


def test_a_step_that_a_state_does_not_allow_is_named() -> None:
    with pytest.raises(StateError, match="'finished': as many nodes have joined"):
        next_state(RUN_LEGAL, RunState.FINISHED, RunStep.ENOUGH_JOINED)


def test_nodes_are_told_a_phase_of_every_state() -> None:
    assert set(WIRE_PHASES) == set(RunState)
    assert set(WIRE_PHASES.values()) == set(PHASES)
