"""A voter makes the global update of a proposal again, and nothing else."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.federated import events, replica
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.state import HostState, RegisteredNode, new_host_state
from ternmesh.security.authenticator import OPEN
from ternmesh.security.membership import HOST
from ternmesh.wire.control import FINISHED, Silent, write_control
from ternmesh.wire.global_update import UNCERTIFIED

MODEL = bytes(range(32))
SILENT = write_control(Silent(0))
New = Callable[..., Any]


def proposal(bench: Any, **changes: Any) -> replica.ProposedUpdate:
    """What the leader of a bench proposes, of the events since the last global update."""
    host, seen = bench.host, bench.events[HOST]
    first = [i for i, e in enumerate(seen) if isinstance(e, events.GlobalUpdateMade)]
    since = seen[first[-1] if first else 0 :]
    made = bench.last(HOST, events.Proposed)
    item = replica.ProposedUpdate(
        run=host.run,
        version=made.version,
        before=host.global_hash,
        members=0,
        muted=tuple(sorted(host.combiner.muted)),
        returns_to=made.returns_to,
        joined=tuple((a, n.name, n.samples) for a, n in sorted(host.nodes.items())),
        bodies=tuple((e.address, e.body) for e in since if isinstance(e, events.BodyAccepted)),
        state=b"",
        made=sha256(made.content).digest(),  # as long as a real one
    )
    return replace(item, **changes)


def again(bench: Any, item: replica.ProposedUpdate, state: HostState) -> HostProtocol:
    host, known = replica.reproduce(
        item,
        plan=bench.plan,
        settings=bench.host.settings,
        model_hash=MODEL,
        run=bench.host.run,
        state=state,
        members=0,
        security=OPEN,
    )
    assert len(known) == 32
    return host


def state_of(host: HostProtocol) -> HostState:
    """What a store would load."""
    return HostState(
        model_q24=host.model_q24,
        residual=host.residual,
        version=host.version,
        global_hash=host.global_hash,
        started=True,
        finished=host.phase == FINISHED,
        nodes=tuple(host.nodes.values()),
        chain=tuple(host.chain.newest_first())[::-1],
        standings=host.combiner.aggregation.stored(),
        kept=tuple(kept.stored(0) for kept in host.combiner.guard._rounds),
    )


def run_round(bench: Any, number: int) -> None:
    """All nodes train, and the leader waits for the voters."""
    for seed, node in enumerate(bench.nodes.values()):
        node.submit(number, bench.delta(10 * number + seed), bench.now)
    bench.exchange()
    assert bench.host.awaiting is not None
    assert bench.host.version == number  # nothing is published yet


@pytest.fixture
def bench(new_bench: New) -> Any:
    made = new_bench(rounds=6, min_peers=2, deadline_s=30, has_voters=True)
    made.join("theo", "yan")
    return made


def test_a_voter_follows_a_run_by_proposals_alone(bench: Any) -> None:
    state = new_host_state(bench.plan.dimension)
    for number in range(6):
        run_round(bench, number)
        shadow = again(bench, replica.read_proposal(replica.write_proposal(proposal(bench))), state)
        assert shadow.awaiting.content == bench.host.awaiting.content
        for host in (shadow, bench.host):
            assert replica.made_by(host, state) == replica.made_by(shadow, state)
        promised = replica.made_by(shadow, state)
        for host in (shadow, bench.host):
            host.agreed(UNCERTIFIED, bench.now)
        state = state_of(shadow)
        assert replica.made_hash(state) == promised
        bench.exchange()
    assert shadow.phase == bench.host.phase == FINISHED
    assert (shadow.model_q24 == bench.host.model_q24).all()
    assert all((n.model_q24 == shadow.model_q24).all() for n in bench.nodes.values())


def test_a_host_that_takes_over_goes_on_with_what_boards_have_sent(bench: Any) -> None:
    state = new_host_state(bench.plan.dimension)
    run_round(bench, 0)
    shadow = again(bench, proposal(bench), state)
    shadow.agreed(UNCERTIFIED, bench.now)
    # The leader dies before boards hear of it: the next one has what was agreed.
    bench.restart_host(state_of(shadow))
    bench.settle(4, 11.0)  # boards find out what the next process of the host has
    assert [node.version for node in bench.nodes.values()] == [1, 1]
    run_round(bench, 1)


def test_what_was_not_agreed_is_made_anew_by_the_next_leader(bench: Any) -> None:
    run_round(bench, 0)
    bench.restart_host(new_host_state(bench.plan.dimension))
    bench.settle(4, 11.0)  # boards find out what the next process of the host has
    assert bench.host.awaiting is not None  # of the updates that boards have kept
    assert len(bench.host.awaiting.count.rows) == 2


def test_a_late_update_is_refused_while_voters_agree(bench: Any) -> None:
    bench.host.settings = replace(bench.host.settings, min_peers=1)
    bench.nodes["theo"].submit(0, bench.delta(1), bench.now)
    bench.exchange()
    bench.wait(31)
    bench.exchange()
    assert bench.host.awaiting is not None
    bench.nodes["yan"].submit(0, bench.delta(2), bench.now)
    bench.exchange()
    assert bench.host.refused["old round"]
    assert list(bench.host.awaiting.count.rows) == [1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": bytes(8)}, "agreement"),
        ({"version": 2}, "agreement"),
        ({"before": bytes(16)}, "agreement"),
        ({"members": 1}, "agreement"),
        ({"joined": ()}, "unknown node"),
        ({"joined": ((1, "theo", 9), (2, "yan", 9), (3, "theo", 9))}, "agreement"),
        ({"joined": ((1, "theo", 9), (2, "yan", 9), (1 << 20, "zoe", 9))}, "agreement"),
        ({"bodies": ((1, SILENT), (2, SILENT))}, "kind"),
        ({"bodies": ()}, "agreement"),
        ({"returns_to": 0}, "agreement"),
    ],
)
def test_another_proposal_is_refused(bench: Any, changes: dict[str, Any], reason: str) -> None:
    run_round(bench, 0)
    with pytest.raises(WireError) as error:
        again(bench, proposal(bench, **changes), new_host_state(bench.plan.dimension))
    assert error.value.reason == reason


def test_who_is_muted_is_a_part_of_what_is_made(bench: Any) -> None:
    run_round(bench, 0)
    state = new_host_state(bench.plan.dimension)
    item = proposal(bench)
    made = replica.made_by(bench.host, state)
    assert replica.made_by(again(bench, item, state), state) == made
    assert replica.made_by(again(bench, replace(item, muted=("theo",)), state), state) != made


def test_nothing_follows_the_last_global_update(bench: Any) -> None:
    run_round(bench, 0)
    item, state = proposal(bench), new_host_state(bench.plan.dimension)
    with pytest.raises(WireError, match="last global update"):
        again(bench, item, replace(state, finished=True, started=True))


def test_a_damaged_body_is_refused(bench: Any) -> None:
    run_round(bench, 0)
    item = proposal(bench)
    *others, (address, body) = item.bodies
    damaged = replace(item, bodies=(*others, (address, body[:-1] + bytes((body[-1] ^ 1,)))))
    with pytest.raises(WireError):
        again(bench, damaged, new_host_state(bench.plan.dimension))


def test_what_only_a_former_leader_knows_does_not_count(bench: Any) -> None:
    run_round(bench, 0)
    state = new_host_state(bench.plan.dimension)
    strangers = RegisteredNode(1, "zoe"), RegisteredNode(9, "ann")
    assert again(bench, proposal(bench), replace(state, nodes=strangers)).awaiting is not None


def test_no_leader_takes_strangers_in(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # R13.7-5
    run_round(bench, 0)
    item, state = proposal(bench), new_host_state(bench.plan.dimension)
    ghosts = replace(item, joined=(*item.joined, (7, "ghost", 9)))
    assert again(bench, ghosts, state).awaiting is not None
    monkeypatch.setattr(HostProtocol, "is_excluded", lambda _, name: name == "ghost")
    assert again(bench, item, state).awaiting is not None
    with pytest.raises(WireError, match="not enrolled here"):
        again(bench, ghosts, state)


def test_made_up_silences_close_no_round_of_voters_that_may_lie(new_bench: New) -> None:
    # R13.7-6
    bench = new_bench(
        rounds=6, plan={"silence_rounds": 4}, min_peers=2, deadline_s=30, has_voters=True
    )
    bench.join("theo", "yan")
    run_round(bench, 0)
    item, state = proposal(bench), new_host_state(bench.plan.dimension)
    bench.host.settings = replace(bench.host.settings, bears_liars=True)
    first = item.bodies[0][0]
    alone = tuple((address, body) for address, body in item.bodies if address == first)
    silent = next(address for address, _ in item.bodies if address != first)
    lies = replace(item, bodies=(*alone, (silent, SILENT)))
    with pytest.raises(WireError, match="makes no global update"):
        again(bench, lies, state)
    bench.host.settings = replace(bench.host.settings, bears_liars=False)
    assert again(bench, lies, state).awaiting is not None


def test_an_address_keeps_its_name(bench: Any) -> None:
    run_round(bench, 0)
    item = proposal(bench)
    shadow = again(bench, item, new_host_state(bench.plan.dimension))
    shadow.agreed(UNCERTIFIED, bench.now)
    bench.host.agreed(UNCERTIFIED, bench.now)
    bench.exchange()
    run_round(bench, 1)
    swapped = tuple((a, {"theo": "yan", "yan": "theo"}[n], s) for a, n, s in item.joined)
    for joined in (swapped, item.joined[:1]):
        with pytest.raises(WireError, match=r"name|lacks"):
            again(bench, proposal(bench, joined=joined), state_of(shadow))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_proposal_or_a_refusal(data: bytes) -> None:
    with suppress(WireError):
        assert replica.write_proposal(replica.read_proposal(data)) == data


@pytest.mark.parametrize(
    "lie",
    [
        {"version": 9},
        {"finished": True},
        {"global_hash": bytes(16)},
        {"chain": ()},
        {"residual": np.zeros(3, np.float32)},
        {"model_q24": np.ones(1500, np.int32)},
    ],
)
def test_a_copy_of_a_run_is_what_signers_have_certified(bench: Any, lie: dict[str, Any]) -> None:
    run_round(bench, 0)
    bench.host.agreed(UNCERTIFIED, bench.now)
    check = partial(
        replica.check_copy,
        plan=bench.plan,
        settings=bench.host.settings,
        model_hash=MODEL,
        run=bench.host.run,
        security=OPEN,
    )
    state = state_of(bench.host)
    check(state)
    with pytest.raises(WireError):
        check(replace(state, **lie))


def test_a_board_that_was_away_for_long_needs_no_new_signature(bench: Any) -> None:  # R6.8-29
    run_round(bench, 0)
    bench.host.agreed(UNCERTIFIED, bench.now)
    bench.exchange()
    theo = bench.nodes.pop("theo")
    for number in (1, 2):
        bench.nodes["yan"].submit(number, bench.delta(number), bench.now)
        bench.exchange()
        bench.host.round.silent.add(theo.address)
        bench.host.end_round(bench.now)
        bench.host.agreed(UNCERTIFIED, bench.now)
        bench.exchange()
    newest = bench.host.chain.link_of(3)
    bench.host.chain.clear()
    bench.host.chain.append(newest)  # what led to it is not kept any more
    bench.nodes["theo"] = theo
    theo.say_hello(bench.now)
    bench.exchange()
    assert theo.version == bench.host.version == 3
    assert (theo.model_q24 == bench.host.model_q24).all()
