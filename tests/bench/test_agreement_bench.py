"""What `bench agreement` counts, without its processes."""

import random

import cbor2
import pytest

from bench import promises
from bench.agreement import LORA, _lies, decision_bytes, figures, on_air_s
from host.voter_bus import Matter
from ternmesh.federated.agreement.messages import Alive, Suspect, sign_message
from ternmesh.federated.agreement.voters import make_voters

FOUND = {"missed": 7, "took_s": [0.2, 0.4], "failover_s": [4.0, 6.0], "faults": {}}


def test_a_decision_is_a_proposal_and_two_votes_of_each() -> None:
    assert decision_bytes(1) == []
    assert len(decision_bytes(4)) == 1 + 2 * 4
    assert len(decision_bytes(7)) == 1 + 2 * 7
    assert on_air_s(decision_bytes(4), LORA["sf9"]) > 3 * on_air_s(decision_bytes(4), LORA["sf7"])


def test_the_figures_are_against_the_star_of_the_same_seed() -> None:
    done = {
        "star 0": FOUND | {"accuracy": 0.9},
        "star 1": FOUND | {"accuracy": 0.8},
        "kills_4 0": FOUND | {"accuracy": 0.89},
        "kills_4 1": FOUND | {"accuracy": 0.81, "faults": {"lost": 2}},
        "failover 0": FOUND | {"accuracy": 0.5},
    }
    found = figures(done, [1.1, 1.2])
    assert found["points_lost_kills_4"].value == pytest.approx(0.0)
    assert found["updates_lost"].value == 2
    assert found["rounds_lost_per_kill"].value == pytest.approx(1 / 3)
    assert (found["failover_s"].value, found["failover_s_max"].value) == (5.0, 6.0)
    assert found["exact_time_ratio"].value == pytest.approx(1.15)


def test_a_liar_says_another_thing_of_all_that_it_says() -> None:
    voters = make_voters(bytes(8), ["a", "b", "c", "d"], "bft")
    said = sign_message(voters, Alive(1, 2, 3), lambda _: bytes(64))
    lies = list(_lies(Matter.AGREEMENT, said.data, random.Random(0)))
    assert Suspect(1, 2) in lies
    assert all(lie != said.message for lie in lies)
    rows = list(_lies(Matter.SIGNED, cbor2.dumps([3, []]), random.Random(0)))
    assert len({bytes(row) for row in rows if isinstance(row, bytes)}) == 7


def test_hosts_that_differ_are_found(tmp_path) -> None:
    for name, digest in (("a", "00"), ("b", "01")):
        (tmp_path / name).mkdir()
        promises.write_line(tmp_path / name / "state", made=1, hash=digest, counted={})
    found = promises.broken([tmp_path / "a", tmp_path / "b"], {})
    assert found == {"hosts have different global updates": 1}
