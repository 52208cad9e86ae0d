"""What really was counted, kept outside of the code under test; and what a violation is."""

from collections import defaultdict

import numpy as np

from ternmesh.codec.encoder import scatter
from ternmesh.codec.permutation import order
from ternmesh.codec.scale import UNIT
from ternmesh.federated.aggregation import read_chunks, update_delta_q24
from ternmesh.federated.evaluation import read_values
from ternmesh.federated.events import GlobalUpdateMade
from ternmesh.federated.open_round import PARTIAL_AGGREGATE
from ternmesh.plan import Plan
from ternmesh.wire import control
from ternmesh.wire.control import Receipt, Silent
from ternmesh.wire.global_update import Counted
from ternmesh.wire.update import (
    CHUNK_KIND,
    CONTRIBUTIONS_KIND,
    MANIFEST_KIND,
    VOTE_CHUNK_KIND,
    read_bitmap,
    read_chunk,
    read_contributions,
    read_manifest,
    write_bitmap,
)

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
        self.partial_aggregates: dict[tuple[int, bytes], np.ndarray] = {}  # the same of each
        self.counted: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(plan.dimension))
        self.by_round: dict[tuple[str, int], np.ndarray] = {}
        self.means = np.zeros(plan.dimension)
        self.promised: dict[tuple[str, int], tuple[bytes, bytes]] = {}
        self.silences = 0

    def note_receipt(self, name: str, receipt: Receipt) -> None:
        self.promised[name, receipt.round] = receipt.digest, receipt.have

    def note_reference(
        self, made: GlobalUpdateMade, bodies: tuple[tuple[int, bytes], ...], names: dict[int, str]
    ) -> None:
        if made.version == 1 and not (made.counted or bodies):
            expect(not made.missing, "nobody is missing where nobody was asked")
            return  # it takes the adapter of another run along
        if self.plan.rounds == 0 and not made.counted:
            self._check_quiet(made, bodies, names)
            return
        packets: dict[int, dict[bytes, None]] = defaultdict(dict)
        for address, body in bodies:
            packets[address][body] = None
        counted = {names[entry.address]: entry for entry in made.counted}
        total = np.zeros((2, self.plan.dimension))
        aggregated = dict(made.partial_aggregates)
        for address, packet in packets.items():
            if address & PARTIAL_AGGREGATE:
                total += self._count_bundle(address & ~PARTIAL_AGGREGATE, packet, made, names)
            if address & PARTIAL_AGGREGATE or address in aggregated:
                continue
            name, entry = names[address], counted.get(names[address])
            chunks = [body for body in packet if body[0] == CHUNK_KIND]
            heads = [read_manifest(b) for b in packet if b[0] == MANIFEST_KIND]
            if entry is None:
                expect(not (heads and chunks), f"{name} was usable and was not counted")
                continue
            there = [read_chunk(body).slice.index for body in chunks]
            have = list(read_bitmap(entry.have, self.plan.up.count).search(1))
            expect(sorted(there) == have, f"the list of {name} is not what arrived")
            expect(entry.digest == heads[0].digest, f"the list names another packet of {name}")
            expect(entry.round == made.version - 1, "the list names another round")
            staleness = read_values(heads[0].evaluation).staleness
            expect(staleness <= self.plan.staleness_rounds, f"{name} is too late, and was counted")
            weight = heads[0].samples * (1 + staleness) ** -0.5
            total += self._count(name, entry.round, chunks, weight)
        self._check_silence(made, packets, names)
        with np.errstate(invalid="ignore"):
            self.means += np.where(total[1] > 0, total[0] / np.maximum(total[1], 1), 0.0)
        self._check_promises(
            made, counted, may_switch=any(place & PARTIAL_AGGREGATE for place in packets)
        )

    def _check_quiet(
        self, made: GlobalUpdateMade, bodies: tuple[tuple[int, bytes], ...], names: dict[int, str]
    ) -> None:
        """Without an end, an update may be passed over if its node is silent in this very round."""
        word = control.write_control(Silent(made.version - 1))
        silent = {address for address, body in bodies if body == word}
        heads = {address for address, body in bodies if body[0] == MANIFEST_KIND}
        usable = heads & {address for address, body in bodies if body[0] == CHUNK_KIND}
        for address in names.keys() - set(made.missing) | usable:
            expect(address in silent, f"{names.get(address)} had news that was passed over")

    def _count_bundle(
        self, lead: int, packet: dict[bytes, None], made: GlobalUpdateMade, names: dict[int, str]
    ) -> np.ndarray:
        """A bundle counts as one packet, and settles those that it was made of."""
        nothing = np.zeros((2, self.plan.dimension))
        heads = [read_manifest(body) for body in packet if body[0] == MANIFEST_KIND]
        listed = [body for body in packet if body[0] == CONTRIBUTIONS_KIND]
        chunks = [body for body in packet if body[0] == VOTE_CHUNK_KIND]
        members = {
            c for c, row in made.partial_aggregates if heads and row.digest == heads[0].digest
        }
        if not members:
            whole = heads and listed and len(chunks) == self.plan.up.count
            expect(not whole, f"a whole bundle of {names[lead]} was not counted")
            return nothing
        head, rows = heads[0], read_contributions(listed[0])
        expect(members == set(head.contributors), "a bundle was counted for other nodes")
        number, counted = made.version - 1, {entry.address: entry for entry in made.counted}
        read = [read_chunk(body, VOTE_CHUNK_KIND) for body in chunks]
        vector = read_chunks(read, self.plan.up)
        there = sorted(item.slice.index for item in read)
        carried = np.zeros(self.plan.dimension)
        for address, row in zip(head.contributors, rows, strict=True):
            entry = counted[address]
            have = list(read_bitmap(entry.have, self.plan.up.count).search(1))
            expect(have == there, "a contributor's row is not what arrived of the bundle")
            expect(entry.digest == row.digest, "a contributor's row names another packet")
            bodies = self.made[names[address], number, row.digest]
            own = [bodies[index] for index in have]
            carried += self._count(names[address], number, own, row.samples)[0]
        delta_q24 = scatter(vector.delta_q24(), order(MODEL, number, self.plan.dimension)) * UNIT
        left = carried - head.samples * delta_q24
        self.owed += left
        self.partial_aggregates[number, head.digest] = left
        return np.stack([head.samples * delta_q24, head.samples * self._present(there, number)])

    def _count(self, name: str, number: int, chunks: list[bytes], samples: float) -> np.ndarray:
        delta_q24 = update_delta_q24(chunks, MODEL, number, self.plan) * UNIT
        expect((name, number) not in self.by_round, f"round {number} of {name} counted twice")
        self.by_round[name, number] = delta_q24
        self.counted[name] += delta_q24
        there = [read_chunk(body).slice.index for body in chunks]
        return np.stack([samples * delta_q24, samples * self._present(there, number)])

    def _present(self, indices: list[int], number: int) -> np.ndarray:
        places = order(MODEL, number, self.plan.dimension)
        present = np.zeros(self.plan.dimension)
        for index in indices:
            span = self.plan.up_span
            present[places[index * span : (index + 1) * span]] = 1
        return present

    def _check_silence(
        self, made: GlobalUpdateMade, packets: dict[int, dict[bytes, None]], names: dict[int, str]
    ) -> None:
        """Who is neither counted nor missing has said for this very round that it is silent."""
        word = control.write_control(Silent(made.version - 1))
        known = {entry.address for entry in made.counted}.union(made.missing)
        for address in names.keys() - known:
            expect(word in packets[address], f"{names[address]} was not silent and is not missed")
            self.silences += 1

    def _check_promises(
        self, made: GlobalUpdateMade, counted: dict[str, Counted], *, may_switch: bool
    ) -> None:
        """Beside a bundle a node may be counted by other shares, unless all were promised."""
        everything = write_bitmap(range(self.plan.up.count), self.plan.up.count)
        for (name, number), (digest, have) in self.promised.items():
            if may_switch and have != everything:
                continue
            if number == made.version - 1 and any(have):
                entry = counted.get(name)
                kept = entry is not None and entry.digest == digest
                kept = kept and all(a & b == a for a, b in zip(have, entry.have, strict=True))
                expect(kept, f"{name} has a receipt for round {number} that was not honoured")
