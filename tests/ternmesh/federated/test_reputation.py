"""Reputations: what lowers a node's weight, and what must not."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.exact import cosine
from ternmesh.federated import reputation

NODES = range(1, 7)


def fleet(
    rounds: int = 8, nodes: Iterable[int] = NODES, /, **cosines: float
) -> reputation.Reputations:
    """Six or other nodes after some rounds; `cosines` by "n1", "n2" and so on."""
    found = reputation.Reputations(first_loss=1.2)
    for version in range(1, rounds + 1):
        found.counted({node: cosines.get(f"n{node}", 0.1) for node in nodes}, (), version)
    return found


def reports(*rises: float) -> dict[int, float]:
    return dict(enumerate(rises, start=1))


def test_a_node_whose_probes_raise_the_error_is_excluded_and_comes_back() -> None:
    found = fleet()
    assert found.weight(1) == pytest.approx(1.0)
    found.probed(1, 9, reports(-0.3, 0.05, 0.07, 0.1, 0.11, 0.9))  # the median of the others counts
    assert found.weight(1) == pytest.approx(1.0), "a rise as by an overshoot"
    found.probed(1, 9, reports(-0.3, 0.05, 0.07, 0.12, 0.13, 0.9))
    assert found.weight(1) == pytest.approx(2 * (2 - 0.12 / 0.07), abs=0.01)
    found.probed(1, 13, reports(-0.3, 0.2, 0.22, 0.24, 0.25, 0.9))
    assert found.is_excluded(1)
    assert found.weight(1) == 0.0
    assert found.reputation(1) == reputation.LOWEST
    assert found.reason(1) == "excluded: raises the error"
    found.probed(1, 17, reports(*[-0.01] * 6))
    assert found.is_excluded(1), "one harmless probe is not enough"
    for _ in range(30):
        found.probed(1, 17, reports(*[-0.01] * 6))
    assert found.weight(1) == pytest.approx(1.0)
    assert found.reason(1) == ""


def test_of_three_nodes_one_that_lies_has_no_honest_one_excluded() -> None:
    found = fleet(17, (1, 2, 3))
    found.probed(1, 18, {1: -0.1, 2: 0.4, 3: 32.0})  # other data, and a lie
    assert not any(map(found.harm, (1, 2, 3))), "the others may do the same harm"
    found.probed(2, 19, {1: 0.2, 2: -0.1, 3: 32.0})
    found.probed(3, 20, {1: 0.1, 2: 0.1, 3: -32.0})
    assert found.weight(1) == found.weight(2) == pytest.approx(1.0)
    again = reputation.restored(found.stored())
    assert again.harm(3) == found.harm(3) > 0
    found.probed(3, 24, {1: 1.3, 2: 1.5, 3: -32.0})
    assert found.is_excluded(3), "two that do each other less harm say the same of it"
    assert found.weight(1) == found.weight(2) == pytest.approx(1.0)


def test_a_liar_is_not_forgotten_while_it_is_away_from_three_others() -> None:
    found = fleet(17, (1, 2, 3, 4))
    found.probed(4, 18, {1: 0.9, 2: 0.9, 3: 0.9, 4: -32.0})
    for version in range(19, 40):
        found.counted(dict.fromkeys((1, 2, 3), 0.1), (), version)
    for node in (1, 2, 3):
        found.probed(node, 40 + node, dict.fromkeys((1, 2, 3), 0.02))
    assert found.is_excluded(4)


@given(st.lists(st.floats(-65, 65), min_size=3, max_size=3))
def test_a_minority_moves_a_rise_no_further_than_honest_reports(lies: list[float]) -> None:
    found = fleet()
    honest = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    found.probed(9, 9, dict(enumerate([*honest, *lies])))
    assert 0.1 <= found.of(9).rise <= 0.6


def test_a_minority_at_most_is_discounted() -> None:
    found = fleet()
    for node in NODES:
        found.probed(node, 9, reports(*[0.01 if node < 4 else node / 4] * 6))
    assert [node for node in NODES if found.is_excluded(node)] == [5, 6]
    assert all(found.weight(node) == pytest.approx(1.0) for node in (1, 2, 3, 4))


def test_a_rise_that_is_usual_in_the_fleet_is_not_discounted() -> None:
    found = fleet()
    for node in NODES:
        found.probed(node, 9, reports(*[0.2 + node / 100] * 6))
    assert not any(found.harm(node) > 1 for node in NODES)
    found.probed(6, 10, reports(*[0.23 * reputation.USUAL * reputation.EXCLUDED - 0.01] * 6))
    assert found.harm(6) > 1
    assert not found.is_excluded(6)
    found.probed(6, 11, reports(*[0.23 * reputation.USUAL * reputation.EXCLUDED + 0.01] * 6))
    assert found.is_excluded(6)


def test_nobody_else_is_excluded_until_all_that_are_asked_have_been_probed() -> None:
    found = fleet()
    found.ask(NODES)
    asked = []
    for version in range(9, 15):
        node = found.due(NODES, version, bytes([version]))
        assert node is not None
        asked.append(node)
        found.probed(node, version, reports(*[9.0 if node == 3 else -0.01] * 6))
        assert found.is_excluded(3) == (version == 14)
    assert sorted(asked) == list(NODES)


def test_a_node_that_has_turned_is_probed_at_once_and_weighs_little_until_it_turns_back() -> None:
    found = fleet(20)
    found.counted(dict.fromkeys(NODES, 0.1), (), 21, turned={5})
    assert found.due(NODES, 22, b"any") == 5
    assert (found.weight(5), found.reason(5)) == (
        reputation.LOWEST,
        "sends the opposite of what it sent before",
    )
    found.counted(dict.fromkeys(NODES, 0.1), (), 22)
    assert found.weight(5) == pytest.approx(2 / reputation.NEWCOMER)


def test_reports_of_excluded_nodes_do_not_count_where_enough_others_report() -> None:
    found = fleet()
    found.probed(1, 9, reports(*[0.5] * 6))
    found.probed(2, 9, {1: 0.9, 3: 0.01, 4: 0.02})
    assert found.of(2).rise == pytest.approx(0.02), "two others are too few"
    found.probed(3, 9, {1: 0.9, 2: 0.01, 4: 0.02, 5: 0.03})
    assert found.of(3).rise == pytest.approx(0.02)
    found.probed(4, 9, {1: -0.9, 2: 0.01, 3: 0.02, 5: 0.03})
    assert found.of(4).rise == pytest.approx(0.02)


def test_a_node_has_no_vote_on_its_own_updates_but_against_them_it_is_believed() -> None:
    found = fleet()
    found.probed(1, 9, reports(-60.0, 0.1, 0.2, 0.3, 0.4, 0.5))
    assert found.of(1).rise == pytest.approx(0.3)
    found.probed(2, 9, reports(0.1, 0.15, 0.2, 0.3, 0.4, 0.5))
    assert found.of(2).rise == pytest.approx(0.3), "the others say more"
    for version in range(10, 30):
        found.counted(dict.fromkeys(NODES, 0.1), (), version)
    found.probed(3, 30, reports(0.01, 0.02, 0.05, 0.01, 0.02, 0.01))
    assert found.of(3).rise == pytest.approx(0.05), "updates that overshoot are no lie"


@pytest.mark.parametrize("own", [0.02, 5.0])
def test_on_its_own_word_alone_a_node_counts_half_and_is_not_excluded(own: float) -> None:
    found = fleet()
    found.probed(2, 9, reports(0.01, own, 0.02, 0.01, 0.02, 0.01))
    assert found.of(2).rise == pytest.approx(reputation.OWN_MAX)
    assert 0.4 < found.weight(2) < 0.7, "a few of its own clips may say so by chance"


def test_nodes_that_send_the_same_share_one_weight_and_one_report() -> None:
    found = fleet()
    found.copies = {1: 1, 2: 1, 3: 1, 4: 3, 5: 3, 6: 3}
    assert found.weight(1) == pytest.approx(1.0)
    assert found.weight(5) == pytest.approx(1 / 3)
    assert found.reason(5).startswith("sends nearly the same as another")
    found.probed(1, 9, reports(-0.1, 0.2, 0.3, 9.0, 9.0, 9.0))
    assert found.of(1).rise == pytest.approx(0.3)


def test_one_report_says_nothing() -> None:
    found = fleet()
    found.probed(1, 9, {2: 50.0})
    assert found.of(1).rise == 0
    assert found.of(1).probed == 9


def test_only_what_opposes_the_others_is_discounted() -> None:
    found = fleet(30, n1=-0.9, n2=-0.15)
    assert found.weight(1) == reputation.LOWEST
    assert found.reason(1) == "opposes the others"
    assert found.of(1).low_since > 0
    assert found.weight(2) == pytest.approx(0.2**0.3, abs=0.01), "it may be honest"
    assert found.reason(2) == "is unlike the others"
    assert found.weight(3) == pytest.approx(1.0)
    assert found.of(3).low_since == 0


def test_where_the_others_do_not_agree_either_nobody_is_unlike_them() -> None:
    found = fleet(30, **{"n1": -0.1, **{f"n{node}": 0.03 for node in (2, 3, 4, 5, 6)}})
    assert found.weight(1) == pytest.approx(1.0)


def test_a_node_that_comes_later_begins_low_and_rises() -> None:
    found = fleet(20)
    weights = []
    for version in range(21, 30):
        found.counted(dict.fromkeys(range(1, 8), 0.1), (), version)
        weights.append(found.weight(7))
    assert weights[0] == pytest.approx(2 / 8)
    assert weights == sorted(weights)
    assert weights[-1] == pytest.approx(1.0)
    assert found.reason(7) == ""


def test_uptime_counts_silences_as_present() -> None:
    found = fleet(8)
    for version in range(9, 60):
        found.counted(dict.fromkeys((1, 2), 0.1), (3,), version)
    assert found.weight(1) == found.weight(3) == pytest.approx(1.0)
    assert found.weight(4) < 0.5
    assert found.reason(4) == "often absent"


def test_probes_are_drawn_and_become_rare() -> None:
    found = fleet()
    probed = []
    for version in range(8, 100):
        node = found.due(NODES, version, bytes([version]))
        if node is not None:
            probed.append((version, node))
            found.probed(node, version, reports(*[-0.01] * 6))
    assert {node for _, node in probed[:10]} == {node for _, node in probed[-15:]} == set(NODES)
    assert [node for _, node in probed[:6]] != list(NODES), "nobody knows who is next"
    assert 90 * len(NODES) / 16 - 20 < len(probed) < 90 * len(NODES) / 16 + 40
    assert reputation.Reputations().due(NODES, 50, b"any") is None  # nobody reports a loss


def test_the_disk_keeps_all() -> None:
    found = fleet(12, n1=-0.5)
    found.probed(2, 9, reports(*[5.0] * 6))
    again = reputation.restored(found.stored())
    assert again == found
    assert again.weight(2) == 0.0
    for damaged in (b"", b"\xff", b"\x80", b"\x82\x01\x02", found.stored()[:-1]):
        assert reputation.restored(damaged) == reputation.Reputations()


def test_a_new_node_is_unknown() -> None:
    assert reputation.Reputations().of(3) == reputation.NodeStanding()
    assert cosine(np.zeros(3, np.float32), np.ones(3, np.float32)) == 0.0


def test_what_the_owner_sets_holds() -> None:
    found = fleet()
    found.probed(1, 9, reports(*[9.0] * 6))
    found.fixed = {1: 1.0, 2: 0.0}
    assert [found.weight(node) for node in (1, 2)] == [1.0, 0.0]
    assert [found.reason(node) for node in (1, 2)] == ["pinned by the owner", "muted by the owner"]
