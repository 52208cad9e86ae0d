"""What really was counted, kept outside of the code under test; and what a violation is."""

from collections import defaultdict

import numpy as np

from ternmesh.hypervector.scale import UNIT
from ternmesh.plan import Plan
from ternmesh.swarm import bitmap, step
from ternmesh.swarm.events import ReferenceMade
from ternmesh.wire import control, manifest, share
from ternmesh.wire.control import Receipt, Silent

MODEL = bytes(range(32))


class Violation(AssertionError):
    """An invariant does not hold; the message begins with the seed that replays it."""


def expect(condition: object, sentence: str) -> None:
    if not condition:
        raise Violation(sentence)


class Ledger:
    """What really was counted of each node and of the run, kept outside of the code under test."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counted: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(plan.dimension))
        self.by_round: dict[tuple[str, int], np.ndarray] = {}
        self.means = np.zeros(plan.dimension)
        self.promised: dict[tuple[str, int], tuple[bytes, bytes]] = {}
        self.silences = 0

    def note_receipt(self, name: str, receipt: Receipt) -> None:
        self.promised[name, receipt.round] = receipt.digest, receipt.have

    def note_reference(
        self, made: ReferenceMade, bodies: tuple[tuple[int, bytes], ...], names: dict[int, str]
    ) -> None:
        packets: dict[int, dict[bytes, None]] = defaultdict(dict)
        for context, body in bodies:
            packets[context][body] = None
        counted = {names[entry.context]: entry for entry in made.counted}
        total = np.zeros((2, self.plan.dimension))
        for context, packet in packets.items():
            name, entry = names[context], counted.get(names[context])
            shares = [body for body in packet if body[0] == share.KIND]
            heads = [manifest.read_manifest(b) for b in packet if b[0] == manifest.KIND]
            if entry is None:
                expect(not (heads and shares), f"{name} was usable and was not counted")
                continue
            there = [share.read_share(body).slice.index for body in shares]
            have = np.flatnonzero(bitmap.read_bitmap(entry.have, self.plan.up.count))
            expect(sorted(there) == list(have), f"the list of {name} is not what arrived")
            expect(entry.digest == heads[0].digest, f"the list names another packet of {name}")
            expect(entry.round == made.version - 1, "the list names another round")
            total += self._count(name, entry.round, shares, heads[0].samples)
        self._check_silence(made, packets, names)
        with np.errstate(invalid="ignore"):
            self.means += np.where(total[1] > 0, total[0] / np.maximum(total[1], 1), 0.0)
        self._check_promises(made, counted)

    def _count(self, name: str, number: int, shares: list[bytes], samples: int) -> np.ndarray:
        units = step.update_units(shares, MODEL, number, self.plan) * UNIT
        expect((name, number) not in self.by_round, f"round {number} of {name} counted twice")
        self.by_round[name, number] = units
        self.counted[name] += units
        places = step.order(MODEL, number, self.plan.dimension)
        present = np.zeros(self.plan.dimension)
        for body in shares:
            index = share.read_share(body).slice.index
            span = self.plan.up_span
            present[places[index * span : (index + 1) * span]] = 1
        return np.stack([samples * units, samples * present])

    def _check_silence(
        self, made: ReferenceMade, packets: dict[int, dict[bytes, None]], names: dict[int, str]
    ) -> None:
        """Who is neither counted nor missing has said for this very round that it is silent."""
        word = control.write_control(Silent(made.version - 1))
        known = {entry.context for entry in made.counted}.union(made.missing)
        for context in names.keys() - known:
            expect(word in packets[context], f"{names[context]} was not silent and is not missed")
            self.silences += 1

    def _check_promises(self, made: ReferenceMade, counted: dict[str, object]) -> None:
        for (name, number), (digest, have) in self.promised.items():
            if number == made.version - 1 and any(have):
                entry = counted.get(name)
                kept = entry is not None and entry.digest == digest  # type: ignore[attr-defined]
                kept = kept and all(a & b == a for a, b in zip(have, entry.have, strict=True))
                expect(kept, f"{name} has a receipt for round {number} that was not honoured")
