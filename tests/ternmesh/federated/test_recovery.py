"""A host that was restored from an old copy gets its global updates back from the nodes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ternmesh.federated.events import GlobalUpdateMade, Refused, RunAdopted
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.recovery import ASKS_MAX, GIVEN_MAX, IGNORED_PAUSES
from ternmesh.federated.state import HostState, new_host_state
from ternmesh.security.membership import HOST
from ternmesh.timers import NETWORK_TIMERS
from ternmesh.wire import control, fragments
from ternmesh.wire.control import FINISHED, OPEN, Wanted
from ternmesh.wire.frame import UNASSIGNED, Header, open_seal, seal_open
from ternmesh.wire.global_update import certify, split_certificate
from ternmesh_store.host_store import HostStore, StoredRun
from ternmesh_store.state_file import StateFile
from tests.sim.simdisks import HostDisk

MODEL = bytes(range(32))
PAUSE_S = NETWORK_TIMERS.catch_up_s
ROUNDS = 9
New = Callable[..., Any]


@pytest.fixture(params=[(), ("theo", "yan")], ids=["open", "keyed"])
def bench(new_bench: New, request: Any) -> Any:
    """Two nodes, and an open round; `keyed` under suite 1."""
    made = new_bench(rounds=ROUNDS, min_peers=2, deadline_s=30, keys=request.param)
    for name in ("theo", "yan"):
        made.add(name)
    made.live(20)
    return made


def copy_of(bench: Any) -> HostState:
    """What the host's disk has now."""
    disk = HostDisk(bench.host.run, bench.plan)
    for event in bench.events[HOST]:
        disk.record(event)
    disk.commit()
    return disk.committed


def restore(bench: Any, state: HostState) -> HostProtocol:
    """A host that goes on with an old copy; the nodes notice after a while."""
    host: HostProtocol = bench.restart_host(state)
    bench.exchange()
    return host


def stored(bench: Any, folder: Path, before: list[Any]) -> tuple[HostStore, StoredRun]:
    """What a store has of the events `before` the restore, and of those since."""
    file = StateFile(folder)
    file.open()
    store = HostStore(file)
    store.begin(bench.host.run, bench.plan, MODEL)
    for event in (*before, *bench.events[HOST]):
        store.record(event)
    store.commit()
    found = store.load(MODEL)
    assert found is not None
    return store, found


def given(bench: Any) -> list[GlobalUpdateMade]:
    return [e for e in bench.events[HOST] if isinstance(e, GlobalUpdateMade) and e.given_by]


@pytest.mark.parametrize("lost", [1, GIVEN_MAX + 2])
def test_a_restored_host_leads_on_where_the_fleet_is(bench: Any, lost: int) -> None:
    # R6.9-1, R6.9-3, R6.9-4, R6.9-5, R6.9-6
    bench.play()
    old = copy_of(bench)
    bench.play(lost)
    before = bench.host
    restore(bench, old)
    bench.live(120)
    host = bench.host
    assert host.version == before.version == 1 + lost
    assert host.global_hash == before.global_hash
    assert np.array_equal(host.model_q24, before.model_q24)
    assert not host.residual.any()
    assert host.phase == OPEN
    assert not host.state.is_behind
    assert "ahead" not in host.refused
    made = given(bench)
    assert [event.version for event in made] == [*range(2, 2 + lost)]
    assert {len(event.counted) for event in made} == {2}
    assert host.nodes[1].counted == before.nodes[1].counted
    bench.play(ROUNDS - 1 - lost)
    assert host.phase == FINISHED
    assert bench.agrees()


def test_a_node_that_waits_long_asks_for_its_receipt_again(alone: Any) -> None:  # R6.5-15
    theo = alone.nodes["theo"]
    theo.submit(1, alone.delta(5), alone.now)
    alone.exchange()
    asked_at = theo.joining.asked_at
    alone.live(190)
    assert theo.joining.asked_at == asked_at
    alone.live(30)
    assert theo.joining.asked_at > asked_at
    assert theo.received
    asked_at = theo.joining.asked_at
    alone.nodes["yan"].submit(1, alone.delta(6), alone.now)
    alone.exchange()
    assert theo.version == 2
    alone.live(300)
    assert theo.joining.asked_at == asked_at  # it waits for no receipt


