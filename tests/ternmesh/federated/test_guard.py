"""The host goes back to an older adapter: by its guard, or as the owner asks."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import cbor2
import numpy as np
import pytest

from ternmesh.codec.scale import to_float
from ternmesh.federated import guard as guard_module
from ternmesh.federated.combiner import Combiner
from ternmesh.federated.evaluation import Evaluation, write_values
from ternmesh.federated.events import GlobalUpdateMade
from ternmesh.federated.guard import rise
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.rules import AggregationSettings
from ternmesh.security.membership import HOST
from tests.sim.simdisks import HostDisk
from tests.ternmesh.federated.conftest import MODEL

New = Callable[..., Any]
BOARDS = ("ada", "bo", "cy", "dot")
LIAR = "bo"
DIMENSION = 1500
TARGET = np.random.default_rng(3).normal(0, 0.05, DIMENSION).astype(np.float32)
GUARD = 0.02  # of the loss at the beginning, which is 3.6


def new_fleet(new_bench: New, guard: float = GUARD, **rest: Any) -> Any:
    fixed = rest.pop("fixed", {})
    bench = new_bench(
        rounds=60,
        plan={"up_zeros": 0.4, "down_zeros": 0.4},
        min_peers=len(BOARDS),
        aggregation=AggregationSettings(guard=guard, fixed=fixed),
        deadline_s=30,
        **rest,
    )
    for name in BOARDS:
        bench.add(name)
    bench.live()
    return bench


def loss_of(bench: Any, target: np.ndarray = TARGET) -> float:
    return float(np.sum((to_float(bench.host.model_q24) - target) ** 2))


def play(
    bench: Any,
    rounds: int = 1,
    lies: bool = False,
    target: np.ndarray = TARGET,
    reports: Mapping[str, float] | None = None,
) -> None:
    """Rounds in which each board goes a third of the way to the target, in a way of its own.

    Where the liar lies, it sends the longest vector that the limits let pass.
    """
    for _ in range(rounds):
        loss = loss_of(bench, target)
        for number, (name, node) in enumerate(bench.nodes.items()):
            told = loss if reports is None else reports.get(name)
            node.evaluation = () if told is None else write_values(Evaluation(min(60.0, told)))
            noise = bench.delta(1000 * bench.host.version + number) / 2
            delta = (target - to_float(node.model_q24)) / 3 - node.residual + noise
            if lies and name == LIAR:
                delta = -9 * np.sign(TARGET)
            node.submit(bench.host.version, delta.astype(np.float32), bench.now)
        bench.exchange()


@pytest.fixture(autouse=True)
def _one_round_spoils(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ternmesh.federated.robust.NORM_RATIO", 30.0)
    monkeypatch.setattr("ternmesh.federated.robust.ADAM_RATIO", 1e9)


def spoil(bench: Any, rounds_max: int = 20) -> None:
    """Lie until the host goes back."""
    for _ in range(rounds_max):
        play(bench, lies=True)
        if returns(bench):
            return


def made(bench: Any) -> list[GlobalUpdateMade]:
    return [event for event in bench.events[HOST] if isinstance(event, GlobalUpdateMade)]


def returns(bench: Any) -> list[int]:
    return [event.returns_to for event in made(bench) if event.returns_to is not None]


def weights(bench: Any) -> dict[str, float]:
    known = bench.host.combiner.aggregation.reputations
    return {node.name: known.weight(address) for address, node in bench.host.nodes.items()}


def test_a_spoiled_adapter_is_taken_back_without_the_liar(new_bench: New) -> None:
    bench = new_fleet(new_bench)
    play(bench, 12)
    good = loss_of(bench)
    spoil(bench)
    assert returns(bench) == [12]
    assert loss_of(bench) < 1.5 * good
    assert weights(bench) == {"ada": 1.0, "bo": 0.1, "cy": 1.0, "dot": 1.0}
    assert bench.agrees()
    play(bench, 8, lies=True)
    assert returns(bench) == [12]
    assert loss_of(bench) < good
    assert bench.agrees()


def restarted(bench: Any, kept: Iterable[bytes]) -> Combiner:
    """What a new process of the host makes of what is on its disk."""
    host = bench.host
    return Combiner(
        plan=bench.plan,
        settings=host.settings.aggregation,
        model_hash=MODEL,
        run=host.run,
        nodes=host.nodes,
        mean=b"",
        standings=made(bench)[-1].standings,
        kept=kept,
    )


def test_the_guard_survives_a_restart(new_bench: New) -> None:
    bench = new_fleet(new_bench)
    play(bench, 12)
    good = loss_of(bench)
    before = bench.host.combiner
    stored = [event.kept for event in made(bench)]
    bench.host.combiner = restarted(bench, stored[::-1])
    assert bench.host.combiner.guard._rounds == before.guard._rounds
    for address in bench.host.nodes:
        of = [c.aggregation._memory for c in (before, bench.host.combiner)]
        assert of[0].rounds(address) == of[1].rounds(address) == 12
        assert np.abs(of[0].total(address) - of[1].total(address)).max() < 0.02
    spoil(bench)
    assert returns(bench) == [12]
    assert loss_of(bench) < 1.5 * good
    assert weights(bench)[LIAR] == 0.1
    assert bench.agrees()


def test_after_a_return_a_restarted_guard_has_no_older_rounds(new_bench: New) -> None:
    bench = new_fleet(new_bench)
    play(bench, 12)
    spoil(bench)
    stored = [event.kept for event in made(bench)]
    assert not restarted(bench, stored).guard._rounds
    play(bench, 2)
    rounds = restarted(bench, [event.kept for event in made(bench)]).guard._rounds
    assert [kept.version for kept in rounds] == [bench.host.version - 2, bench.host.version - 1]


@pytest.mark.parametrize("damage", [b"", b"\x00", b"\x85\x00\x01\x40\x40\x81\x00"])
def test_damaged_rounds_begin_anew(new_bench: New, damage: bytes) -> None:
    bench = new_fleet(new_bench)
    play(bench, 3)
    kept = [event.kept for event in made(bench)]
    assert not restarted(bench, [*kept, damage]).guard._rounds


def test_a_damaged_chunk_of_a_round_begins_anew(new_bench: New) -> None:
    bench = new_fleet(new_bench)
    play(bench, 3)
    *kept, newest = [event.kept for event in made(bench)]
    oldest, version, residual, step, rows = cbor2.loads(newest)
    rows[-1][4] = [b"\x02"]
    damaged = cbor2.dumps([oldest, version, residual, step, rows])
    assert restarted(bench, [*kept, newest]).guard._rounds
    assert not restarted(bench, [*kept, damaged]).guard._rounds


def test_one_board_that_reports_lies_brings_nothing_back(new_bench: New) -> None:
    bench = new_fleet(new_bench)
    play(bench, 12)
    good = loss_of(bench)
    play(bench, 3, reports={LIAR: 60.0, "ada": good, "cy": good, "dot": good})
    assert returns(bench) == []


def test_nobody_is_blamed_for_a_change_of_data(new_bench: New) -> None:
    bench = new_fleet(new_bench)
    play(bench, 12)
    play(bench, 1, target=-TARGET)  # what all boards hear has changed
    assert len(returns(bench)) == 1
    assert set(weights(bench).values()) == {1.0}
    play(bench, 1, target=-TARGET)
    assert len(returns(bench)) == 1
    play(bench, 12, target=-TARGET)
    assert loss_of(bench, -TARGET) < 1.0
    assert bench.agrees()


def test_nobody_else_is_blamed_for_one_that_is_pinned(new_bench: New) -> None:
    bench = new_fleet(new_bench, fixed={LIAR: 1.0})
    play(bench, 12)
    good = loss_of(bench)
    spoil(bench)
    assert set(weights(bench).values()) == {1.0}
    assert loss_of(bench) < 1.5 * good, "what was sent since is dropped"
    bench.host.combiner.mute({"ada"})
    assert weights(bench)["ada"] == 0.0


def test_with_a_rule_its_own_steps_are_added_once_more(new_bench: New) -> None:
    bench = new_fleet(new_bench)
    bench.host.combiner.guard = guard_module.Guard(bench.plan, MODEL, GUARD, keeps_steps=True)
    play(bench, 12)
    steps, combine = [], bench.host.combiner.aggregation.combine

    def noted(*rest: Any) -> Any:
        steps.append(combine(*rest))
        return steps[-1]

    bench.host.combiner.aggregation.combine = noted
    before = to_float(bench.host.model_q24) + bench.host.residual
    spoil(bench)
    now = to_float(bench.host.model_q24) + bench.host.residual
    assert np.abs(now - (before + sum(steps))).max() < 1e-5


def test_the_guard_goes_back_no_further_than_boards_can_follow(new_bench: New, monkeypatch) -> None:
    monkeypatch.setattr("ternmesh.federated.combiner.CHAIN_BYTES_MAX", 1)
    bench = new_fleet(new_bench)
    play(bench, 12)
    play(bench, 3, lies=True)
    assert returns(bench) == []
    assert weights(bench)[LIAR] > 0, "nobody is suspected for nothing"


@pytest.mark.parametrize(
    ("version", "sentence"),
    [(4, "no version 4"), (-1, "no version -1"), (2, "taken back"), (3, "taken back")],
)
def test_versions_to_which_the_owner_cannot_return(new_bench: New, version, sentence) -> None:
    bench = new_fleet(new_bench, guard=0.0)
    play(bench, 3)
    assert bench.host.return_to(1, bench.now) == ""  # that makes version 4
    bench.exchange()
    assert bench.host.combiner.returned == "global update 4 goes back to version 1"
    digest = bench.host.global_hash
    assert sentence in bench.host.return_to(version, bench.now)
    assert bench.host.global_hash == digest


def test_no_return_before_the_run_begins_or_after_its_end(new_bench: New) -> None:
    bench = new_bench(rounds=1, min_peers=1)
    assert "no round is open" in bench.host.return_to(0, bench.now)
    bench.add("ada")
    bench.live()
    bench.nodes["ada"].submit(0, bench.delta(1), bench.now)
    bench.exchange()
    assert "no round is open" in bench.host.return_to(0, bench.now)


def test_a_revoked_node_leaves_the_residual(new_bench: New, monkeypatch) -> None:
    bench = new_fleet(new_bench, guard=1e9)
    play(bench, 4)
    play(bench, 1, lies=True)
    disk = HostDisk(bench.host.run, bench.plan)
    for event in bench.events[HOST]:
        disk.record(event)
    disk.commit()
    before, address = bench.host.residual, bench.host.nodes.named(LIAR).address
    left = bench.host.combiner.guard.forget(address, before)
    assert np.linalg.norm(left) < 0.8 * np.linalg.norm(before)
    assert (np.abs(left) <= np.abs(before)).all()
    assert (left * before >= 0).all()  # nothing changes its sign
    untouched = bench.host.combiner.guard.forget(99, before)
    assert np.array_equal(untouched, before)
    monkeypatch.setattr(HostProtocol, "is_excluded", lambda _, name: name == LIAR)
    assert np.array_equal(bench.restart_host(disk.load()).residual, left)  # after a kill -9


def test_rises_compare_a_board_with_itself() -> None:
    assert rise({1: 1.0, 2: 5.0, 3: 2.0}, {1: 1.5, 2: 5.1, 3: 9.0}) == pytest.approx(0.5)
    assert rise({1: 1.0, 2: 5.0}, {1: 2.0, 2: 5.1}) == pytest.approx(0.1)  # of two, the smaller
    assert rise({1: 1.0, 2: 5.0}, {1: 2.0, 3: 5.1}) == -np.inf
    assert rise({}, {}) == -np.inf


def test_the_guard_keeps_what_it_has_room_for(new_bench: New, monkeypatch) -> None:
    bench = new_fleet(new_bench, guard=1e9)
    play(bench, 20)
    assert len(bench.host.combiner.guard._rounds) == guard_module.KEPT_MAX
    size = bench.host.combiner.guard._rounds[-1].size()
    updates = bench.host.combiner.guard._rounds[-1].updates
    sent = sum(len(body) for update in updates for body in update.bodies)
    assert size == 4 * DIMENSION + sent  # float32, and the chunks as they came
    monkeypatch.setattr(guard_module, "BYTES_MAX", 3 * size)
    play(bench, 1)
    assert len(bench.host.combiner.guard._rounds) == 3
