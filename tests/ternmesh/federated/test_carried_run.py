"""A run that takes along what the run before has learned: nodes, and hosts that lose it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ternmesh.federated.events import Advanced, RunAdopted
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.state import HostState, new_host_state
from ternmesh.security.membership import HOST
from ternmesh.wire.control import OPEN

ROUNDS = 4
New = Callable[..., Any]


@pytest.fixture(params=[(), ("theo", "yan")], ids=["open", "keyed"])
def bench(new_bench: New, request: Any) -> Any:
    """Two nodes that have learned in two rounds; theo has submitted for the third one."""
    made = new_bench(rounds=ROUNDS, min_peers=2, deadline_s=300, keys=request.param)
    for name in ("theo", "yan"):
        made.add(name)
    made.live(5)
    made.play(2)
    made.nodes["theo"].submit(2, made.delta(7), made.now)
    made.exchange()
    return made


def host_of(bench: Any, run: bytes, state: HostState) -> HostProtocol:
    """Another process of the host."""
    host: HostProtocol = bench.restart_host(state, run)
    bench.exchange()
    return host


def carry(bench: Any, run: bytes = b"run-id-9") -> HostState:
    """The host begins another run; returns the state that it began with."""
    old = bench.host
    state = replace(
        new_host_state(bench.plan.dimension),
        model_q24=old.model_q24,
        residual=old.residual,
        counter=1 << 20,
    )
    host_of(bench, run, state)
    return state


def snapshots(bench: Any, name: str) -> int:
    """How many global adapters a node has taken that were not in a global update."""
    made = [event for event in bench.events[name] if isinstance(event, Advanced)]
    return sum(not event.content for event in made)


@pytest.mark.parametrize("who", ["behind", "away for a run"])
def test_who_does_not_have_the_adapter_gets_a_snapshot(bench: Any, who: str) -> None:
    # R6.11-5
    yan = bench.nodes["yan"]
    if who == "behind":
        yan.model_q24 = yan.model_q24 + 1  # another adapter than the one of the last version
    else:
        del bench.nodes["yan"]
        bench.host.settings = replace(bench.host.settings, min_peers=1)
        carry(bench, b"run-id-a")
        bench.live(20)
        bench.play(2)
        bench.nodes["yan"] = yan
    learned = bench.host.model_q24
    carry(bench)
    bench.live(120)
    assert yan.version == bench.host.version == 1
    assert np.array_equal(yan.model_q24, learned)
    assert snapshots(bench, "yan") == 1
    assert snapshots(bench, "theo") == 0
    assert not yan.residual.any(), "a part of it may have been counted"


@pytest.mark.parametrize("rounds", [0, 1], ids=["at version 1", "later"])
def test_a_host_that_has_lost_the_run_gets_the_adapter_back(bench: Any, rounds: int) -> None:
    # R6.9-5, R6.11-6
    carry(bench)
    bench.live(20)
    bench.play(rounds)
    before = bench.host
    empty = replace(new_host_state(bench.plan.dimension), is_first=True, counter=1 << 21)
    host = host_of(bench, b"run-id-b", empty)
    bench.live(200)
    assert bench.count(HOST, RunAdopted) == 1
    assert (host.run, host.version) == (b"run-id-9", 1 + rounds)
    assert np.array_equal(host.model_q24, before.model_q24)
    assert host.phase == OPEN
    assert "ahead" not in host.refused