def test_no_round_closes_while_the_host_is_behind(bench: Any) -> None:  # R6.2-13, R6.9-2
    """The copy has both updates of a round, and one is enough: the deadline would close it."""
    bench.host.settings = replace(bench.host.settings, min_peers=1)
    bench.play()
    bench.nodes["theo"].submit(1, bench.delta(0), bench.now)
    bench.exchange()
    old = copy_of(bench)
    bench.nodes["yan"].submit(1, bench.delta(1), bench.now)
    bench.exchange()
    before = bench.host
    host = restore(bench, old)
    nodes, bench.nodes = bench.nodes, {}  # nobody can be reached for a while
    bench.live(100)
    assert host.version == 1
    bench.nodes = nodes
    bench.live(60)
    assert (host.version, host.global_hash) == (2, before.global_hash)


def claim(bench: Any, name: str, version: int) -> None:
    """A hello of a node that says that it has a version."""
    hello = control.Hello(name, b"instance", MODEL[:8], bench.host.run, version, bytes(16), 10)
    bench.host.receive_frames(
        name, [seal_open(Header(UNASSIGNED, 0), control.write_control(hello))], bench.now
    )


def questions(bench: Any, name: str) -> list[Wanted]:
    bodies = [open_seal(frame)[1] for peer, frame in bench.take(HOST) if peer == name]
    messages = [control.read_control(body) for body in bodies if body[0] == control.KIND]
    return [message for message in messages if isinstance(message, Wanted)]


@pytest.fixture
def alone(new_bench: New) -> Any:
    """A host that has led one round, its nodes out of reach, without keys."""
    made = new_bench(rounds=ROUNDS, min_peers=2, deadline_s=30)
    made.join("theo", "yan")
    made.play()
    return made


def test_a_lie_is_given_up_and_counted(alone: Any) -> None:  # R6.9-7
    host = alone.host
    claim(alone, "theo", 5)
    claim(alone, "yan", 6)
    asked = [*questions(alone, "theo")]
    for _ in range(2 * ASKS_MAX):
        assert host.state.is_behind
        alone.now = host.recovery.at
        host.handle_timeout(alone.now)
        asked += questions(alone, "theo")
    assert asked == [Wanted(1, 1)] * ASKS_MAX
    assert not host.state.is_behind
    assert host.refused == {"ahead": 2}
    claim(alone, "theo", 7)
    assert not host.state.is_behind
    assert host.refused == {"ahead": 3}
    alone.now += IGNORED_PAUSES * PAUSE_S
    claim(alone, "theo", 7)
    assert host.state.is_behind


def test_a_version_beyond_the_plan_is_no_claim(alone: Any) -> None:  # R6.9-1
    claim(alone, "theo", ROUNDS + 1)
    assert alone.host.refused == {"ahead": 1}
    assert not alone.host.state.is_behind


def answer(bench: Any, name: str, content: bytes) -> None:
    address = bench.nodes[name].address
    bodies = fragments.split(content, bench.plan.frame_mtu)
    frames = [seal_open(Header(address, i), body) for i, body in enumerate(bodies)]
    bench.host.receive_frames(name, frames, bench.now)


def test_only_what_follows_the_hosts_own_is_taken(alone: Any) -> None:  # R6.9-4
    made = alone.last(HOST, GlobalUpdateMade)
    old = copy_of(alone)
    alone.play()
    other = alone.last(HOST, GlobalUpdateMade).content
    host = restore(alone, replace(old, model_q24=old.model_q24 + 1, chain=()))
    answer(alone, "theo", other)
    assert set(host.refused) == {"kind"}  # nobody was asked
    claim(alone, "theo", 2)
    answer(alone, "yan", other)
    assert set(host.refused) == {"kind"}
    answer(alone, "theo", made.content)  # an old one: it changes nothing
    for _ in range(ASKS_MAX - 1):
        answer(alone, "theo", other)
    assert host.refused["reference"] == ASKS_MAX - 1
    assert host.version == 1
    alone.now = host.recovery.at
    host.handle_timeout(alone.now)
    assert host.refused["ahead"] == 1
    assert not host.state.is_behind


