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
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.registry import UpdateChain
from ternmesh.wire.global_update import GlobalUpdate, read_object, split_certificate
from tests.sim.simfleet import run_fleet
from tests.sim.simledger import Violation
from tests.sim.simliars import LiarFleet, draw_with_liars
from tests.sim.test_liars import one_round_spoils

pytestmark = pytest.mark.no_cover

HAS_BOUNDS = True
SEEDS = 40  # the budget

Mutant = Callable[[pytest.MonkeyPatch], None]


def changed_return(patch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """Change what the guard answers where it goes back."""
    check = Guard.check

    def check_changed(self: Guard, **kept: Any) -> Any:
        rollback = check(self, **kept)
        return None if rollback is None else change(rollback)

    patch.setattr(Guard, "check", check_changed)


def forgets_what_was_sent_since(patch: pytest.MonkeyPatch) -> None:
    """The updates that counted since that version are lost."""
    changed_return(patch, lambda back: replace(back, residual=0 * back.residual))


def counts_the_suspect_once_more(patch: pytest.MonkeyPatch) -> None:
    """The rounds are repeated with everybody."""
    replayed = Guard._replayed
    patch.setattr(Guard, "_replayed", lambda self, kept, _: replayed(self, kept, frozenset()))


def repeats_a_round_twice(patch: pytest.MonkeyPatch) -> None:
    """The newest round counts as one that is over and as the open one."""
    check = Guard.check

    def check_and_add(self: Guard, **kept: Any) -> Any:
        rollback = check(self, **kept)
        if rollback is None:
            return None
        newest = self._replayed(self._rounds[-1], rollback.excluded)
        return replace(rollback, residual=rollback.residual + newest)

    patch.setattr(Guard, "check", check_and_add)


def adds_the_step_to_the_newest(patch: pytest.MonkeyPatch) -> None:
    """The host names the older version, and goes on from the newest adapter."""
    patch.setattr(combiner, "older_adapter", lambda newest, *_: newest)


def takes_one_step_too_few_back(patch: pytest.MonkeyPatch) -> None:
    """Both sides take back all steps but the oldest. (A node alone is healed by a snapshot.)"""

    def older(newest: Any, links: Any, version: int, *rest: Any) -> Any:
        return older_adapter(newest, links, version + 1, *rest)

    patch.setattr(combiner, "older_adapter", older)
    patch.setattr(node, "older_adapter", older)


def forgets_that_a_step_returned(patch: pytest.MonkeyPatch) -> None:
    """Each step is taken for one from the version before it, on both sides."""

    def older(newest: Any, links: Any, version: int, model_hash: bytes, plan: Any) -> Any:
        for link in links:
            if link.version <= version:
                break
            step = read_object(split_certificate(link.content)[0], plan.dimension)
            assert isinstance(step, GlobalUpdate)
            newest = add_q24(newest, -global_delta_q24(step.chunks, model_hash, step.version, plan))
        return newest

    patch.setattr(combiner, "older_adapter", older)
    patch.setattr(node, "older_adapter", older)


def settles_nothing_on_a_return(patch: pytest.MonkeyPatch) -> None:
    """A node believes that a return takes back what it has sent, and sends it again."""
    settle = NodeProtocol._apply_update

    def apply(self: NodeProtocol, step: GlobalUpdate, *rest: Any) -> None:
        settle(self, step if step.returns_to is None else replace(step, counted=()), *rest)

    patch.setattr(NodeProtocol, "_apply_update", apply)


def drops_an_update_that_waits(patch: pytest.MonkeyPatch) -> None:
    """A return ends the rounds before it, and what boards still send of them is lost."""
    bases = NodeProtocol._bases

    def bases_and_drop(self: NodeProtocol, step: GlobalUpdate) -> Any:
        if step.returns_to is not None and not step.counted:
            self.pending = None
        return bases(self, step)

    patch.setattr(NodeProtocol, "_bases", bases_and_drop)


def keeps_what_the_owner_wants_to_lose(patch: pytest.MonkeyPatch) -> None:
    """The host's residual outlives the return that the owner asked for."""
    make = HostProtocol._make_global_update

    def make_with_residual(self: HostProtocol, combined: Any, count: Any, now: float) -> None:
        if combined.returns_to is not None and not count.rows:
            combined = replace(combined, residual=combined.residual + np.float32(0.01))
        make(self, combined, count, now)

    patch.setattr(HostProtocol, "_make_global_update", make_with_residual)


def gives_a_return_without_its_steps(patch: pytest.MonkeyPatch) -> None:
    """A node gives a host that is behind a step that it cannot add."""

    def steps(version: int, chain: UpdateChain, newest: int, _model: Any) -> list[bytes]:
        return (chain.after(version, newest) or [])[: recovery.GIVEN_MAX]

    patch.setattr(node, "steps_after", steps)


MUTANTS: tuple[Mutant, ...] = (
    forgets_what_was_sent_since,
    counts_the_suspect_once_more,
    repeats_a_round_twice,
    adds_the_step_to_the_newest,
    takes_one_step_too_few_back,
    forgets_that_a_step_returned,
    settles_nothing_on_a_return,
    drops_an_update_that_waits,
    keeps_what_the_owner_wants_to_lose,
    gives_a_return_without_its_steps,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_planted_bug_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    one_round_spoils(monkeypatch)
    mutant(monkeypatch)
    with pytest.raises(Violation, match="seed"):
        run_seeds()


def run_seeds() -> None:
    for seed in range(SEEDS):
        run_fleet(seed, LiarFleet(seed, draw_with_liars(seed)))
