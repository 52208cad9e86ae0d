"""The nodes of a run: who may speak in which context, and who finds a place."""

import pytest

from ternmesh.errors import WireError
from ternmesh.swarm.records import NodeRecord
from ternmesh.swarm.roll import Roll

PLACES = 3


def test_a_new_node_has_the_next_context_and_a_known_one_keeps_its_own() -> None:
    roll = Roll((NodeRecord(1, "theo", 10), NodeRecord(4, "nora", 20)))
    assert roll.take_in("yan", PLACES).context == 5
    assert roll.take_in("nora", PLACES) is roll[4]
    assert [(context, node.name) for context, node in roll.items()] == [
        (1, "theo"),
        (4, "nora"),
        (5, "yan"),
    ]
    assert roll.named("yan") is roll[5]
    assert roll.named("li") is None


def test_a_full_roll_takes_those_whom_it_knows() -> None:
    roll = Roll((NodeRecord(1, "theo", 10),))
    with pytest.raises(WireError, match="takes 1 nodes"):
        roll.take_in("yan", 1)
    assert roll.take_in("theo", 1) is roll[1]
    assert len(roll) == 1


@pytest.mark.parametrize(
    ("context", "peer", "reason"), [(2, "theo", "unknown node"), (1, "yan", "wrong peer")]
)
def test_nobody_speaks_in_another_nodes_context(context: int, peer: str, reason: str) -> None:
    roll = Roll((NodeRecord(1, "theo", 10),))
    assert roll.speaker(1, "theo") is roll[1]
    with pytest.raises(WireError) as caught:
        roll.speaker(context, peer)
    assert caught.value.reason == reason