def test_what_the_host_did_not_certify_is_refused(new_bench: New) -> None:  # R6.9-4
    bench = new_bench(rounds=ROUNDS, min_peers=1, keys=("theo",))
    theo = bench.add("theo")
    bench.live(20)
    bench.play()
    old = copy_of(bench)
    bench.play(2)
    theo.chain._links = type(theo.chain._links)(
        replace(link, content=certify(split_certificate(link.content)[0], ((0, bytes(64)),)))
        for link in theo.chain._links
    )
    host = restore(bench, old)
    bench.live(60)
    assert host.version == 1
    assert host.refused["signature"]
    assert [e.reason for e in bench.events[HOST] if isinstance(e, Refused)].count("ahead") >= 1


def test_a_store_has_what_came_back(bench: Any, tmp_path: Path) -> None:  # R6.9-5
    bench.play()
    events = [*bench.events[HOST]]
    old = copy_of(bench)
    bench.play(3)
    host = restore(bench, old)
    bench.live(120)
    store, found = stored(bench, tmp_path, events)
    assert found.state.version == 4
    assert found.state.nodes[0].counted == host.nodes[1].counted
    assert [link.version for link in found.state.chain] == [1, 2, 3, 4]
    assert [row.counted for row in store.history()] == [("theo", "yan")] * 4


def forget(bench: Any, keep: int = 1) -> None:
    """The nodes have no more than their newest global updates."""
    for node in bench.nodes.values():
        node.chain._bytes_max = 1
        node.chain._links = type(node.chain._links)(node.chain._links, maxlen=keep)


def test_a_damaged_adapter_is_not_taken(bench: Any) -> None:  # R6.9-9
    bench.play()
    old = copy_of(bench)
    bench.play(5)
    forget(bench)
    for node in bench.nodes.values():
        node.model_q24 = node.model_q24 + 1
    host = restore(bench, old)
    bench.live(100)
    assert host.version == 1
    assert host.refused["reference"]


def lose(bench: Any) -> HostProtocol:
    """The host's store is gone; it has kept its keys."""
    state = replace(new_host_state(bench.plan.dimension), counter=1 << 20, is_first=True)
    host: HostProtocol = bench.restart_host(state, b"next run")
    bench.exchange()
    return host


@pytest.mark.parametrize("rounds", [3, 6])
def test_a_host_that_has_lost_all_goes_on_with_the_run_of_its_nodes(bench: Any, rounds) -> None:
    # R6.9-10
    bench.play(rounds)
    if rounds == 6:
        forget(bench)
    run = bench.host.run
    host = lose(bench)
    bench.live(120)
    assert (host.run, host.version) == (run, rounds)
    assert bench.agrees()
    assert bench.count(HOST, RunAdopted) == 1
    bench.play(ROUNDS - rounds)
    assert host.phase == FINISHED
    assert bench.agrees()


def test_a_node_that_lies_about_its_run_holds_nobody_up_for_long(new_bench: New) -> None:
    # R6.9-7, R6.9-10
    bench = new_bench(rounds=ROUNDS, min_peers=1, deadline_s=30)
    host = lose(bench)
    hello = control.Hello("liar", b"instance", MODEL[:8], b"no such!", 5, bytes(16), 10)
    frame = seal_open(Header(UNASSIGNED, 0), control.write_control(hello))
    beyond = control.write_control(replace(hello, run=b"too far!", version=ROUNDS + 1))
    host.receive_frames("liar", [seal_open(Header(UNASSIGNED, 0), beyond)], bench.now)
    assert host.run == b"next run", "a refused frame changes nothing"
    host.refused.clear()
    for _ in range(2):
        host.receive_frames("liar", [frame], bench.now)
    assert host.run == b"no such!"
    bench.add("theo")
    bench.live((ASKS_MAX + 2) * PAUSE_S)
    for _ in range(2):
        bench.play()
        bench.live(31)  # the liar is missed in the first round
    assert (host.version, host.refused) == (2, {"ahead": 1})
    assert bench.agrees()
    host.receive_frames("liar", [frame.replace(b"no such!", b"other o!")], bench.now)
    assert host.run == b"no such!", "a run that has learned is not given up"
