"""What really was counted, kept outside of the code under test; and what a violation is."""

from collections import defaultdict

import numpy as np

from ternmesh.hypervector.scale import UNIT
from ternmesh.plan import Plan
from ternmesh.swarm import bitmap, step
from ternmesh.swarm.events import ReferenceMade
from ternmesh.swarm.open_round import BUNDLE
from ternmesh.wire import contributions, control, manifest, share
from ternmesh.wire.control import Receipt, Silent

MODEL = bytes(range(32))


class Violation(AssertionError):
    """An invariant does not hold; the message begins with the seed that replays it."""


def expect(condition: object, sentence: str) -> None:
    if not condition:
        raise Violation(sentence)


class Ledger:
    """What really was counted of each node and of the run, kept outside of the code under test."""

    def __init__(self, plan: Plan, made: dict[tuple[str, int, bytes], tuple[bytes, ...]]) -> None:
        self.plan = plan
        self.made = made  # the shares of all packets that nodes made, by name, round and digest
        self.owed = np.zeros(plan.dimension)  # what counted bundles could not carry, times samples
        self.bundles: dict[tuple[int, bytes], np.ndarray] = {}  # the same of each
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
        bundled = dict(made.bundles)
        for context, packet in packets.items():
            if context & BUNDLE:
                total += self._count_bundle(context & ~BUNDLE, packet, made, names)
            if context & BUNDLE or context in bundled:
                continue
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
        self._check_promises(made, counted, may_switch=any(place & BUNDLE for place in packets))

    def _count_bundle(
        self, lead: int, packet: dict[bytes, None], made: ReferenceMade, names: dict[int, str]
    ) -> np.ndarray:
        """A bundle counts as one packet, and settles those that it was made of."""
        nothing = np.zeros((2, self.plan.dimension))
        heads = [manifest.read_manifest(body) for body in packet if body[0] == manifest.KIND]
        listed = [body for body in packet if body[0] == contributions.KIND]
        shares = [body for body in packet if body[0] == contributions.SHARE_KIND]
        members = {c for c, row in made.bundles if heads and row.digest == heads[0].digest}
        if not members:
            whole = heads and listed and len(shares) == self.plan.up.count
            expect(not whole, f"a whole bundle of {names[lead]} was not counted")
            return nothing
        head, rows = heads[0], contributions.read_contributions(listed[0])
        expect(members == set(head.contributors), "a bundle was counted for other nodes")
        number, counted = made.version - 1, {entry.context: entry for entry in made.counted}
        read = [share.read_share(body, contributions.SHARE_KIND) for body in shares]
        vector = step.read_shares(read, self.plan.up)
        there = sorted(item.slice.index for item in read)
        carried = np.zeros(self.plan.dimension)
        for context, row in zip(head.contributors, rows, strict=True):
            entry = counted[context]
            have = np.flatnonzero(bitmap.read_bitmap(entry.have, self.plan.up.count))
            expect(list(have) == there, "a contributor's row is not what arrived of the bundle")
            expect(entry.digest == row.digest, "a contributor's row names another packet")
            bodies = self.made[names[context], number, row.digest]
            own = [bodies[index] for index in have]
            carried += self._count(names[context], number, own, row.samples)[0]
        units = step.scatter(vector.units(), step.order(MODEL, number, self.plan.dimension)) * UNIT
        left = carried - head.samples * units
        self.owed += left
        self.bundles[number, head.digest] = left
        return np.stack([head.samples * units, head.samples * self._present(there, number)])

    def _count(self, name: str, number: int, shares: list[bytes], samples: int) -> np.ndarray:
        units = step.update_units(shares, MODEL, number, self.plan) * UNIT
        expect((name, number) not in self.by_round, f"round {number} of {name} counted twice")
        self.by_round[name, number] = units
        self.counted[name] += units
        there = [share.read_share(body).slice.index for body in shares]
        return np.stack([samples * units, samples * self._present(there, number)])

    def _present(self, indices: list[int], number: int) -> np.ndarray:
        places = step.order(MODEL, number, self.plan.dimension)
        present = np.zeros(self.plan.dimension)
        for index in indices:
            span = self.plan.up_span
            present[places[index * span : (index + 1) * span]] = 1
        return present

    def _check_silence(
        self, made: ReferenceMade, packets: dict[int, dict[bytes, None]], names: dict[int, str]
    ) -> None:
        """Who is neither counted nor missing has said for this very round that it is silent."""
        word = control.write_control(Silent(made.version - 1))
        known = {entry.context for entry in made.counted}.union(made.missing)
        for context in names.keys() - known:
            expect(word in packets[context], f"{names[context]} was not silent and is not missed")
            self.silences += 1

    def _check_promises(
        self, made: ReferenceMade, counted: dict[str, object], *, may_switch: bool
    ) -> None:
        """Beside a bundle a node may be counted by other shares, unless all were promised."""
        everything = bitmap.write_bitmap(range(self.plan.up.count), self.plan.up.count)
        for (name, number), (digest, have) in self.promised.items():
            if may_switch and have != everything:
                continue
            if number == made.version - 1 and any(have):
                entry = counted.get(name)
                kept = entry is not None and entry.digest == digest  # type: ignore[attr-defined]
                kept = kept and all(a & b == a for a, b in zip(have, entry.have, strict=True))
                expect(kept, f"{name} has a receipt for round {number} that was not honoured")
