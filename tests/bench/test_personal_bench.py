import numpy as np

from bench.personal import LABELS, PLAIN, fleet_of, run
from edge.onnx.session import load_model
from models.zoo import package_path
from ternmesh.plan import make_plan

LOADED = load_model(package_path("keyword"))
PLAN = make_plan(
    LOADED.package.dimension,
    rounds=1,
    local_steps=4,
    learning_rate=0.01,
    up_bytes=700,
    down_bytes=900,
)


def test_boards_that_share_all_end_alike_and_those_with_a_personal_part_do_not() -> None:
    fleet = fleet_of(PLAIN, 0)
    shared, _ = run(LOADED, fleet, PLAN, 0, ())
    assert shared.shape == (3, 3)
    assert (shared == shared[0]).all()
    mixed, _ = run(LOADED, fleet, PLAN, 0, ("layers.0.*", "head.*"))
    assert len({row.tobytes() for row in mixed}) == 3


def test_clips_are_mixed_and_the_first_board_differs() -> None:
    plain, other = fleet_of(PLAIN, 0), fleet_of(LABELS, 0)
    for clips in (*plain.train, *plain.held_out):
        assert len(set(clips.arrays["target"].tolist())) >= 9
    targets = [fleet.claimed[0][1].arrays["target"] for fleet in (plain, other)]
    np.testing.assert_array_equal((targets[0] + 1) % 10, targets[1])
    even = [fleet.train[1].arrays["target"] for fleet in (plain, other)]
    np.testing.assert_array_equal(even[0], even[1])
