"""What really was counted, kept outside of the code under test; and what a violation is."""

from collections import defaultdict

import numpy as np

from ternmesh.codec.permutation import order
from ternmesh.codec.scale import UNIT
from ternmesh.federated.aggregation import update_delta_q24
from ternmesh.federated.evaluation import read_values
from ternmesh.federated.events import GlobalUpdateMade
from ternmesh.plan import Plan
from ternmesh.wire import control
from ternmesh.wire.control import Receipt, Silent
from ternmesh.wire.global_update import Counted
from ternmesh.wire.update import CHUNK_KIND, MANIFEST_KIND, read_bitmap, read_chunk, read_manifest

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
        for address, packet in packets.items():
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
        self._check_promises(made, counted)

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

    def _check_promises(self, made: GlobalUpdateMade, counted: dict[str, Counted]) -> None:
        for (name, number), (digest, have) in self.promised.items():
            if number == made.version - 1 and any(have):
                entry = counted.get(name)
                kept = entry is not None and entry.digest == digest
                kept = kept and all(a & b == a for a, b in zip(have, entry.have, strict=True))
                expect(kept, f"{name} has a receipt for round {number} that was not honoured")
