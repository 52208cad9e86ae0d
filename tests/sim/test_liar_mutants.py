"""Bugs planted into the ways back to an older version: the simulation must find each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ternmesh.codec.scale import add_q24
from ternmesh.federated import combiner, node, recovery
from ternmesh.federated.aggregation import global_delta_q24, older_adapter
from ternmesh.federated.guard import Guard
from ternmesh.federated.node import NodeProtocol
from ternmesh.wire.global_update import GlobalUpdate, read_object, split_certificate
from tests.sim.planted import Bug, instead, plant
from tests.sim.simfleet import run_fleet
from tests.sim.simledger import Violation
from tests.sim.simliars import LiarFleet, draw_with_liars
from tests.sim.test_liars import one_round_spoils

pytestmark = pytest.mark.no_cover

HAS_BOUNDS = True
SEEDS = 40  # the budget
FIRST = (1, 36, 7, 11)  # they find all

Method = Callable[..., Any]


def changing_the_return(change: Callable[[Guard, Any], Any]) -> Callable[[Method], Method]:
    """Change what the guard answers where it goes back."""

    def spoil(check: Method) -> Method:
        def method(self: Guard, **kept: Any) -> Any:
            rollback = check(self, **kept)
            return None if rollback is None else change(self, rollback)

        return method

    return spoil


def twice(guard: Guard, rollback: Any) -> Any:
    newest = guard._replayed(guard._rounds[-1], rollback.excluded)
    return replace(rollback, residual=rollback.residual + newest)


def one_step_too_few(newest: Any, links: Any, version: int, *rest: Any) -> Any:
    return older_adapter(newest, links, version + 1, *rest)


def each_from_the_one_before(
    newest: Any, links: Any, version: int, model_hash: bytes, plan: Any
) -> Any:
    for link in links:
        if link.version <= version:
            break
        step = read_object(split_certificate(link.content)[0], plan.dimension)
        assert isinstance(step, GlobalUpdate)
        newest = add_q24(newest, -global_delta_q24(step.chunks, model_hash, step.version, plan))
    return newest


def settling_nothing(apply: Method) -> Method:
    def method(self: NodeProtocol, step: GlobalUpdate, *rest: Any) -> None:
        apply(self, step if step.returns_to is None else replace(step, counted=()), *rest)

    return method


def dropping_what_waits(apply: Method) -> Method:
    def method(self: NodeProtocol, step: GlobalUpdate, *rest: Any) -> Any:
        is_next = step.version == self.version + 1
        if is_next and step.returns_to is not None and not step.counted:
            self.pending = None
        return apply(self, step, *rest)

    return method


def keeping_a_residual(make: Method) -> Method:
    def method(self: combiner.Combiner, *arguments: Any) -> Any:
        back = make(self, *arguments)
        return back and replace(back, residual=back.residual + np.float32(0.01))

    return method


def steps_alone(version: int, chain: Any, newest: int, _model: Any) -> list[bytes]:
    return (chain.after(version, newest) or [])[: recovery.GIVEN_MAX]


MUTANTS: dict[str, tuple[Bug, ...]] = {
    "the updates that counted since that version are lost": (
        (
            Guard,
            "check",
            changing_the_return(lambda _, back: replace(back, residual=0 * back.residual)),
        ),
    ),
    "the rounds are repeated with everybody": (
        (Guard, "_replayed", lambda right: lambda self, kept, _: right(self, kept, frozenset())),
    ),
    "the newest round counts as one that is over and as the open one": (
        (Guard, "check", changing_the_return(twice)),
    ),
    "the host names the older version, and goes on from the newest": (
        (combiner, "older_adapter", instead(lambda newest, *_: newest)),
    ),
    "both sides take back all steps but the oldest": (  # one alone is healed by a snapshot
        (combiner, "older_adapter", instead(one_step_too_few)),
        (node, "older_adapter", instead(one_step_too_few)),
    ),
    "each step is taken for one from the version before it": (
        (combiner, "older_adapter", instead(each_from_the_one_before)),
        (node, "older_adapter", instead(each_from_the_one_before)),
    ),
    "a node sends again what a return has counted": (
        (NodeProtocol, "_apply_update", settling_nothing),
    ),
    "a return ends what boards still send of the rounds before it": (
        (NodeProtocol, "_apply_update", dropping_what_waits),
    ),
    "the host's residual outlives the return that the owner asked for": (
        (combiner.Combiner, "return_to", keeping_a_residual),
    ),
    "a node gives a host that is behind a step that it cannot add": (
        (node, "steps_after", instead(steps_alone)),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_bug_is_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one_round_spoils(monkeypatch)
    plant(monkeypatch, *MUTANTS[mutant])
    with pytest.raises(Violation, match="seed"):
        run_seeds()


def run_seeds() -> None:
    for seed in dict.fromkeys((*FIRST, *range(SEEDS))):
        run_fleet(seed, LiarFleet(seed, draw_with_liars(seed)))
