"""Links under faults, each from one seed, and bugs planted on purpose that they must find.

`TERNMESH_LINK_SEEDS=1000 pytest --nightly tests/sim/test_link_sim.py` runs that many.
"""

import os
from collections import Counter
from collections.abc import Callable

import pytest

from ternmesh.link import ledger, link, messages, sender
from ternmesh.link.events import Delivered, Queued
from ternmesh.link.ledger import Ledger
from ternmesh.link.messages import Question, Status, is_link, object_name, read_message
from ternmesh.link.receiver import Receiver
from ternmesh.link.sender import OutgoingObject
from ternmesh.security.sealing import CountersReserved
from ternmesh.wire.frame import SUITE_OPEN, open_seal, suite_of
from tests.sim import simlink
from tests.sim.planted import groups
from tests.sim.simlink import Violation, draw, run_seed

pytestmark = pytest.mark.no_cover

SEEDS = int(os.environ.get("TERNMESH_LINK_SEEDS", "200"))
GROUPS = 8
MUTANT_SEEDS = 120  # the budget; most need fewer than ten

Mutant = Callable[[pytest.MonkeyPatch], None]


@groups(GROUPS, 2)
def test_every_object_arrives_once(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        run_seed(seed)


def test_a_seed_replays_exactly() -> None:
    first, second = run_seed(5), run_seed(5)
    assert first.now == second.now
    assert [e.events for e in first.ends.values()] == [e.events for e in second.ends.values()]


def test_seeds_draw_every_fault_and_reach_every_event() -> None:
    options = [draw(seed) for seed in range(100)]
    for name in ("drop", "duplicate", "reorder", "flip"):
        assert 20 < sum(getattr(o.faults, name) > 0 for o in options) < 80
    assert all(20 < sum(getattr(o, n) > 0 for o in options) < 80 for n in ("crash", "hostile"))
    events: Counter[str] = Counter()
    for seed in range(12):
        for end in run_seed(seed).ends.values():
            events += end.events
    wanted = ("crash", "RepairsReserved", "SymbolHeld", "ObjectArrived", "Delivered", "LinkRefused")
    assert all(events[name] > 0 for name in wanted)


def answers_before_commit(patch: pytest.MonkeyPatch) -> None:
    """A status counts symbols, and a receipt an object, that a crash takes back."""

    def settle(self: simlink.End) -> None:
        happened = False
        while (event := self.link.next_event()) is not None:
            self.disk.record(event)
            happened = True
        self.send()
        if happened and self.air.crashes(self):
            return
        self.disk.commit()

    patch.setattr(simlink.End, "settle", settle)


def sends_objects_it_may_forget(patch: pytest.MonkeyPatch) -> None:
    """An object is on the air before it is on disk."""
    _forgets(patch, Queued)


def loses_receipts(patch: pytest.MonkeyPatch) -> None:
    """The word that an object is there is said once, and never again."""
    say = Receiver._queue_answer
    told: set[tuple[int, str, Status | Question]] = set()

    def say_once(self: Receiver, peer: str, answer: Status | Question) -> None:
        is_receipt = isinstance(answer, Status) and not answer.needs
        said = id(self), peer, answer
        if not (is_receipt and said in told):
            say(self, peer, answer)
        if is_receipt:
            told.add(said)

    patch.setattr(Receiver, "_queue_answer", say_once)


def wraps_one_too_early(patch: pytest.MonkeyPatch) -> None:
    """A number of 15 bits stands where 16 are meant."""
    name = object_name
    patch.setattr(messages, "object_name", lambda number, payload: name(number & 0x7FFF, payload))


def refills_the_ledger(patch: pytest.MonkeyPatch) -> None:
    """A restart begins with a fresh hour."""
    patch.setattr(ledger, "resume", lambda budget_us, *_: Ledger(budget_us))


def forgets_the_grant(patch: pytest.MonkeyPatch) -> None:
    """What was granted ahead of the disk counts as unspent after a crash."""
    resume = ledger.resume
    patch.setattr(
        ledger,
        "resume",
        lambda budget_us, record, *rest: resume(budget_us, ledger.Record(record.entries, 0), *rest),
    )


def repeats_repairs_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Repair symbols are not reserved on disk."""
    patch.setattr(OutgoingObject, "reserve", lambda self: None)


def forgets_what_arrived(patch: pytest.MonkeyPatch) -> None:
    """An object whose receipt was lost is taken for a new one."""
    patch.setattr(Receiver, "_remember", lambda *_: None)


def is_content_with_one_receiver(patch: pytest.MonkeyPatch) -> None:
    """A broadcast ends with its first receipt."""
    receive_status = sender.Sender.receive_status

    def hasty(self: sender.Sender, peer: str, status: Status, now: float) -> None:
        found = [s for s in self._active if s.offer.name == status.name]
        if found and not status.needs:
            [one] = found
            self._close(one, Delivered(one.queued.number, one.queued.receivers))
        else:
            receive_status(self, peer, status, now)

    patch.setattr(sender.Sender, "receive_status", hasty)


def never_asks_again(patch: pytest.MonkeyPatch) -> None:
    """A sender that hears nothing waits for ever."""
    patch.setattr(sender.Sender, "next_timeout", lambda self: None)


def sends_one_symbol_too_few(patch: pytest.MonkeyPatch) -> None:
    """Of each generation one repair symbol less than was asked for."""
    ask_for = OutgoingObject.ask_for
    patch.setattr(
        OutgoingObject, "ask_for", lambda self, needs: ask_for(self, [max(0, n - 1) for n in needs])
    )


def serves_the_least_needy(patch: pytest.MonkeyPatch) -> None:
    """A broadcast is repaired for the receiver who lacks the first generation least, for ever."""
    patch.setattr(sender, "most_needed", lambda needs: tuple(0 for _ in min(needs)))


def uses_counters_it_may_forget(patch: pytest.MonkeyPatch) -> None:
    """Seal counters are used before their block is on disk."""
    _forgets(patch, CountersReserved)


def believes_weaker_seals(patch: pytest.MonkeyPatch) -> None:
    """Frames of suite 0 are taken although there are keys."""
    open_sealed = link.Link._open

    def open_any(self: link.Link, peer: str, frame: bytes, now: float) -> None:
        if suite_of(frame) != SUITE_OPEN or not self._sealing.is_keyed:
            open_sealed(self, peer, frame, now)
        elif is_link(body := open_seal(frame)[1]):
            self._take(peer, read_message(body), False, now)

    patch.setattr(link.Link, "_open", open_any)


def _forgets(patch: pytest.MonkeyPatch, kind: type) -> None:
    record = simlink.Disk.record
    patch.setattr(
        simlink.Disk,
        "record",
        lambda self, event: None if isinstance(event, kind) else record(self, event),
    )


MUTANTS: list[Mutant] = [
    answers_before_commit,
    sends_objects_it_may_forget,
    loses_receipts,
    wraps_one_too_early,
    refills_the_ledger,
    forgets_the_grant,
    repeats_repairs_after_a_restart,
    forgets_what_arrived,
    is_content_with_one_receiver,
    never_asks_again,
    sends_one_symbol_too_few,
    serves_the_least_needy,
    uses_counters_it_may_forget,
    believes_weaker_seals,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_planted_bug_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((Violation, AssertionError)):  # noqa: PT012
        for seed in range(MUTANT_SEEDS):
            run_seed(seed)
