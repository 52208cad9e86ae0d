import itertools

import numpy as np
import pytest

from ternmesh.codec.algebra import pack
from ternmesh.codec.encoder import Slice, ternarise
from ternmesh.codec.entropy_coder import encode_trits
from ternmesh.codec.permutation import order
from ternmesh.codec.scale import encode_scale
from ternmesh.federated import drift
from ternmesh.federated.drift import FLEET_MIN, WINDOW, Drift, DriftWatch, Windows, judge, low_ones
from ternmesh.plan import make_plan
from ternmesh.wire.update import write_chunk

MODEL = bytes(range(32))
DIMENSION = 4000
PLAN = make_plan(DIMENSION, rounds=99, local_steps=1, learning_rate=0.1)
NODES = range(1, 7)
MANIFEST = b"\x03 of any content"
PAST_MIN = WINDOW + drift.UPDATES_MIN  # rounds until a node has a past


def direction(seed):
    return np.random.default_rng((7, seed)).standard_normal(DIMENSION).astype(np.float32)


def bodies_of(vector, round_number):
    """The shares of the largest tenth of a vector, one after the other."""
    shuffled = vector[order(MODEL, round_number, DIMENSION)]
    for index in range(PLAN.up.count):
        part = shuffled[index * PLAN.up.span :][: PLAN.up.span]
        trits, scale = ternarise(part, part.size // 10)
        yield write_chunk(round_number, Slice(index, encode_scale(scale), encode_trits(trits)))


class Fleet:
    """Nodes that move along a common direction and one of their own, with noise each round."""

    def __init__(self):
        self.watch = DriftWatch(PLAN, MODEL)
        self.round = 0
        self.rng = np.random.default_rng(0)
        self.directions = {c: direction(0) + direction(c) for c in NODES}

    def run(self, rounds, nodes=NODES):
        for _ in range(rounds):
            for address in nodes:
                noise = self.rng.standard_normal(DIMENSION).astype(np.float32)
                self.send(address, self.directions[address] + noise)
            self.close(nodes)
        return self.watch.found

    def send(self, address, vector):
        self.watch.accept(address, MANIFEST)
        for body in bodies_of(vector, self.round):
            self.watch.accept(address, body)

    def close(self, counted):
        self.watch.close(self.round, counted)
        self.round += 1


@pytest.fixture
def fleet():
    return Fleet()


def test_stable_nodes_do_not_drift(fleet):
    for _ in range(4 * WINDOW):
        found = fleet.run(1)
        assert not any(item.drifting for item in found.values())
    assert all(item.drifting is False for item in found.values())
    assert all(item.similarity_own > 0.4 for item in found.values())
    assert all(item.similarity_others > 0.3 for item in found.values())


def test_a_node_that_turns_round_stays_flagged_by_its_neighbours(fleet):
    fleet.run(2 * WINDOW)
    fleet.directions[3] = -fleet.directions[3]
    found = fleet.run(WINDOW)
    assert found[3].similarity_own < -0.4
    assert found[3].similarity_others < -0.3
    assert [c for c in NODES if found[c].drifting] == [3]
    found = fleet.run(2 * WINDOW)
    assert found[3].similarity_own > 0.4, "it is like its new past"
    assert [c for c in NODES if found[c].drifting] == [3]


def test_a_node_with_another_task_drifts_until_that_is_its_past(fleet):
    fleet.run(2 * WINDOW)
    fleet.directions[3] = direction(0) + 2 * direction(33)  # the common part is still there
    found = fleet.run(WINDOW)
    assert found[3].similarity_own < 0.3
    assert [c for c in NODES if found[c].drifting] == [3]
    fleet.directions[3] = direction(0) + direction(33)
    found = fleet.run(2 * WINDOW)
    assert not any(item.drifting for item in found.values())


def test_a_fleet_that_changes_together_does_not_drift(fleet):
    fleet.run(2 * WINDOW)
    for address in NODES:
        fleet.directions[address] = -fleet.directions[address]
    found = fleet.run(WINDOW)
    assert all(item.similarity_own < -0.4 for item in found.values())
    assert not any(item.drifting for item in found.values())


def test_the_order_of_each_round_is_undone(fleet):
    spikes = np.zeros(DIMENSION, dtype=np.float32)
    spikes[:200] = 1 - 2.0 * (np.arange(200) % 2)
    for _ in range(2 * WINDOW):
        fleet.send(1, spikes)
        fleet.close([1])
    assert fleet.watch.found[1].similarity_own == pytest.approx(1.0)


def test_what_is_not_known_yet_is_none(fleet):
    assert fleet.run(drift.UPDATES_MIN - 1) == {}
    found = fleet.run(1)[1]
    assert (found.similarity_own, found.drifting) == (None, False)
    assert found.similarity_others > 0.3
    assert fleet.run(PAST_MIN - fleet.round - 1)[1].similarity_own is None
    assert fleet.run(1)[1].similarity_own > 0.3


def test_three_nodes_have_numbers_and_no_flag(fleet):
    found = fleet.run(2 * WINDOW, range(1, FLEET_MIN))
    assert len(found) == FLEET_MIN - 1
    for item in found.values():
        assert item.similarity_own > 0.3
        assert item.similarity_others > 0.3
        assert item.drifting is None


def test_a_node_alone_has_a_past_only(fleet):
    found = fleet.run(2 * WINDOW, [1])
    assert found == {1: Drift(found[1].similarity_own)}


def test_a_node_that_was_heard_too_rarely_is_not_judged(fleet):
    fleet.run(2 * WINDOW)
    rest = [address for address in NODES if address != 1]
    assert 1 in fleet.run(WINDOW - drift.UPDATES_MIN, rest)
    assert 1 not in fleet.run(1, rest)
    assert 1 in fleet.run(drift.UPDATES_MIN)


def test_one_that_is_gone_for_two_windows_makes_room(fleet, monkeypatch):
    per_node = (2 * WINDOW + 1) * DIMENSION // 4
    monkeypatch.setattr(drift, "BYTES_MAX", 3 * per_node - 1)
    assert set(fleet.run(PAST_MIN)) == {1, 2}
    fleet.run(2 * WINDOW - 1, [2, 3, 4])
    assert set(fleet.run(drift.UPDATES_MIN, [2, 3, 4])) == {2}
    assert set(fleet.run(1, [2, 3, 4])) == {2, 3}


def test_no_more_nodes_than_the_limit(fleet, monkeypatch):
    monkeypatch.setattr(drift, "NODES_MAX", 5)
    assert set(fleet.run(WINDOW)) == {1, 2, 3, 4, 5}


def test_no_more_rounds_than_two_windows(fleet):
    fleet.run(5 * WINDOW)
    assert {len(kept) for kept in fleet.watch._kept.values()} == {2 * WINDOW}
    assert not fleet.watch._bodies


def test_what_was_forgotten_does_not_matter(fleet):
    twin = Fleet()
    for each in (fleet, twin):
        each.run(WINDOW - 1)
        if each is twin:
            each.send(1, -each.directions[1])
            each.watch.forget(1)
            each.watch.forget(99)
        each.watch.accept(1, next(bodies_of(each.directions[1], each.round)))
        each.close(NODES)
    assert twin.watch.found == fleet.watch.found


def test_what_is_not_counted_does_not_matter_and_takes_no_room(fleet, monkeypatch):
    monkeypatch.setattr(drift, "NODES_MAX", 1)
    for _ in range(WINDOW):
        fleet.send(7, direction(7))
        fleet.close([])
    assert fleet.watch.found == {}
    assert set(fleet.run(WINDOW, [1])) == {1}


def test_some_shares_of_a_packet_are_enough(fleet):
    for _ in range(2 * WINDOW):
        for address in NODES:
            bodies = list(bodies_of(fleet.directions[address], fleet.round))
            assert len(bodies) > 1
            fleet.watch.accept(address, bodies[fleet.round % len(bodies)])
        fleet.close(NODES)
    assert all(item.similarity_own > 0.2 for item in fleet.watch.found.values())
    assert all(item.drifting is False for item in fleet.watch.found.values())


def test_the_similarity_of_a_pair_is_the_cosine():
    trits = np.random.default_rng(0).integers(-1, 2, (6, 1, 101)).astype(np.int8)
    trits[2] = 0
    for a, b in itertools.product(trits.astype(float), repeat=2):
        length = float(np.linalg.norm(a) * np.linalg.norm(b))
        pair = (pack(vector.astype(np.int8)) for vector in (a, b))
        assert drift._cosine(*pair) == pytest.approx(float(a[0] @ b[0]) / max(1, length))


def test_others_are_compared_with_all_but_the_node_itself():
    trits = np.array([[1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 1, -1, 0, 0, 0, 0]], dtype=np.int8)
    empty = pack(np.empty((0, 8), dtype=np.int8))
    windows = {
        c: Windows(pack(np.repeat(row[None], 3, axis=0)), empty) for c, row in enumerate(trits)
    }
    assert judge(windows) == {0: Drift(None, 0.0), 1: Drift(None, 0.0)}
    windows[2] = windows[1]
    assert [judge(windows)[c].similarity_others for c in range(3)] == pytest.approx(
        [0, 0.5, 0.5], abs=0.3
    )


@pytest.mark.parametrize(
    ("values", "low"),
    [
        ([0.5, 0.5, 0.5], []),  # too few to say
        ([0.5, 0.5, 0.5, 0.36], []),  # within the margin
        ([0.5, 0.5, 0.5, 0.34], [3]),
        ([0.5, 0.5, 0.5, 0.9], []),  # nothing is too alike
        ([0.3, 0.4, 0.5, 0.6, 0.7, -0.05], []),  # a fleet that differs: deviation 0.15
        ([0.3, 0.4, 0.5, 0.6, 0.7, -0.5], [5]),
        ([-0.1, -0.1, -0.1, -0.3], [3]),
    ],
)
def test_low_is_what_the_fleet_says(values, low):
    answer = low_ones(dict(enumerate(values)))
    assert [address for address, is_low in answer.items() if is_low] == low
    assert len(answer) in (0, len(values))
